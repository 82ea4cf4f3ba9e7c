// An interactive timeline of a trace. `outputs` holds the trace as columns (see playbook_widgets/trace_viewer.py),
// `inputs` what the reader has set: { search, window: [start, end] in µs or null }.
// The pure part (decode, arrange, summaries, ticks) comes first; the Viewer class draws and listens.

const AXIS = 26, LANE_HEAD = 22, PAD = 6, MIN_WINDOW = 0.02; // px, px, px, µs

/** Columns to arrays in µs; `row` of each event is its lane's row at its nesting depth. */
export function decode(data) {
  const { name, lane, start, duration, category, args } = data.events;
  const n = name.length, begin = new Float64Array(n), end = new Float64Array(n);
  for (let i = 0, at = 0; i < n; i++) {
    at += start[i];
    begin[i] = at / 1000;
    end[i] = (at + duration[i]) / 1000;
  }
  const trace = { ...data, n, name, lane, begin, end, category, argsOf: args, low: n ? begin[0] : 0 };
  trace.high = n ? Math.max(trace.low + MIN_WINDOW, end.reduce((a, b) => Math.max(a, b), 0)) : 1;
  trace.lower = data.names.map((text) => text.toLowerCase());
  return Object.assign(trace, arrange(trace), { own: selfTimes(trace, trace.low, trace.high), ...neighbours(data.links) });
}

/** Nested events go one row down. Within a row events do not overlap and are sorted by start. */
function arrange(trace) {
  const open = trace.lanes.map(() => []), rowsOf = trace.lanes.map(() => []), depth = new Uint16Array(trace.n);
  for (let i = 0; i < trace.n; i++) {
    const stack = open[trace.lane[i]];
    while (stack.length && trace.end[stack.at(-1)] <= trace.begin[i]) stack.pop();
    depth[i] = stack.length;
    stack.push(i);
    (rowsOf[trace.lane[i]][depth[i]] ??= []).push(i);
  }
  return { depth, rowsOf };
}

/** Time of each event within [low, high] that no nested event covers: every moment counts once per lane. */
export function selfTimes(trace, low, high) {
  const own = new Float64Array(trace.n), open = trace.lanes.map(() => []);
  const clip = (a, b) => Math.max(0, Math.min(b, high) - Math.max(a, low));
  for (let i = 0; i < trace.n; i++) {
    const stack = open[trace.lane[i]];
    while (stack.length && trace.end[stack.at(-1)] <= trace.begin[i]) stack.pop();
    own[i] += clip(trace.begin[i], trace.end[i]);
    if (stack.length) own[stack.at(-1)] -= clip(trace.begin[i], Math.min(trace.end[i], trace.end[stack.at(-1)]));
    stack.push(i);
  }
  return own;
}

function neighbours([from, to]) {
  const links = new Map();
  const add = (a, b) => (links.get(a) ?? links.set(a, []).get(a)).push(b);
  from.forEach((a, i) => (add(a, to[i]), add(to[i], a)));
  return { linked: links, launches: new Set(from) };
}

/** Busy time (anything but idle) of each lane within [low, high]. */
export function busyPerLane(trace, low, high) {
  const busy = trace.lanes.map(() => 0), own = selfTimes(trace, low, high);
  const idle = trace.categories.findIndex(([name]) => name === "idle");
  for (let i = 0; i < trace.n; i++) if (trace.category[i] !== idle) busy[trace.lane[i]] += own[i];
  return busy;
}

const UNITS = [["s", 1e6], ["ms", 1e3], ["µs", 1], ["ns", 1e-3]];

/** 1234.5 µs is "1.23 ms". */
export function formatTime(us) {
  if (Math.abs(us) < 5e-4) return "0 µs";
  const [unit, size] = UNITS.find(([, s]) => Math.abs(us) >= s) ?? UNITS.at(-1);
  return `${+(us / size).toPrecision(Math.abs(us / size) >= 100 ? 4 : 3)} ${unit}`;
}

/** Round times between low and high, about one per `gap` pixels, and a formatter that gives them one unit. */
export function ticks(low, high, width, gap = 90) {
  const rough = ((high - low) * gap) / Math.max(width, 1), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const [unit, size] = UNITS.find(([, s]) => Math.max(Math.abs(high), step) >= s) ?? UNITS.at(-1);
  const digits = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9));
  const values = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high; k++) values.push(k * step);
  return { values, label: (v) => `${(v / size).toFixed(digits)} ${unit}` };
}

