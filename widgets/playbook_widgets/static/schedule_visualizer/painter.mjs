// The picture at rest: lanes, actions and what ranks keep, of that part of time which is in view.

import { AXIS, ticks } from "./geometry.mjs";
import { lastAtOrBefore } from "./side.mjs";

const DENSE = 0.75; // px: narrower actions are drawn as what each pixel holds

export class Painter {
  constructor(app, scene) {
    Object.assign(this, { app, scene, wides: new Map() });
  }

  get geometry() {
    return this.scene.geometry;
  }

  /** Everything onto a 2d context whose unit is a CSS pixel. */
  paint(c, colours) {
    const { geometry } = this.onto(c, colours);
    c.clearRect(0, 0, geometry.width, geometry.height);
    c.textBaseline = "middle";
    this.axis();
    this.app.sides.forEach((side, s) => this.side(side, s));
  }

  onto(c, colours) {
    return Object.assign(this, { c, colours, family: getComputedStyle(this.app.root).fontFamily });
  }

  font(size, weight = 400) {
    this.c.font = `${weight} ${size}px ${this.family}`;
  }

  axis() {
    const { c, geometry: g } = this,
      { values, digits } = ticks(...g.view, g.right - g.left);
    this.font(11);
    c.fillStyle = this.colours.ink;
    for (const value of values) {
      const x = Math.round(g.x(value)),
        text = value.toFixed(digits),
        wide = c.measureText(text).width;
      c.globalAlpha = 0.13;
      c.fillRect(x, AXIS - 4, 1, g.height - AXIS);
      c.globalAlpha = 0.85;
      c.fillText(text, Math.min(Math.max(x - wide / 2, 0), g.width - wide), 8);
    }
    c.globalAlpha = 1;
  }

  side(side, s) {
    const { c, geometry: g } = this,
      top = g.tops[s];
    c.fillStyle = this.colours.ink;
    this.font(13, 650);
    c.fillText(side.label, 0, top - 12);
    const after = c.measureText(side.label).width;
    this.font(12);
    c.globalAlpha = 0.85;
    c.fillText(this.app.time(side.makespan), after + 8, top - 12);
    c.globalAlpha = 1;
    c.save();
    c.beginPath();
    c.rect(g.left - 1, 0, g.right - g.left + 4, g.height);
    c.clip();
    for (let rank = 0; rank < side.ranks; rank++) this.lane(side, s, rank);
    const end = Math.round(g.x(side.makespan));
    c.fillStyle = this.colours.ink;
    c.fillRect(end, top - 4, 1.5, side.ranks * g.lane - g.gap + 4);
    c.restore();
    this.names(side, s);
  }

  names(side, s) {
    const { c, geometry: g } = this,
      every = g.lane < 14 ? 4 : 1;
    this.font(g.lane < 24 ? 10.5 : 12);
    c.fillStyle = this.colours.ink;
    for (let rank = 0; rank < side.ranks; rank += every)
      c.fillText(g.long ? `rank ${rank}` : String(rank), 0, g.laneTop(s, rank) + g.bar / 2 + 0.5);
  }

  lane(side, s, rank) {
    const { c, geometry: g } = this,
      top = g.laneTop(s, rank),
      [low, high] = g.view;
    c.fillStyle = this.colours.ink;
    c.globalAlpha = 0.07;
    const from = g.x(Math.max(low, 0)),
      to = g.x(Math.min(high, side.makespan));
    c.fillRect(
      from,
      top,
      Math.max(to - from, this.app.building && side === this.app.sides[0] ? g.right - from : 0),
      g.bar,
    );
    c.globalAlpha = 1;
    this.messages(side, rank, top);
    this.bars(side, s, rank);
    this.memory(side, rank, top + g.bar + 1);
  }

  /** Gaps that are due to messages have a line through them. */
  messages(side, rank, top) {
    const { c, geometry: g } = this,
      { idle } = side,
      causes = Object.keys(side.causeNames),
      [low, high] = g.view;
    c.fillStyle = this.colours.ink;
    c.globalAlpha = 0.5;
    for (const i of side.gapsOf[rank]) {
      if (
        idle.end[i] < low ||
        idle.start[i] > high ||
        !["communication", "link", "sending"].includes(causes[idle.cause[i]])
      )
        continue;
      const x = g.x(idle.start[i]),
        wide = g.x(idle.end[i]) - x;
      if (wide > 2) c.fillRect(x, Math.round(top + g.bar / 2) - 0.5, wide, 1);
    }
    c.globalAlpha = 1;
  }

  bars(side, s, rank) {
    const { geometry: g } = this,
      [low, high] = g.view,
      last = side.offsets[rank + 1];
    const scale = (g.right - g.left) / (high - low);
    let dense = null;
    for (let i = side.firstAfter(rank, low); i < last && side.start[i] <= high; i++) {
      if ((side.end[i] - side.start[i]) * scale < DENSE) this.pile((dense ??= this.pixels()), side, i);
      else this.slot(side, s, i);
    }
    if (dense) this.heap(dense, g.laneTop(s, rank));
  }

  /** One action: a bar, its lower part W's where B and W are one, and its letter and number where they fit. */
  slot(side, s, i) {
    const { c, geometry: g } = this,
      [left, top, full, high] = g.box(s, i),
      wide = full > 3 ? full - 1 : full > 1.4 ? full - 0.35 : full;
    const op = side.op[i],
      look = (name) => this.colours.shade(name, side.chunk[i], side.chunks),
      { fill, text } = look(op === "X" ? "B" : op);
    c.fillStyle = fill;
    c.fillRect(left, top, wide, high);
    if (op === "X") {
      const w = Math.max(2, Math.round(high * 0.26));
      c.fillStyle = look("W").fill;
      c.fillRect(left, top + high - w, wide, w);
    }
    if (wide > 9 && high > 8)
      this.label(side.short(i), side.microbatch[i], left, top, wide, op === "X" ? high * 0.76 : high, text);
  }

