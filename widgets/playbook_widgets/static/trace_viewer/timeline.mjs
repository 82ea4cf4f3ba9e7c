// The picture: where every event is on the canvas, and how it is drawn.

import { make } from "../shared/dom.mjs";
import { busyPerLane, firstEndingAfter, ticks } from "./trace.mjs";

const AXIS = 26,
  LANE_HEAD = 22,
  PAD = 6; // px

/** Black or white, whichever reads better on `#rrggbb` (WCAG relative luminance). */
function textOn(hex) {
  const [r, g, b] = [1, 3, 5].map((i) => (parseInt(hex.slice(i, i + 2), 16) / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
}

/** The lanes of a viewer's trace, drawn from what the viewer shows: its window, what matches, what is pointed at. */
export class Timeline {
  constructor(viewer) {
    this.viewer = viewer;
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.colours = this.trace.categories.map(([, hex, kind]) => ({ fill: hex, text: kind === "work" && textOn(hex) }));
  }

  get trace() {
    return this.viewer.trace;
  }

  /** Start and end of what is shown. */
  get view() {
    return this.viewer.view;
  }

  // --- geometry

  x(time) {
    return ((time - this.view[0]) / (this.view[1] - this.view[0])) * this.width;
  }

  time(x) {
    return this.view[0] + (x / this.width) * (this.view[1] - this.view[0]);
  }

  rowTop(i) {
    return this.laneTop[this.trace.lane[i]] + LANE_HEAD + this.trace.depth[i] * this.rowHeight;
  }

  resize() {
    const rows = this.trace.rowsOf.reduce((sum, lane) => sum + lane.length, 0);
    this.rowHeight = rows > 24 ? 14 : rows > 14 ? 17 : 21;
    this.laneTop = [];
    let top = AXIS;
    for (const lane of this.trace.rowsOf) {
      this.laneTop.push(top);
      top += LANE_HEAD + lane.length * this.rowHeight + PAD;
    }
    this.height = top + PAD;
    this.width = Math.max(this.viewer.stage.clientWidth, 50);
  }

  /** The event at a point of the stage, or one within 3 px for the thin ones; -1 if there is none. */
  at(x, y) {
    const t = this.trace,
      lane = this.laneTop.findLastIndex((top) => top <= y);
    const row =
      lane < 0 ? undefined : t.rowsOf[lane][Math.floor((y - this.laneTop[lane] - LANE_HEAD) / this.rowHeight)];
    if (!row || y < this.laneTop[lane] + LANE_HEAD) return -1;
    const slack = this.time(3) - this.time(0),
      time = this.time(x);
    for (let k = firstEndingAfter(t.end, row, time - slack); k < row.length && t.begin[row[k]] <= time + slack; k++) {
      const sure = t.begin[row[k]] <= time && time <= t.end[row[k]],
        next = row[k + 1];
      if (this.viewer.match[row[k]] && (sure || next === undefined || t.begin[next] > time)) return row[k];
    }
    return -1;
  }

  // --- drawing

  draw(ink = getComputedStyle(this.viewer.root).color) {
    const scale = Math.max(devicePixelRatio || 1, this.viewer.printing ? 3 : 1),
      c = this.canvas.getContext("2d");
    this.canvas.width = Math.round(this.width * scale);
    this.canvas.height = Math.round(this.height * scale);
    this.canvas.style.height = `${this.height}px`;
    c.scale(scale, scale);
    this.font = getComputedStyle(this.viewer.root).fontFamily;
    this.ink = ink;
    this.drawAxis(c);
    this.drawRange(c);
    const busy = busyPerLane(this.trace, ...this.view);
    this.trace.lanes.forEach((_, lane) => this.drawLane(c, lane, busy[lane] / (this.view[1] - this.view[0])));
    this.drawLinks(c);
    this.drawOutline(c);
  }

  drawAxis(c) {
    const { values, label } = ticks(
      this.view[0] - this.trace.low,
      this.view[1] - this.trace.low,
      this.width,
      this.width < 500 ? 80 : 110,
    );
    c.font = `12px ${this.font}`;
    c.fillStyle = c.strokeStyle = this.ink;
    c.textBaseline = "middle";
    for (const value of values) {
      const x = Math.round(this.x(value + this.trace.low)) + 0.5,
        text = label(value),
        half = c.measureText(text).width / 2;
      c.globalAlpha = 0.15;
      c.fillRect(x - 0.5, AXIS - 6, 1, this.height - AXIS + 6);
      c.globalAlpha = 0.85;
      c.fillText(text, Math.min(Math.max(x - half, 0), this.width - 2 * half), 9);
    }
    c.globalAlpha = 1;
  }

  drawLane(c, lane, busy) {
    const top = this.laneTop[lane],
      [name, kind] = this.trace.lanes[lane];
    c.fillStyle = this.ink;
    c.globalAlpha = 0.2;
    c.fillRect(0, top, this.width, 1);
    c.globalAlpha = 1;
    c.font = `600 12px ${this.font}`;
    c.fillText(name, 0, top + LANE_HEAD / 2 + 1);
    const after = c.measureText(`${name}  `).width;
    c.font = `12px ${this.font}`;
    c.globalAlpha = 0.85;
    c.fillText(
      `${kind === "host" ? "host thread" : "device stream"} · ${Math.round(100 * busy)} % busy`,
      after,
      top + LANE_HEAD / 2 + 1,
    );
    this.trace.rowsOf[lane].forEach((row) => this.drawRow(c, row));
    c.globalAlpha = 1;
  }

  /** The events of one row that can be seen; those that would share a pixel are drawn once. */
  drawRow(c, row) {
    const { begin, end, category } = this.trace,
      [low, high] = this.view;
    const top = this.rowTop(row[0]),
      height = this.rowHeight - 2;
    let last = -1,
      lastKey = -1;
    for (let k = firstEndingAfter(end, row, low); k < row.length && begin[row[k]] <= high; k++) {
      const i = row[k],
        left = Math.max(this.x(begin[i]), -2),
        right = Math.min(this.x(end[i]), this.width + 2);
      const width = Math.max(right - left, 1),
        pixel = Math.floor(left),
        key = category[i] * 2 + this.viewer.match[i];
      if (width <= 1 && pixel === last && key === lastKey) continue;
      [last, lastKey] = [pixel, key];
      this.drawBox(c, i, left, top, width > 3 ? width - 0.75 : width, height);
      if (width > 34 && height > 11 && this.viewer.match[i])
        this.drawName(c, i, Math.max(left, 0), Math.min(right, this.width), top + height / 2);
    }
  }

  /** Work is solid; a phase, which only brackets the work below it, is a tint under a bar. */
  drawBox(c, i, left, top, width, height) {
    const { fill, text } = this.colours[this.trace.category[i]],
      faded = this.viewer.match[i] ? 1 : 0.14;
    c.fillStyle = fill;
    c.globalAlpha = text ? faded : faded * 0.25;
    c.fillRect(left, top, width, height);
    c.globalAlpha = faded;
    if (!text) c.fillRect(left, top, width, 3);
  }

  drawName(c, i, left, right, middle) {
    c.font = `11px ${this.font}`;
    const text = shorten(c, this.trace.names[this.trace.name[i]], right - left - 8);
    c.fillStyle = this.colours[this.trace.category[i]].text || this.ink;
    c.fillText(text, left + 4, middle + 1);
  }

  drawRange(c) {
    if (!this.viewer.range) return;
    const [left, right] = this.viewer.range.map((time) => this.x(time));
    c.fillStyle = this.ink;
    c.globalAlpha = 0.12;
    c.fillRect(left, AXIS - 6, right - left, this.height);
    c.globalAlpha = 0.7;
    c.fillRect(left, AXIS - 6, 1, this.height);
    c.fillRect(right - 1, AXIS - 6, 1, this.height);
    c.globalAlpha = 1;
  }

  /** From a launch to what it launched, for the event under the pointer or in focus. */
  drawLinks(c) {
    const i = this.viewer.current,
      t = this.trace;
    for (const other of t.linked.get(i) ?? []) {
      const [from, to] = t.launches.has(i) ? [i, other] : [other, i];
      const [x0, y0, x1, y1] = [
        this.x(t.begin[from]),
        this.rowTop(from) + this.rowHeight - 2,
        this.x(t.begin[to]),
        this.rowTop(to),
      ];
      c.strokeStyle = c.fillStyle = this.ink;
      c.lineWidth = 1.5;
      c.beginPath();
      c.moveTo(x0, y0);
      c.bezierCurveTo(x0, (y0 + y1) / 2, x1, (y0 + y1) / 2, x1, y1 - 5);
      c.stroke();
      c.beginPath();
      c.moveTo(x1, y1);
      c.lineTo(x1 - 4, y1 - 7);
      c.lineTo(x1 + 4, y1 - 7);
      c.fill();
    }
  }

  drawOutline(c) {
    const { current } = this.viewer;
    for (const i of [current, ...(this.trace.linked.get(current) ?? [])]) {
      if (i < 0) continue;
      c.strokeStyle = this.ink;
      c.lineWidth = 2;
      c.strokeRect(
        this.x(this.trace.begin[i]) - 1,
        this.rowTop(i) - 1,
        Math.max(this.x(this.trace.end[i]) - this.x(this.trace.begin[i]), 2) + 1,
        this.rowHeight,
      );
    }
  }
}

/** As much of `name` as fits into `room` pixels; nothing when that is less than three letters. */
function shorten(c, name, room) {
  const full = c.measureText(name).width;
  if (full <= room) return name;
  let count = Math.floor((name.length * room) / full);
  while (count > 2 && c.measureText(`${name.slice(0, count)}…`).width > room) count--;
  return count > 2 ? `${name.slice(0, count)}…` : "";
}
