// Goodput over the interval between checkpoints, with the intervals that the formulas give and the one that is set.

import { draw, make, say, setAll } from "../shared/dom.mjs";
import { percent } from "../shared/numbers.mjs";

const BOX = { left: 42, right: 14, top: 12, bottom: 40, height: 230 };
const TICKS = [
  [10, "10 s"],
  [60, "1 min"],
  [600, "10 min"],
  [3600, "1 h"],
  [36000, "10 h"],
  [345600, "4 days"],
];
const px = (value) => value.toFixed(1);

export class Curve {
  constructor(app) {
    this.app = app;
    this.grid = draw("g", { class: "pb-gp-grid" });
    this.line = draw("path", { class: "pb-gp-line" });
    this.marks = draw("g", { class: "pb-gp-marks" });
    this.chosen = draw("circle", { class: "pb-gp-chosen", r: 5.5 });
    this.svg = draw("svg", { role: "img" }, this.grid, this.line, this.marks, this.chosen);
    this.box = make("div", { class: "pb-gp-curve" }, this.svg);
    this.legend = make("p", { class: "pb-gp-legend" });
    this.root = make(
      "section",
      { "aria-label": "Goodput over the interval" },
      make("h3", { class: "pb-gp-heading" }, "Useful share of the time, by interval"),
      this.box,
      this.legend,
    );
    this.sizes = new ResizeObserver(() => this.box.clientWidth !== this.width && this.update());
    this.sizes.observe(this.box);
  }

  update() {
    const { curve, marks, chosen } = this.app.result;
    say(
      this.legend,
      "Filled: the interval that is set. A tick below the line: exact optimum; above it: Daly’s (long) and Young’s (short).",
    );
    this.width = this.box.clientWidth;
    if (!this.width) return;
    this.ends = [curve[0][0], curve.at(-1)[0]];
    setAll(this.svg, {
      viewBox: `0 0 ${this.width} ${BOX.height}`,
      height: BOX.height,
      "aria-label": this.aloud(chosen, marks),
    });
    this.drawGrid();
    setAll(this.line, { d: `M${curve.map((at) => this.point(at).join()).join("L")}` });
    this.marks.replaceChildren(...marks.map((mark) => this.mark(mark)));
    const [cx, cy] = this.point(chosen);
    setAll(this.chosen, { cx, cy });
  }

  mark({ name, interval, useful }) {
    const [x, y] = this.point([interval, useful]).map(Number),
      [from, to] = { exact: [3, 18], Daly: [-18, -3], Young: [-11, -3] }[name];
    return draw("line", { "data-mark": name, x1: px(x), x2: px(x), y1: px(y + from), y2: px(y + to) });
  }

  /** What lies beyond the axis is drawn at its end. */
  point([interval, useful]) {
    const [first, last] = this.ends,
      part = Math.log(interval / first) / Math.log(last / first);
    const x = BOX.left + Math.min(1, Math.max(0, part)) * (this.width - BOX.left - BOX.right);
    return [px(x), px(this.y(useful))];
  }

  y(useful) {
    return BOX.height - BOX.bottom - useful * (BOX.height - BOX.top - BOX.bottom);
  }

  drawGrid() {
    const rows = [0, 0.25, 0.5, 0.75, 1],
      below = BOX.height - BOX.bottom,
      text = (x, y, anchor, words) => draw("text", { x: px(Number(x)), y: px(y), "text-anchor": anchor }, words);
    this.grid.replaceChildren(
      ...rows.map((value) =>
        draw("line", { x1: BOX.left, x2: this.width - BOX.right, y1: px(this.y(value)), y2: px(this.y(value)) }),
      ),
      ...rows.map((value) => text(BOX.left - 7, this.y(value) + 4, "end", percent(value))),
      ...TICKS.map(([seconds, words]) => text(this.point([seconds, 0])[0], below + 16, "middle", words)),
      text((BOX.left + this.width - BOX.right) / 2, below + 34, "middle", "from one checkpoint to the next"),
    );
  }

  aloud([, useful], marks) {
    return `A curve with one maximum. Set: ${percent(useful)} useful. ${marks.map(({ name, text }) => `${name}: ${text}`).join(", ")}.`;
  }

  close() {
    this.sizes.disconnect();
  }
}
