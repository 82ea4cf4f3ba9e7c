// Who sends and who receives when, to the scale of time.

import { draw, make, set, setAll } from "../shared/dom.mjs";
import { percent, seconds } from "../shared/numbers.mjs";
import { px } from "./curves.mjs";
import { section, swatch } from "./pieces.mjs";

const STRIP = { left: 30, right: 46, top: 20, bottom: 20 };

export class Strip {
  constructor(app) {
    this.app = app;
    this.band = draw("rect", { class: "pb-ca-band" });
    this.cursor = draw("line", { class: "pb-ca-cursor" });
    [this.rows, this.bars, this.axis] = ["rows", "bars", "axis"].map((name) => draw("g", { class: `pb-ca-${name}` }));
    this.svg = draw("svg", { role: "img" }, this.band, this.rows, this.bars, this.axis, this.cursor);
    this.box = make("div", { class: "pb-ca-strip" }, this.svg);
    const items = [
      ["wire", "sends"],
      ["part", "receives"],
      ["wait", "latency α before the bytes flow"],
      ["idle", "idle"],
    ];
    const legend = make("p", { class: "pb-ca-legend" }, ...items.map((item) => swatch(...item)));
    this.root = section("Who is busy, who waits", this.box, legend);
    this.svg.addEventListener("click", (e) => this.click(e));
    this.sizes = new ResizeObserver(() => this.box.clientWidth !== this.width && this.update());
    this.sizes.observe(this.box);
  }

  update() {
    const { app } = this,
      { result } = app,
      { ranks } = result.values;
    this.width = this.box.clientWidth;
    if (!this.width) return;
    this.high = ranks > 8 ? 14 : 20;
    this.height = STRIP.top + ranks * this.high + STRIP.bottom;
    this.scale = (this.width - STRIP.left - STRIP.right) / result.seconds;
    set(this.svg, "viewBox", `0 0 ${this.width} ${this.height}`);
    set(this.svg, "height", this.height);
    set(
      this.svg,
      "aria-label",
      result.busy.map((busy, rank) => `Rank ${rank} is busy ${percent(busy / result.seconds)} of the time`).join(". "),
    );
    this.drawRows();
    this.bars.replaceChildren(...result.steps.map((step) => this.step(step)));
    this.drawAxis();
    this.show();
  }

  x(time) {
    return STRIP.left + time * this.scale;
  }

  drawRows() {
    const { result } = this.app,
      middle = (rank) => STRIP.top + (rank + 0.5) * this.high + 4,
      width = this.width - STRIP.left - STRIP.right;
    this.rows.replaceChildren(
      ...result.busy.flatMap((busy, rank) => [
        draw("rect", {
          class: "pb-ca-track",
          x: STRIP.left,
          y: STRIP.top + rank * this.high + 1,
          width: px(width),
          height: this.high - 2,
        }),
        draw("text", { x: STRIP.left - 6, y: middle(rank), "text-anchor": "end" }, rank),
        draw("text", { x: this.width, y: middle(rank), "text-anchor": "end" }, percent(busy / result.seconds)),
      ]),
    );
  }

  /** The messages of one step: sent in the upper half of a rank's row, received in the lower; a thin line while α passes. */
  step({ messages }) {
    const { intra, inter } = this.app.result.network;
    const half = (this.high - 4) / 2,
      paths = { sends: "", receives: "", sendsWait: "", receivesWait: "" };
    const box = (x0, x1, y, height) =>
      `M${x0.toFixed(2)},${px(y)}H${Math.max(x1, x0 + 0.2).toFixed(2)}v${px(height)}H${x0.toFixed(2)}z`;
    for (const m of messages) {
      const { alpha } = this.app.together(m.from, m.to) ? intra : inter;
      const [x0, x1, x2] = [m.start, Math.min(m.end, m.start + alpha), m.end].map((time) => this.x(time));
      const cut = Math.min(0.75, (x2 - x0) / 4); // so that one message does not run into the next
      for (const [rank, kind, shift] of [
        [m.from, "sends", 0],
        [m.to, "receives", half],
      ]) {
        const y = STRIP.top + rank * this.high + 2 + shift;
        paths[kind] += box(x1, x2 - cut, y + 0.5, half - 1);
        paths[`${kind}Wait`] += box(x0 + cut, x1, y + half / 2 - 1, 2);
      }
    }
    return draw("g", {}, ...Object.entries(paths).map(([kind, d]) => draw("path", { class: `pb-ca-${kind}`, d })));
  }

  drawAxis() {
    const { result } = this.app,
      text = (x, y, anchor, words) => draw("text", { x: px(x), y, "text-anchor": anchor }, words),
      above = STRIP.top - 7,
      below = this.height - 5;
    const rough = result.seconds / Math.max(2, (this.width - STRIP.left - STRIP.right) / 90),
      power = 10 ** Math.floor(Math.log10(rough));
    const every = [1, 2, 5, 10].find((m) => m * power >= rough) * power,
      ticks = Math.floor(result.seconds / every - 0.35); // the last leaves room for the end
    const numbers = []; // of the steps, as far as there is room for them
    result.steps.forEach((step, i) => {
      const x = this.x((step.start + step.end) / 2);
      if (x - (numbers.at(-1)?.x ?? 0) >= 20) numbers.push({ x, i });
    });
    this.axis.replaceChildren(
      text(STRIP.left, below, "start", "0"),
      text(this.x(result.seconds), below, "end", seconds(result.seconds)),
      text(this.width, above, "end", "busy"),
      ...Array.from({ length: Math.max(0, ticks) }, (_, i) =>
        text(this.x((i + 1) * every), below, "middle", seconds((i + 1) * every)),
      ),
      ...numbers.map(({ x, i }) => text(x, above, "middle", i + 1)),
    );
  }

  show() {
    const { app } = this,
      { result, at } = app,
      step = result.steps[at];
    if (!this.width) return;
    [...this.bars.children].forEach((el, i) => set(el, "data-when", i < at ? "past" : i === at ? "now" : "next"));
    set(this.band, "visibility", step ? "visible" : "hidden");
    const { start, end } = step ?? { start: 0, end: 0 },
      height = this.height - STRIP.top - STRIP.bottom + 2;
    setAll(this.band, { x: px(this.x(start)), y: STRIP.top - 1, width: px((end - start) * this.scale), height });
    this.frame();
  }

  frame() {
    const { app } = this,
      { result } = app,
      step = result.steps[app.at];
    const x = px(this.x(step ? step.start + app.progress * (step.end - step.start) : result.seconds));
    setAll(this.cursor, { x1: x, x2: x, y1: STRIP.top - 3, y2: this.height - STRIP.bottom + 3 });
  }

  click(event) {
    const { result } = this.app,
      time = (event.clientX - this.svg.getBoundingClientRect().left - STRIP.left) / this.scale;
    const found = result.steps.findIndex((step) => time >= step.start && time < step.end);
    if (found >= 0) this.app.jump(found);
  }
}
