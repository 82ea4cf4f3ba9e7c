// A chart: axes, lines, a place that is set or pointed at by pointer or keyboard, and the numbers as a table.

import { draw, make, say, setAll, tableOf } from "./dom.mjs";
import { rounded } from "./numbers.mjs";

const KEYS = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, Home: -Infinity, End: Infinity };
const [LEFT, RIGHT, TOP, BOTTOM] = [56, 14, 12, 38]; // px beside the axes

/** Whole numbers from `first` to `last`, equally far apart, in at most `most` steps. */
export function evenly(first, last, most) {
  const every = Math.max(1, Math.ceil((last - first) / most));
  return Array.from({ length: Math.floor((last - first) / every) + 1 }, (_, i) => first + i * every);
}

/** An axis, with what need not be said of it, and `to`, from values to px; beyond a logarithmic one is its end. */
function axis({ at, ends = [at[0], at.at(-1)], log, ...given }, from, till) {
  const to = (value) => {
    const [here, low, high] = [value, ...ends].map(log ? Math.log : Number),
      part = (here - low) / (high - low);
    return Math.round(10 * (from + (log ? Math.min(1, Math.max(0, part)) : part) * (till - from))) / 10;
  };
  const [first, last] = ends.map(log ? Math.log2 : Number),
    ticks = evenly(Math.ceil(first), Math.floor(last), log ? 8 : 5);
  return { at, to, ticks: log ? ticks.map((power) => 2 ** power) : ticks, text: rounded, ...given };
}

/** A line as it looks, on the chart and beside its words. */
const strand = ({ kind, look }, d) => draw("path", { class: "pb-chart-line", "data-line": kind, style: look, d });

/** A subclass has a static `title` and `height`, `read(place)`, a sentence, and `plot()`: axes { ends, log, ticks, text, title }, x
    also `at`, a value for each place; `lines` { kind, look, dot, values or points, name, words of the legend }; the place that
    is set, `now`; px to the `right`; or null, and it says `empty`. It may have `rest()`, said where nobody points, `pick(place)`
    for a click or Enter, and `more()` to draw. */
export class Chart {
  at = null;

  constructor(app) {
    const { title } = this.constructor,
      { prefix } = app;
    this.app = app;
    if (app.jump) this.pick = (step) => app.jump(step);
    this.svg = draw("svg", { "aria-hidden": "true" });
    const label = `${title}: arrow keys read it${this.pick ? ", Enter goes there" : ""}`,
      slider = { role: "slider", tabindex: 0, "aria-label": label, "aria-readonly": "true", "aria-valuemin": 0 };
    this.stage = make("div", { class: "pb-chart", "data-picks": this.pick && "", ...slider }, this.svg);
    [this.reading, this.legend] = [`${prefix}-note`, "pb-chart-legend"].map((name) => make("p", { class: name }));
    this.table = make("div", { class: "pb-unseen" });
    const heading = make("h3", { class: `${prefix}-heading` }, title);
    this.root = make("section", { "aria-label": title }, heading, this.stage, this.reading, this.legend, this.table);
    const on = (types, handler) => types.map((type) => this.stage.addEventListener(type, handler));
    on(["pointermove", "pointerdown"], (e) => this.point(this.nearest(e)));
    on(["pointerleave", "blur"], () => this.point(null));
    on(["click"], (e) => this.pick?.(this.nearest(e)));
    on(["keydown"], (e) => this.key(e));
    this.sizes = new ResizeObserver(() => this.stage.clientWidth !== this.width && this.update());
    this.sizes.observe(this.stage);
  }

  update() {
    const plot = this.plot();
    this.stage.hidden = this.table.hidden = !plot;
    this.width = this.stage.clientWidth;
    this.x = null;
    if (plot) this.paint(plot);
    this.show();
  }