  label(text, number, left, top, wide, high, colour) {
    const { c } = this,
      size = high >= 20 ? 12 : high >= 13 ? 11 : 9.5;
    const fits = [
      [text, size],
      [String(number), size],
      [String(number), 9],
    ].find(([words, of]) => this.wide(words, of) + 2.5 <= wide);
    if (!fits) return;
    this.font(fits[1], 500);
    c.fillStyle = colour;
    c.textAlign = "center";
    c.fillText(fits[0], left + wide / 2, top + high / 2 + 0.75);
    c.textAlign = "start";
  }

  /** How wide a text is; the same few come again and again. */
  wide(text, size) {
    const key = `${size} ${text}`;
    if (this.wides.has(key)) return this.wides.get(key);
    this.font(size, 500);
    this.wides.set(key, this.c.measureText(text).width);
    return this.wides.get(key);
  }

  // --- more actions than pixels: each pixel's column shows what it holds

  pixels() {
    const wide = Math.ceil(this.geometry.width) + 2;
    return { F: new Float32Array(wide), B: new Float32Array(wide), W: new Float32Array(wide) };
  }

  pile(dense, side, i) {
    const { geometry: g } = this,
      op = side.op[i],
      from = g.x(side.start[i]),
      to = g.x(side.end[i]),
      pixel = Math.max(0, Math.floor(from));
    const half = side.half[i] ? 0.5 : 1;
    const add = (name, part) => {
      const over = Math.max(0, to - Math.max(pixel + 1, from));
      dense[name][pixel] += part * half * (to - from - over);
      if (over) dense[name][pixel + 1] += part * half * over;
    };
    if (op === "X") add("B", 0.74), add("W", 0.26);
    else add(op, 1);
  }

  heap(dense, top) {
    if (!this.c.drawImage) return this.heapAsShapes(dense, top);
    const { geometry: g } = this,
      wide = dense.F.length,
      image = new ImageData(wide, g.bar),
      pixels = new Uint32Array(image.data.buffer);
    const words = ["F", "B", "W"].map((name) => littleEndian(this.colours.shade(name).fill));
    for (let pixel = 0; pixel < wide; pixel++) {
      let at = 0,
        reached = 0;
      ["F", "B", "W"].forEach((name, k) => {
        reached += Math.min(1, dense[name][pixel]) * g.bar;
        for (const until = Math.min(g.bar, Math.round(reached)); at < until; at++) pixels[at * wide + pixel] = words[k];
      });
    }
    this.spare ??= document.createElement("canvas");
    Object.assign(this.spare, { width: wide, height: g.bar });
    this.spare.getContext("2d").putImageData(image, 0, 0);
    this.c.drawImage(this.spare, 0, top);
  }

  /** The same for a picture that is no canvas. */
  heapAsShapes(dense, top) {
    const { c, geometry: g } = this;
    for (let pixel = 0; pixel < dense.F.length; pixel++) {
      let at = top;
      for (const name of ["F", "B", "W"]) {
        const high = Math.min(1, dense[name][pixel]) * g.bar;
        if (high <= 0.05) continue;
        c.fillStyle = this.colours.shade(name).fill;
        c.fillRect(pixel, at, 1, Math.min(high, top + g.bar - at));
        at += high;
      }
    }
  }

  // --- what a rank keeps

  memory(side, rank, top) {
    const { c, geometry: g } = this,
      { times, amounts } = side.keeps[rank],
      [low, high] = g.view,
      most = this.app.most;
    const y = (amount) => top + g.strip - (amount / most) * g.strip,
      from = Math.max(lastAtOrBefore(times, low), 0),
      bottom = top + g.strip;
    if (!times.length || !most) return;
    c.beginPath();
    let at = g.x(Math.max(low, times[from]));
    c.moveTo(at, bottom);
    for (let k = from, peak = 0; k < times.length && times[k] <= high; k++) {
      const next = g.x(k + 1 < times.length ? times[k + 1] : amounts[k] ? side.makespan : times[k]);
      peak = Math.max(peak, amounts[k]);
      if (next - at < 0.5 && k + 1 < times.length) continue; // of what shares a pixel, the most
      c.lineTo(at, y(peak));
      c.lineTo(next, y(peak));
      [at, peak] = [next, 0];
    }
    c.lineTo(at, bottom);
    c.closePath();
    c.fillStyle = this.colours.memory;
    c.globalAlpha = this.colours.dark ? 0.75 : 0.6;
    c.fill();
    c.globalAlpha = 1;
    if (this.app.cap !== null) this.cap(y(this.app.cap), top, g.x(Math.min(high, side.makespan)));
    c.fillStyle = this.colours.ink;
    c.globalAlpha = 0.25;
    c.fillRect(g.left, bottom, g.x(Math.min(high, side.makespan)) - g.left, 1);
    c.globalAlpha = 1;
  }

  /** The line of what fits; what is over it turns red. */
  cap(y, top, right) {
    const { c, geometry: g } = this;
    c.save();
    c.clip();
    c.fillStyle = this.colours.over;
    c.fillRect(g.left, top - 1, right - g.left, Math.max(0, y - top + 1));
    c.restore();
    c.save();
    c.strokeStyle = this.colours.ink;
    c.setLineDash([3, 2]);
    c.beginPath();
    c.moveTo(g.left, Math.round(y) - 0.5);
    c.lineTo(right, Math.round(y) - 0.5);
    c.stroke();
    c.restore();
  }
}

/** "#rrggbb" as a pixel of an ImageData. */
function littleEndian(hex) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}
