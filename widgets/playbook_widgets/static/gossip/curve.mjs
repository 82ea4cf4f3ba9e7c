// The disagreement that is left after each step, on a logarithmic axis, beside what the spectral gap allows.

import { draw, make, set, setAll } from "../shared/dom.mjs";
import { NARROW, rounded, share } from "../shared/numbers.mjs";
import { px } from "./pieces.mjs";

const BOX = { left: 46, right: 14, top: 12, bottom: 38, height: 300 },
  FLOOR = 1e-4;

export class Curve {
  constructor(app) {
    this.app = app;
    [this.grid, this.lines] = ["grid", "lines"].map((name) => draw("g", { class: `pb-go-${name}` }));
    this.marker = draw("line", { class: "pb-go-marker" });
    this.dot = draw("circle", { class: "pb-go-dot", r: 5 });
    this.svg = draw("svg", { role: "img" }, this.grid, this.marker, this.lines, this.dot);
    this.box = make("div", { class: "pb-go-curve" }, this.svg);
    this.legend = make("p", { class: "pb-go-legend" });
    this.root = make(
      "section",
      { "aria-label": "Disagreement, step by step" },
      make("h3", { class: "pb-go-heading" }, "Disagreement, step by step"),
      this.box,
      this.legend,
    );
    this.svg.addEventListener("click", (e) => this.click(e));
    this.sizes = new ResizeObserver(() => this.box.clientWidth !== this.width && (this.update(), this.show()));
    this.sizes.observe(this.box);
  }

  update() {
    const { left, rate, epsilon, values } = this.app.result,
      bound = values.topology === "matching" ? "on average over matchings" : "the most that the spectral gap leaves";
    const key = (kind, words) => make("span", {}, make("i", { class: "pb-go-stroke", "data-line": kind }), words);
    this.legend.replaceChildren(
      key("left", "measured"),
      ...(rate ? [key("bound", `ρᵏ, ${bound}`)] : []),
      key("epsilon", `ε = ${epsilon}`),
    );
    this.width = this.box.clientWidth;
    if (!this.width) return;
    setAll(this.svg, { viewBox: `0 0 ${this.width} ${BOX.height}`, height: BOX.height, "aria-label": this.aloud() });
    this.drawGrid();
    const last = rate ? Math.min(this.app.steps, Math.log(FLOOR) / Math.log(rate)) : 0,
      edge = [BOX.left, this.width - BOX.right];
    const line = (kind, points) =>
      draw("path", { "data-line": kind, d: `M${points.map((at) => at.map(px)).join("L")}` });
    this.lines.replaceChildren(
      line(
        "epsilon",
        edge.map((x) => [x, this.y(epsilon)]),
      ),
      line(
        "left",
        left.map((part, step) => [this.x(step), this.y(part)]),
      ),
      ...(last
        ? [
            line("bound", [
              [this.x(0), this.y(1)],
              [this.x(last), this.y(rate ** last)],
            ]),
          ]
        : []),
    );
  }

  x(step) {
    return BOX.left + (step / this.app.steps) * (this.width - BOX.left - BOX.right);
  }

  /** What is less than the axis shows is drawn at its end. */
  y(part) {
    const down = Math.log(Math.max(part, FLOOR)) / Math.log(FLOOR);
    return BOX.top + down * (BOX.height - BOX.top - BOX.bottom);
  }

  drawGrid() {
    const rows = [1, 0.1, 0.01, 0.001, 0.0001],
      below = BOX.height - BOX.bottom,
      { steps } = this.app,
      every = Math.max(1, Math.ceil(steps / 5)),
      ticks = [];
    for (let step = 0; step <= steps; step += every) ticks.push(step);
    const text = (x, y, anchor, words) => draw("text", { x: px(x), y: px(y), "text-anchor": anchor }, words);
    this.grid.replaceChildren(
      ...rows.map((part) =>
        draw("line", { x1: BOX.left, x2: this.width - BOX.right, y1: px(this.y(part)), y2: px(this.y(part)) }),
      ),
      ...rows.map((part) => text(BOX.left - 6, this.y(part) + 4, "end", `${rounded(100 * part)}${NARROW}%`)),
      ...ticks.map((step) => text(this.x(step), below + 16, "middle", step)),
      text((BOX.left + this.width - BOX.right) / 2, below + 33, "middle", "steps"),
    );
  }

  show() {
    if (!this.width) return;
    const { at, result } = this.app,
      x = px(this.x(at));
    setAll(this.marker, { x1: x, x2: x, y1: BOX.top, y2: BOX.height - BOX.bottom });
    setAll(this.dot, { cx: x, cy: px(this.y(result.left[at])) });
    set(this.svg, "aria-label", this.aloud());
  }

  aloud() {
    const { at, steps, result } = this.app;
    return `A curve on a logarithmic axis, over ${steps} steps. After ${at} of them ${share(result.left[at], 1)} of the disagreement is left${result.rate ? `, ρ to that power is ${share(result.rate ** at, 1)}` : ""}.`;
  }

  /** A click goes to the nearest step. */
  click(event) {
    const x = event.clientX - this.svg.getBoundingClientRect().left;
    this.app.jump(Math.round(((x - BOX.left) / (this.width - BOX.left - BOX.right)) * this.app.steps));
  }

  close() {
    this.sizes.disconnect();
  }
}
