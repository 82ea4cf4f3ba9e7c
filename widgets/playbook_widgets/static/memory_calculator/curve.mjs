// Memory against sequence length.

import { draw, make, say, setAll } from "../shared/dom.mjs";
import { count, grouped } from "../shared/numbers.mjs";

/** 8192 tokens are "8k". */
const tokens = (n) =>
  n >= 2 ** 20 && n % 2 ** 20 === 0
    ? `${n / 2 ** 20}M`
    : n >= 1024 && n % 1024 === 0
      ? `${n / 1024}k`
      : n >= 1e4
        ? count(n)
        : String(n);

/** The largest round number that is at most `value`. */
function round(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [8, 6, 5, 4, 3, 2, 1].find((m) => m * power <= value) * power;
}

/** The sequence length at which `curve` meets `capacity`: memory is close to linear between two points. */
function crossing({ seq, peak }, capacity) {
  const over = peak.findIndex((size) => size > capacity);
  if (over < 1) return over < 0 ? Infinity : 0;
  const [s0, s1, p0, p1] = [seq[over - 1], seq[over], peak[over - 1], peak[over]];
  return s0 + ((capacity - p0) * (s1 - s0)) / (p1 - p0);
}

const CURVE = { height: 190, left: 46, right: 10, top: 18, bottom: 22 };

export class Curve {
  constructor(app) {
    this.app = app;
    this.areas = app.constants.categories.map(([, , , colour]) => draw("path", { fill: colour }));
    this.areasOfB = draw("path", { class: "pb-mc-other", fill: "none" });
    this.veil = draw("rect", { class: "pb-mc-veil" }); // dims what is above the limit
    this.line = draw("line", { class: "pb-mc-limit" });
    this.limit = draw("text", { "text-anchor": "end" });
    this.usable = draw("line", { class: "pb-mc-limit pb-mc-usable" }); // above it is what should stay free
    this.marker = draw("line", { class: "pb-mc-now" });
    this.dot = draw("circle", { r: 4, class: "pb-mc-dot" });
    this.cursor = draw("line", { class: "pb-mc-cursor" });
    this.axis = draw("g");
    this.clip = draw("rect");
    const clip = `${app.id}-clip`;
    this.svg = draw(
      "svg",
      { "aria-hidden": "true", focusable: "false" },
      draw("clipPath", { id: clip }, this.clip),
      this.axis,
      draw("g", { "clip-path": `url(#${clip})` }, ...this.areas, this.veil, this.areasOfB),
      this.line,
      this.usable,
      this.limit,
      this.marker,
      this.dot,
      this.cursor,
    );
    this.stage = make(
      "div",
      {
        class: "pb-mc-plot",
        tabindex: "0",
        role: "slider",
        "aria-label": "Memory at a sequence length; arrow keys read other lengths",
        "aria-readonly": "true",
      },
      this.svg,
    );
    this.reading = make("p", { class: "pb-mc-note" });
    this.root = make(
      "section",
      { class: "pb-mc-curve", "aria-label": "Memory against sequence length" },
      make("h3", { class: "pb-mc-heading" }, "Against sequence length"),
      this.reading,
      this.stage,
    );
    this.at = null;
    this.listen();
  }

  listen() {
    const on = (type, handler) => this.stage.addEventListener(type, handler);
    on("pointermove", (e) => this.point(e));
    on("pointerdown", (e) => this.point(e));
    on("pointerleave", () => this.read(null));
    on("blur", () => this.read(null));
    on("keydown", (e) => this.key(e));
    this.sizes = new ResizeObserver(() => this.update());
    this.sizes.observe(this.stage);
  }

  update() {
    const { app } = this,
      result = app.current().result;
    this.root.hidden = !result || result.curve.seq.length < 2;
    const width = this.stage.clientWidth;
    if (this.root.hidden || !width) return;
    Object.assign(this, { result, curve: result.curve, width });
    const { seq } = this.curve,
      { height } = CURVE;
    this.low = Math.log2(seq[0]);
    this.span = Math.log2(seq.at(-1)) - this.low;
    const now = this.curve.peak[seq.indexOf(result.values.seq)] ?? result.peak;
    this.top = Math.min(Math.max(result.memory * 1.4, now * 1.3), Math.max(...this.curve.peak) * 1.1);
    setAll(this.svg, { viewBox: `0 0 ${width} ${height}`, height });
    this.areasAndLines(now);
    this.axes();
    this.read(this.at);
  }

  x(seq) {
    return CURVE.left + ((Math.log2(seq) - this.low) / this.span) * (this.width - CURVE.left - CURVE.right);
  }

  y(size) {
    return CURVE.height - CURVE.bottom - (size / this.top) * (CURVE.height - CURVE.top - CURVE.bottom);
  }