  paint({ x, y, lines, now, right = RIGHT }) {
    const { height } = this.constructor,
      [end, below] = [this.width - right, height - BOTTOM];
    const dotted = lines.filter(({ dot }) => dot);
    Object.assign(this, { set: now, end, x: axis(x, LEFT, end), y: axis(y, below, TOP) });
    if (this.at >= x.at.length) this.at = null;
    this.marker = draw("line", { class: "pb-chart-now", y1: TOP, y2: below });
    const dots = dotted.map(({ dot, kind }) => draw("circle", { r: dot, "data-line": kind }));
    this.dots = dotted.map(({ values }, i) => [dots[i], values.map(this.y.to)]);
    const drawn = lines.map((line) => strand(line, this.path(line)));
    drawn.splice(lines.indexOf(dotted[0]), 0, this.marker);
    setAll(this.svg, { viewBox: `0 0 ${this.width} ${height}`, height });
    this.svg.replaceChildren(this.grid(end, below), ...drawn, ...dots, ...(this.more?.() ?? []));
    const sample = (line) => draw("svg", { viewBox: "0 0 22 6" }, strand(line, "M0,3H22"));
    const said = lines.filter(({ words }) => words).map((line) => make("span", {}, sample(line), line.words));
    this.legend.replaceChildren(...said);
    this.tell(lines.filter(({ name }) => name));
  }

  grid(end, below) {
    const { x, y } = this,
      text = (at, down, anchor, words) => draw("text", { x: at, y: down, "text-anchor": anchor }, words);
    const rows = y.ticks.flatMap((value) => {
      const at = y.to(value);
      return [draw("line", { x1: LEFT, x2: end, y1: at, y2: at }), text(LEFT - 6, at + 4, "end", y.text(value))];
    });
    const columns = x.ticks.map((value) => text(x.to(value), below + 16, "middle", x.text(value))),
      title = text((LEFT + end) / 2, below + 33, "middle", x.title);
    return draw("g", { class: "pb-chart-grid" }, ...rows, ...columns, title);
  }

  path({ values, points = this.x.at.map((at, i) => [at, values[i]]) }) {
    return `M${points.map(([x, y]) => `${this.x.to(x)},${this.y.to(y)}`).join("L")}`;
  }

  tell(lines) {
    const { x, y } = this,
      head = [x.title, ...lines.map(({ name }) => name)];
    const rows = x.at.map((at, i) => [x.text(at), ...lines.map(({ values }) => y.text(values[i]))]);
    this.table.replaceChildren(tableOf(head, rows));
  }

  /** Stand where the reader points, or else at what is set, and say what is there. */
  show() {
    const { at, app, x } = this;
    if (!x) return say(this.reading, this.empty ?? "");
    this.now = app.at ?? this.set ?? null;
    const place = at ?? this.now,
      text = (at === null && this.rest?.()) || this.read(place);
    say(this.reading, text);
    const last = x.at.length - 1,
      across = x.to(x.at[place ?? 0]);
    setAll(this.stage, { "aria-valuemax": last, "aria-valuenow": place ?? 0, "aria-valuetext": text });
    setAll(this.marker, { x1: across, x2: across, visibility: place === null ? "hidden" : "visible" });
    for (const [dot, heights] of this.dots) setAll(dot, { cx: across, cy: heights[place] });
  }

  nearest({ clientX }) {
    const from = clientX - this.stage.getBoundingClientRect().left,
      away = this.x.at.map((at) => Math.abs(this.x.to(at) - from));
    return away.indexOf(Math.min(...away));
  }

  point(place) {
    this.at = place;
    this.show();
  }

  key(event) {
    const { at, now } = this,
      by = KEYS[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (by) this.point(Math.min(this.x.at.length - 1, Math.max(0, (at ?? now ?? -1) + by)));
    else if (event.key === "Enter" && at !== null) this.pick?.(at);
    else return;
    event.preventDefault();
  }

  close() {
    this.sizes.disconnect();
  }
}
