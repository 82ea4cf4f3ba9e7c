// How the load evens out, update by update.

import { draw, make, setAll } from "../shared/dom.mjs";
import { rounded } from "../shared/numbers.mjs";
import { px, section } from "./pieces.mjs";

const BOX = { left: 30, right: 12, top: 10, bottom: 36, height: 190 };
const LINES = [
  ["imbalance", "busiest rank"],
  ["busiest_expert", "busiest expert"],
];

export class Curve {
  constructor(app) {
    this.app = app;
    [this.grid, this.lines] = ["grid", "lines"].map((name) => draw("g", { class: `pb-ro-${name}` }));
    this.marker = draw("line", { class: "pb-ro-marker" });
    this.svg = draw("svg", { role: "img" }, this.grid, this.marker, this.lines);
    this.box = make("div", { class: "pb-ro-curve" }, this.svg);
    const key = (kind, words) => make("span", {}, make("i", { class: "pb-ro-stroke", "data-line": kind }), words);
    this.root = section(
      "Busiest over mean, update by update",
      this.box,
      make("p", { class: "pb-ro-legend" }, ...LINES.map(([kind, words]) => key(kind, words))),
    );
    this.svg.addEventListener("click", (e) => this.click(e));
    this.sizes = new ResizeObserver(() => this.box.clientWidth !== this.width && (this.update(), this.show()));
    this.sizes.observe(this.box);
  }

  update() {
    const { pictures } = this.app.result;
    this.root.hidden = pictures.length < 2;
    this.width = this.box.clientWidth;
    if (!this.width) return;
    this.most = Math.max(2, Math.ceil(Math.max(...pictures.map(({ busiest_expert: expert }) => expert))));
    setAll(this.svg, {
      viewBox: `0 0 ${this.width} ${BOX.height}`,
      height: BOX.height,
      "aria-label": this.aloud(pictures),
    });
    this.drawGrid(pictures.length - 1);
    this.lines.replaceChildren(
      ...LINES.map(([name]) =>
        draw("path", {
          "data-line": name,
          d: `M${pictures.map((each, i) => `${px(this.x(i))},${px(this.y(each[name]))}`).join("L")}`,
        }),
      ),
      ...LINES.map(() => draw("circle", { r: 4 })),
    );
  }

  x(step) {
    return BOX.left + (step / this.app.steps) * (this.width - BOX.left - BOX.right);
  }

  y(value) {
    return BOX.height - BOX.bottom - ((value - 1) / (this.most - 1)) * (BOX.height - BOX.top - BOX.bottom);
  }

  drawGrid(last) {
    const every = Math.ceil((this.most - 1) / 5),
      rows = [],
      below = BOX.height - BOX.bottom;
    for (let value = 1; value <= this.most; value += every) rows.push(value);
    const text = (x, y, anchor, words) => draw("text", { x: px(x), y: px(y), "text-anchor": anchor }, words),
      steps = [0, last / 4, last / 2, (3 * last) / 4, last];
    this.grid.replaceChildren(
      ...rows.map((value) =>
        draw("line", { x1: BOX.left, x2: this.width - BOX.right, y1: px(this.y(value)), y2: px(this.y(value)) }),
      ),
      ...rows.map((value) => text(BOX.left - 7, this.y(value) + 4, "end", value)),
      ...steps.map((step) => text(this.x(step), below + 15, "middle", rounded(step))),
      text((BOX.left + this.width - BOX.right) / 2, below + 31, "middle", "updates of the biases"),
    );
  }

  show() {
    if (!this.width || !this.app.steps) return;
    const { picture, at } = this.app,
      x = px(this.x(at));
    setAll(this.marker, { x1: x, x2: x, y1: BOX.top, y2: BOX.height - BOX.bottom });
    LINES.forEach(([name], i) =>
      setAll(this.lines.children[LINES.length + i], { cx: x, cy: px(this.y(picture[name])) }),
    );
  }

  aloud(pictures) {
    return LINES.map(
      ([name, words]) => `${words} over mean: ${pictures.map((each) => each[name].toFixed(2)).join(", ")}`,
    ).join(". ");
  }

  /** A click goes to the nearest update. */
  click(event) {
    const x = event.clientX - this.svg.getBoundingClientRect().left;
    this.app.jump(Math.round(((x - BOX.left) / (this.width - BOX.left - BOX.right)) * this.app.steps));
  }

  close() {
    this.sizes.disconnect();
  }
}