/** The `count` names with most summed time. */
export function topNames(trace, count) {
  const rows = new Map();
  for (let i = 0; i < trace.n; i++) {
    const row = rows.get(trace.name[i]) ?? { name: trace.names[trace.name[i]], category: trace.categories[trace.category[i]][0], count: 0, total: 0 };
    row.count += 1;
    row.total += trace.end[i] - trace.begin[i];
    rows.set(trace.name[i], row);
  }
  return [...rows.values()].sort((a, b) => b.total - a.total).slice(0, count);
}

/** Black or white, whichever reads better on `#rrggbb` (WCAG relative luminance). */
function textOn(hex) {
  const [r, g, b] = [1, 3, 5].map((i) => (parseInt(hex.slice(i, i + 2), 16) / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
}

function make(tag, attributes = {}, ...children) {
  const el = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) el.setAttribute(key, value);
  el.append(...children);
  return el;
}

let serial = 0;

class Viewer {
  constructor(model, el) {
    Object.assign(this, { model, el, hover: -1, focus: -1, range: null, hidden: new Set(), pointers: new Map(), measuring: false });
    this.stop = new AbortController();
    this.id = `pb-trace-${++serial}`;
    this.load();
    this.build();
    this.listen();
    this.search(this.model.get("inputs")?.search ?? "");
    this.resize();
  }

  load() {
    this.trace = decode(this.model.get("outputs"));
    this.colours = this.trace.categories.map(([, hex, kind]) => ({ fill: hex, text: kind === "work" && textOn(hex) }));
    const shown = this.model.get("inputs")?.window;
    this.view = shown ? [...shown] : [this.trace.low, this.trace.high];
  }

  // --- the page around the canvas

  build() {
    const t = this.trace;
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.tip = make("div", { class: "pb-trace-tip", hidden: "" });
    this.stage = make("div", {
      class: "pb-trace-stage", tabindex: "0", role: "application", "aria-roledescription": "timeline",
      "aria-label": `${t.title}: timeline of ${t.n} events on ${t.lanes.length} lanes, ${formatTime(t.high - t.low)}`,
      "aria-describedby": `${this.id}-help`,
    }, this.canvas, this.tip);
    this.live = make("div", { class: "pb-unseen", "aria-live": "polite" });
    this.status = make("span", { class: "pb-quiet" });
    this.rangeBox = make("div", { class: "pb-trace-range", role: "status", hidden: "" });
    const dropped = t.dropped ? `, the longest of ${t.n + t.dropped}` : "";
    const facts = `${t.n} events${dropped} · ${formatTime(t.high - t.low)}`;
    this.root = make("div", { class: "pb-w pb-trace", role: "group", "aria-label": t.title },
      make("div", { class: "pb-trace-head" }, make("span", { class: "pb-trace-title" }, t.title), make("span", { class: "pb-quiet" }, facts), this.status),
      this.tools(), this.legend(), this.stage, this.live, this.rangeBox, this.table(), this.help());
    this.el.replaceChildren(this.root);
  }

  tools() {
    this.find = make("input", { type: "search", placeholder: "part of a name", autocomplete: "off", spellcheck: "false" });
    const button = (text, label, action) => {
      const b = make("button", { type: "button", "aria-label": label, title: label }, text);
      b.addEventListener("click", action);
      return b;
    };
    this.measure = button("Measure", "Measure: drag over the timeline to sum up a range", () => this.setMeasuring(!this.measuring));
    this.measure.setAttribute("aria-pressed", "false");
    return make("div", { class: "pb-trace-tools" }, make("label", {}, "Find", this.find),
      button("−", "Zoom out", () => this.zoom(2)), button("+", "Zoom in", () => this.zoom(0.5)),
      button("All", "All: show the whole trace", () => this.reset()), this.measure);
  }

  legend() {
    const totals = this.trace.categories.map(() => 0);
    for (let i = 0; i < this.trace.n; i++) totals[this.trace.category[i]] += this.trace.own[i];
    const order = totals.map((_, c) => c).sort((a, b) => totals[b] - totals[a]);
    const item = (c) => {
      const [name, hex, kind] = this.trace.categories[c], swatch = make("i", { class: `pb-${kind}`, style: `--swatch:${hex}` });
      const b = make("button", { type: "button", "aria-pressed": "true", title: `Show or fade ${name}. Each moment counts once, for the innermost event.` }, swatch, `${name} ${formatTime(totals[c])}`);
      b.addEventListener("click", () => {
        this.hidden.has(c) ? this.hidden.delete(c) : this.hidden.add(c);
        b.setAttribute("aria-pressed", String(!this.hidden.has(c)));
        this.filter();
      });
      return make("li", {}, b);
    };
    return make("ul", { class: "pb-trace-legend", "aria-label": "Categories and their total time over all lanes" }, ...order.map(item));
  }

  help() {
    const keys = [["← →", "move"], ["+ −", "zoom"], ["0", "all"], [", .", "event before, after"], ["↑ ↓", "row"], ["Enter", "zoom to event"], ["M", "measure it"], ["Esc", "clear"]];
    const text = make("p", { class: "pb-quiet", id: `${this.id}-help` }, "Drag to move, pinch or Ctrl + wheel to zoom, Shift + drag to measure. Keys: ");
    keys.forEach(([key, what], i) => text.append(i ? ", " : "", make("kbd", {}, key), ` ${what}`));
    return make("details", { class: "pb-trace-help" }, make("summary", {}, "Keys and gestures"), text);
  }

  table() {
    const cells = (tag, texts) => texts.map((text, i) => make(tag, tag === "th" ? { scope: "col" } : i > 1 ? { class: "pb-number" } : {}, String(text)));
    const body = topNames(this.trace, 20).map((r) => make("tr", {}, ...cells("td", [r.name, r.category, r.count, formatTime(r.total), formatTime(r.total / r.count)])));
    const head = make("thead", {}, make("tr", {}, ...cells("th", ["name", "category", "events", "total", "mean"])));
    const scroll = make("div", { class: "pb-scroll", tabindex: "0", role: "region", "aria-label": "Events with most total time" }, make("table", {}, head, make("tbody", {}, ...body)));
    return make("details", {}, make("summary", {}, "The events with most total time, as a table"), scroll,
      make("p", { class: "pb-quiet" }, "Totals add up whole durations: an event nested in another counts in both."));
  }

  // --- what is matched, shown, told

  search(text) {
    this.find.value = text;
    this.query = text.trim().toLowerCase();
    this.filter();
  }

  filter() {
    const t = this.trace, named = t.lower.map((name) => name.includes(this.query));
    this.match = Uint8Array.from({ length: t.n }, (_, i) => +(named[t.name[i]] && !this.hidden.has(t.category[i])));
    let count = 0, total = 0;
    this.match.forEach((hit, i) => hit && ((count += 1), (total += t.end[i] - t.begin[i])));
    this.status.textContent = this.query ? `${count} found · ${formatTime(total)}` : "";
    this.redraw();
  }

  describe(i) {
    const t = this.trace;
    const facts = [["start", formatTime(t.begin[i] - t.low)], ["duration", formatTime(t.end[i] - t.begin[i])], ["category", t.categories[t.category[i]][0]], ["lane", t.lanes[t.lane[i]][0]]];
    const other = t.linked.get(i)?.[0];
    if (other !== undefined) {
      const launch = t.launches.has(i), delay = (t.begin[launch ? other : i] - t.begin[launch ? i : other]);
      facts.push([launch ? "launches" : "launched by", t.names[t.name[other]]], [launch ? "runs" : "waited", `${formatTime(delay)} ${launch ? "later" : "in the queue"}`]);
    }
    const args = t.argsOf[i] < 0 ? [] : Object.entries(t.args[t.argsOf[i]]);
    const words = (v) => (typeof v === "string" ? v : JSON.stringify(v)).slice(0, 160);
    return { name: t.names[t.name[i]], facts: [...facts, ...args.map(([k, v]) => [k, words(v)])] };
  }

  get current() {
    return this.hover >= 0 ? this.hover : this.focus;
  }

  showTip() {
    const i = this.current;
    const wanted = this.hover >= 0 || (i >= 0 && document.activeElement === this.stage);
    this.tip.hidden = !wanted || this.end(i) < this.view[0] || this.trace.begin[i] > this.view[1];
    if (this.tip.hidden) return;
    const { name, facts } = this.describe(i);
    const list = make("dl", {});
    for (const [key, value] of facts) list.append(make("dt", {}, key), make("dd", {}, value));
    this.tip.replaceChildren(make("strong", {}, name), list);
    const at = this.hover >= 0 ? this.pointerX : this.x(Math.max(this.trace.begin[i], this.view[0]));
    const left = Math.max(0, Math.min(at + 12, this.width - this.tip.offsetWidth));
    this.tip.style.left = `${left}px`;
    // Below the event; above it where the box would end first: JupyterLab cuts outputs off at their edge.
    const below = this.rowTop(i) + this.rowHeight + 4, above = this.rowTop(i) - this.tip.offsetHeight - 4;
    const room = this.root.getBoundingClientRect().bottom - this.stage.getBoundingClientRect().top;
    this.tip.style.top = `${below + this.tip.offsetHeight > room && above >= 0 ? above : below}px`;
  }

  end(i) {
    return this.trace.end[i];
  }

  setFocus(i) {
    this.focus = i;
    this.hover = -1;
    if (i < 0) return this.redraw();
    const { begin } = this.trace, [low, high] = this.view;
    if (this.end(i) < low || begin[i] > high) this.show((begin[i] + this.end(i) - high + low) / 2, (begin[i] + this.end(i) + high - low) / 2);
    const { name, facts } = this.describe(i);
    this.live.textContent = `${name}, ${facts.map(([k, v]) => `${k} ${v}`).join(", ")}`;
    this.redraw();
  }

  // --- moving through time

  show(low, high) {
    const { low: first, high: last } = this.trace, all = last - first;
    const span = Math.min(all, Math.max(MIN_WINDOW, high - low));
    const centre = Math.min(Math.max((low + high) / 2, first + span / 2), last - span / 2);
    this.view = [centre - span / 2, centre + span / 2];
    this.redraw();
    this.remember();
  }

  zoom(factor, at = (this.view[0] + this.view[1]) / 2) {
    const [low, high] = this.view, span = Math.min(this.trace.high - this.trace.low, Math.max(MIN_WINDOW, (high - low) * factor));
    const start = at - ((at - low) / (high - low)) * span;
    this.show(start, start + span);
  }

  pan(fraction) {
    const step = (this.view[1] - this.view[0]) * fraction;
    this.show(this.view[0] + step, this.view[1] + step);
  }

  reset() {
    this.show(this.trace.low, this.trace.high);
  }

  /** Tell the model, a little later, what the reader looks at. */
  remember() {
    clearTimeout(this.later);
    this.later = setTimeout(() => {
      const whole = this.view[1] - this.view[0] >= this.trace.high - this.trace.low;
      this.model.set("inputs", { search: this.find.value, window: whole ? null : this.view });
      this.model.save_changes();
    }, 300);
  }

  // --- measuring a range

  setMeasuring(on) {
    this.measuring = on;
    this.measure.setAttribute("aria-pressed", String(on));
    this.stage.dataset.mode = on ? "measure" : "move";
  }

  setRange(range) {
    this.range = range && [Math.min(...range), Math.max(...range)];
    this.rangeBox.hidden = !this.range;
    if (this.range) {
      const [low, high] = this.range, busy = busyPerLane(this.trace, low, high);
      const rows = busy.map((time, lane) => make("tr", {}, make("td", {}, this.trace.lanes[lane][0]), make("td", { class: "pb-number" }, `${Math.round((100 * time) / Math.max(high - low, 1e-9))} % busy`), make("td", { class: "pb-number" }, formatTime(time))));
      const clear = make("button", { type: "button" }, "Clear");
      clear.addEventListener("click", () => this.setRange(null));
      const words = `Selected ${formatTime(high - low)}, from ${formatTime(low - this.trace.low)} to ${formatTime(high - this.trace.low)} `;
      this.rangeBox.replaceChildren(words, clear, make("table", {}, make("tbody", {}, ...rows)));
    }
    this.redraw();
  }

  // --- geometry and drawing

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
    this.width = Math.max(this.stage.clientWidth, 50);
    this.redraw();
  }

  redraw() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.draw());
  }

  draw(ink = getComputedStyle(this.root).color) {
    if (!this.width) return;
    const scale = Math.max(devicePixelRatio || 1, this.printing ? 3 : 1), c = this.canvas.getContext("2d");
    this.canvas.width = Math.round(this.width * scale);
    this.canvas.height = Math.round(this.height * scale);
    this.canvas.style.height = `${this.height}px`;
    c.scale(scale, scale);
    this.font = getComputedStyle(this.root).fontFamily;
    this.ink = ink;
    this.drawAxis(c);
    this.drawRange(c);
    const busy = busyPerLane(this.trace, ...this.view);
    this.trace.lanes.forEach((_, lane) => this.drawLane(c, lane, busy[lane] / (this.view[1] - this.view[0])));
    this.drawLinks(c);
    this.drawOutline(c);
    this.showTip();
  }

  drawAxis(c) {
    const { values, label } = ticks(this.view[0] - this.trace.low, this.view[1] - this.trace.low, this.width, this.width < 500 ? 80 : 110);
    c.font = `12px ${this.font}`;
    c.fillStyle = c.strokeStyle = this.ink;
    c.textBaseline = "middle";
    for (const value of values) {
      const x = Math.round(this.x(value + this.trace.low)) + 0.5, text = label(value), half = c.measureText(text).width / 2;
      c.globalAlpha = 0.15;
      c.fillRect(x - 0.5, AXIS - 6, 1, this.height - AXIS + 6);
      c.globalAlpha = 0.85;
      c.fillText(text, Math.min(Math.max(x - half, 0), this.width - 2 * half), 9);
    }
    c.globalAlpha = 1;
  }

  drawLane(c, lane, busy) {
    const top = this.laneTop[lane], [name, kind] = this.trace.lanes[lane];
    c.fillStyle = this.ink;
    c.globalAlpha = 0.2;
    c.fillRect(0, top, this.width, 1);
    c.globalAlpha = 1;
    c.font = `600 12px ${this.font}`;
    c.fillText(name, 0, top + LANE_HEAD / 2 + 1);
    const after = c.measureText(`${name}  `).width;
    c.font = `12px ${this.font}`;
    c.globalAlpha = 0.85;
    c.fillText(`${kind === "host" ? "host thread" : "device stream"} · ${Math.round(100 * busy)} % busy`, after, top + LANE_HEAD / 2 + 1);
    this.trace.rowsOf[lane].forEach((row) => this.drawRow(c, row));
    c.globalAlpha = 1;
  }

  /** The events of one row that can be seen; those that would share a pixel are drawn once. */
  drawRow(c, row) {
    const { begin, end, category } = this.trace, [low, high] = this.view;
    const top = this.rowTop(row[0]), height = this.rowHeight - 2;
    let last = -1, lastKey = -1;
    for (let k = firstEndingAfter(end, row, low); k < row.length && begin[row[k]] <= high; k++) {
      const i = row[k], left = Math.max(this.x(begin[i]), -2), right = Math.min(this.x(end[i]), this.width + 2);
      const width = Math.max(right - left, 1), pixel = Math.floor(left), key = category[i] * 2 + this.match[i];
      if (width <= 1 && pixel === last && key === lastKey) continue;
      [last, lastKey] = [pixel, key];
      this.drawBox(c, i, left, top, width > 3 ? width - 0.75 : width, height);
      if (width > 34 && height > 11 && this.match[i]) this.drawName(c, i, Math.max(left, 0), Math.min(right, this.width), top + height / 2);
    }
  }

  /** Work is solid; a phase, which only brackets the work below it, is a tint under a bar. */
  drawBox(c, i, left, top, width, height) {
    const { fill, text } = this.colours[this.trace.category[i]], faded = this.match[i] ? 1 : 0.14;
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
    if (!this.range) return;
    const [left, right] = this.range.map((time) => this.x(time));
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
    const i = this.current, t = this.trace;
    for (const other of t.linked.get(i) ?? []) {
      const [from, to] = t.launches.has(i) ? [i, other] : [other, i];
      const [x0, y0, x1, y1] = [this.x(t.begin[from]), this.rowTop(from) + this.rowHeight - 2, this.x(t.begin[to]), this.rowTop(to)];
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
    for (const i of [this.current, ...(this.trace.linked.get(this.current) ?? [])]) {
      if (i < 0) continue;
      c.strokeStyle = this.ink;
      c.lineWidth = 2;
      c.strokeRect(this.x(this.trace.begin[i]) - 1, this.rowTop(i) - 1, Math.max(this.x(this.end(i)) - this.x(this.trace.begin[i]), 2) + 1, this.rowHeight);
    }
  }

  // --- pointer and keyboard

  /** The event at a point of the stage, or one within 3 px for the thin ones; -1 if there is none. */
  at(x, y) {
    const t = this.trace, lane = this.laneTop.findLastIndex((top) => top <= y);
    const row = lane < 0 ? undefined : t.rowsOf[lane][Math.floor((y - this.laneTop[lane] - LANE_HEAD) / this.rowHeight)];
    if (!row || y < this.laneTop[lane] + LANE_HEAD) return -1;
    const slack = this.time(3) - this.time(0), time = this.time(x);
    for (let k = firstEndingAfter(t.end, row, time - slack); k < row.length && t.begin[row[k]] <= time + slack; k++) {
      const sure = t.begin[row[k]] <= time && time <= t.end[row[k]], next = row[k + 1];
      if (this.match[row[k]] && (sure || next === undefined || t.begin[next] > time)) return row[k];
    }
    return -1;
  }

  listen() {
    const on = (target, type, handler, options = {}) => target.addEventListener(type, handler, { signal: this.stop.signal, ...options });
    on(this.find, "input", () => (this.search(this.find.value), this.remember()));
    on(this.find, "keydown", (e) => e.key === "Enter" && this.step(1));
    on(this.stage, "keydown", (e) => this.key(e));
    on(this.stage, "focus", () => this.redraw());
    on(this.stage, "blur", () => this.redraw());
    on(this.stage, "pointerdown", (e) => this.down(e));
    on(this.stage, "pointermove", (e) => this.move(e));
    on(this.stage, "pointerup", (e) => this.up(e));
    on(this.stage, "pointercancel", (e) => this.up(e));
    on(this.stage, "pointerleave", () => ((this.hover = -1), this.redraw()));
    on(this.stage, "dblclick", (e) => this.zoomTo(this.at(...this.point(e))));
    on(this.stage, "wheel", (e) => this.wheel(e), { passive: false });
    on(window, "beforeprint", () => ((this.printing = true), this.draw("#000")));
    on(window, "afterprint", () => ((this.printing = false), this.redraw()));
    on(matchMedia("(prefers-color-scheme: dark)"), "change", () => this.redraw());
    this.sizes = new ResizeObserver(() => this.resize());
    this.sizes.observe(this.stage);
    this.theme = new MutationObserver(() => this.redraw());
    for (const el of [document.documentElement, document.body]) this.theme.observe(el, { attributes: true, attributeFilter: ["data-theme", "data-mode", "class", "data-jp-theme-light"] });
    this.reload = () => (this.load(), this.build(), this.listenAgain());
    this.model.on("change:outputs", this.reload);
  }

  /** New outputs bring new elements: start over on them. */
  listenAgain() {
    this.close();
    this.stop = new AbortController();
    Object.assign(this, { hover: -1, focus: -1, range: null, hidden: new Set() });
    this.listen();
    this.search("");
    this.resize();
  }

  close() {
    this.stop.abort();
    this.sizes.disconnect();
    this.theme.disconnect();
    this.model.off("change:outputs", this.reload);
    cancelAnimationFrame(this.frame);
    clearTimeout(this.later);
  }

  point(e) {
    const box = this.stage.getBoundingClientRect();
    return [e.clientX - box.left, e.clientY - box.top];
  }

  down(e) {
    if (e.button) return;
    const [x] = this.point(e);
    this.stage.setPointerCapture(e.pointerId);
    this.pointers.set(e.pointerId, x);
    this.start = { x, time: this.time(x), view: [...this.view], moved: false, measure: this.measuring || e.shiftKey };
    if (this.pointers.size === 2) this.pinch = { span: this.spread(), view: [...this.view], times: [...this.pointers.values()].map((p) => this.time(p)) };
  }

  spread() {
    const [a, b] = [...this.pointers.values()];
    return Math.max(Math.abs(a - b), 10);
  }

  move(e) {
    const [x, y] = this.point(e);
    this.pointerX = x;
    if (!this.pointers.has(e.pointerId)) return this.setHover(this.at(x, y));
    this.pointers.set(e.pointerId, x);
    if (this.pointers.size === 2) return this.pinchTo();
    this.start.moved ||= Math.abs(x - this.start.x) > 3;
    if (!this.start.moved) return;
    this.hover = -1;
    if (this.start.measure) return this.setRange([this.start.time, this.time(x)]);
    this.stage.dataset.dragging = "";
    const shift = ((this.start.x - x) / this.width) * (this.start.view[1] - this.start.view[0]);
    this.show(this.start.view[0] + shift, this.start.view[1] + shift);
  }

  /** Two fingers keep the times they touched under them. */
  pinchTo() {
    this.start.moved = true;
    const [low, high] = this.pinch.view, span = ((high - low) * this.pinch.span) / this.spread();
    const [a, b] = [...this.pointers.values()], middle = (a + b) / 2, time = (this.pinch.times[0] + this.pinch.times[1]) / 2;
    const start = time - (middle / this.width) * span;
    this.show(start, start + span);
  }

  up(e) {
    const known = this.pointers.delete(e.pointerId);
    delete this.stage.dataset.dragging;
    if (known && !this.start.moved && e.type === "pointerup") this.setFocus(this.at(...this.point(e)));
  }

  setHover(i) {
    if (i === this.hover && i < 0) return;
    this.hover = i;
    this.redraw();
  }

  wheel(e) {
    const sideways = Math.abs(e.deltaX) > Math.abs(e.deltaY) || e.shiftKey;
    if (!(e.ctrlKey || e.metaKey || sideways)) return; // a plain wheel scrolls the page
    e.preventDefault();
    if (e.ctrlKey || e.metaKey) this.zoom(Math.exp(Math.max(-1, Math.min(1, e.deltaY / 120))), this.time(this.point(e)[0]));
    else this.pan((e.deltaX || e.deltaY) / this.width);
  }

  key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const actions = {
      ArrowLeft: () => this.pan(-0.15), ArrowRight: () => this.pan(0.15), ArrowUp: () => this.climb(-1), ArrowDown: () => this.climb(1),
      "+": () => this.zoom(0.5, this.anchor()), "=": () => this.zoom(0.5, this.anchor()), "-": () => this.zoom(2, this.anchor()), 0: () => this.reset(),
      ".": () => this.step(1), ",": () => this.step(-1), Enter: () => this.zoomTo(this.focus), m: () => this.measureFocus(), M: () => this.measureFocus(),
      Escape: () => (this.setMeasuring(false), this.setRange(null), this.setFocus(-1)),
    };
    if (!actions[e.key]) return;
    e.preventDefault();
    actions[e.key]();
  }

  anchor() {
    const i = this.focus, [low, high] = this.view;
    const middle = i < 0 ? NaN : (Math.max(this.trace.begin[i], low) + Math.min(this.end(i), high)) / 2;
    return middle >= low && middle <= high ? middle : (low + high) / 2;
  }

  measureFocus() {
    this.setRange(this.focus < 0 ? [...this.view] : [this.trace.begin[this.focus], this.end(this.focus)]);
  }

  zoomTo(i) {
    if (i < 0) return;
    const pad = Math.max((this.end(i) - this.trace.begin[i]) * 0.1, MIN_WINDOW / 4);
    this.show(this.trace.begin[i] - pad, this.end(i) + pad);
  }

  /** Focus the next (or previous) matching event of the row; with a search, of the whole trace. */
  step(direction) {
    const row = this.query || this.focus < 0 ? Array.from({ length: this.trace.n }, (_, i) => i) : this.rowOf(this.focus);
    const seen = this.focus < 0 ? (direction > 0 ? -1 : row.length) : row.indexOf(this.focus);
    for (let k = seen + direction; k >= 0 && k < row.length; k += direction) {
      const visible = this.focus >= 0 || this.query || this.end(row[k]) >= this.view[0];
      if (this.match[row[k]] && visible) return this.setFocus(row[k]);
    }
  }

  rowOf(i) {
    return this.trace.rowsOf[this.trace.lane[i]][this.trace.depth[i]];
  }

  /** Focus the event nearest in time on the row above or below, across lanes. */
  climb(direction) {
    if (this.focus < 0) return this.step(1);
    const rows = this.trace.rowsOf.flat(), middle = (this.trace.begin[this.focus] + this.end(this.focus)) / 2;
    for (let k = rows.indexOf(this.rowOf(this.focus)) + direction; k >= 0 && k < rows.length; k += direction) {
      const away = (i) => Math.max(this.trace.begin[i] - middle, middle - this.end(i), 0);
      const near = rows[k].filter((i) => this.match[i]).reduce((best, i) => (best < 0 || away(i) < away(best) ? i : best), -1);
      if (near >= 0) return this.setFocus(near);
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

/** The first place in `row` whose event ends at or after `time` (rows do not overlap, so ends are sorted). */
function firstEndingAfter(end, row, time) {
  let low = 0, high = row.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (end[row[middle]] < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

export default {
  render({ model, el }) {
    const viewer = new Viewer(model, el);
    return () => viewer.close();
  },
};