  areasAndLines(now) {
    const { app, curve, result } = this,
      below = curve.seq.map(() => 0),
      at = curve.seq.map((s) => this.x(s).toFixed(1));
    const edge = (sizes) => sizes.map((size, i) => `${at[i]},${this.y(size).toFixed(1)}`);
    app.constants.categories.forEach(([category], k) => {
      const under = edge(below).reverse();
      curve[category].forEach((size, i) => (below[i] += size));
      this.areas[k].setAttribute("d", `M${edge(below).join("L")}L${under.join("L")}Z`);
    });
    const other = app.inputs.configs.length === 2 ? app.last[1 - app.side]?.curve : null;
    this.areasOfB.setAttribute(
      "d",
      other
        ? `M${other.seq.map((s, i) => `${this.x(s).toFixed(1)},${this.y(other.peak[i]).toFixed(1)}`).join("L")}`
        : "",
    );
    const limit = this.y(result.memory),
      usable = this.y(result.usable),
      x = this.x(result.values.seq),
      visible = result.memory <= this.top;
    setAll(this.clip, {
      x: CURVE.left,
      y: CURVE.top - 6,
      width: this.width - CURVE.left - CURVE.right,
      height: CURVE.height - CURVE.top - CURVE.bottom + 6,
    });
    setAll(this.veil, { x: CURVE.left, y: 0, width: this.width, height: visible ? Math.max(0, limit) : 0 });
    setAll(this.line, {
      x1: CURVE.left,
      x2: this.width - CURVE.right,
      y1: limit,
      y2: limit,
      visibility: visible ? "visible" : "hidden",
    });
    setAll(this.usable, {
      x1: CURVE.left,
      x2: this.width - CURVE.right,
      y1: usable,
      y2: usable,
      visibility: visible && result.reserve ? "visible" : "hidden",
    });
    setAll(this.limit, { x: CURVE.left - 5, y: limit + 4, visibility: visible ? "visible" : "hidden" });
    say(this.limit, app.bytes(result.memory));
    setAll(this.marker, { x1: x, x2: x, y1: this.y(now), y2: CURVE.height - CURVE.bottom });
    setAll(this.dot, { cx: x, cy: this.y(now) });
  }

  axes() {
    const { seq } = this.curve,
      room = (this.width - CURVE.left) / Math.max(1, this.span),
      every = room < 44 ? 2 : 1,
      y = CURVE.height - CURVE.bottom;
    const powers = [];
    for (let k = Math.ceil(this.low - 1e-9); k <= this.low + this.span + 1e-9; k += every) powers.push(2 ** k);
    const label = (s) =>
      draw("text", { x: this.x(s), y: y + 15, "text-anchor": s === seq.at(-1) ? "end" : "middle" }, tokens(s));
    const tick = this.result.memory > this.top ? [round(this.top * 0.9)] : []; // the limit is a label of its own
    const zero =
      y - this.y(this.result.memory) < 14
        ? []
        : [draw("text", { x: CURVE.left - 5, y: y + 4, "text-anchor": "end" }, "0")]; // the limit stands there
    this.axis.replaceChildren(
      ...tick.map((size) =>
        draw("text", { x: CURVE.left - 5, y: this.y(size) + 4, "text-anchor": "end" }, this.app.bytes(size)),
      ),
      draw("line", { x1: CURVE.left, x2: this.width - CURVE.right, y1: y, y2: y, class: "pb-mc-axis" }),
      ...zero,
      ...powers.map(label),
    );
  }

  /** Say the memory at the `index`-th length of the curve, or the length that is set and the longest that fits. */
  read(index) {
    this.at = index;
    const { app, curve, result } = this;
    if (!curve) return;
    const shown = index ?? Math.max(0, curve.seq.indexOf(result.values.seq)),
      x = this.x(curve.seq[shown]);
    setAll(this.cursor, {
      x1: x,
      x2: x,
      y1: CURVE.top - 6,
      y2: CURVE.height - CURVE.bottom,
      visibility: index === null ? "hidden" : "visible",
    });
    const spare = result.memory - curve.peak[shown],
      verdict = spare < 0 ? `${app.bytes(-spare)} too much` : `${app.bytes(spare)} to spare`;
    const text = `${tokens(curve.seq[shown])} tokens: ${app.bytes(curve.peak[shown])}, ${verdict}`;
    say(this.reading, index === null ? this.longest() : `${text}; activations ${app.bytes(curve.activations[shown])}.`);
    setAll(this.stage, {
      "aria-valuemin": 0,
      "aria-valuemax": curve.seq.length - 1,
      "aria-valuenow": shown,
      "aria-valuetext": text,
    });
  }

  longest() {
    const { memory, usable, reserve } = this.result,
      length = crossing(this.curve, usable);
    const limit = reserve
      ? `${this.app.bytes(usable)}, which leaves ${this.app.bytes(reserve)} free`
      : this.app.bytes(memory);
    if (length === 0) return `More than ${limit}, at every length shown.`;
    return length === Infinity
      ? `Within ${limit}, at every length shown.`
      : `Within ${limit}, up to about ${grouped(+length.toPrecision(2))} tokens.`;
  }

  point(event) {
    if (!this.curve) return;
    const x = event.clientX - this.stage.getBoundingClientRect().left,
      away = this.curve.seq.map((s) => Math.abs(this.x(s) - x));
    this.read(away.indexOf(Math.min(...away)));
  }

  key(event) {
    const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, Home: -1e3, End: 1e3 }[event.key];
    if (!by || !this.curve) return;
    event.preventDefault();
    const from = this.at ?? this.curve.seq.indexOf(this.result.values.seq);
    this.read(Math.min(this.curve.seq.length - 1, Math.max(0, from + by)));
  }
}
