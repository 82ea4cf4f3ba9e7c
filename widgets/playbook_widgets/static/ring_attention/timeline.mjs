// Who computes when, and when messages are on their way, to the scale of time.

import { draw, make, set, setAll } from "../shared/dom.mjs";
import { percent, seconds } from "../shared/numbers.mjs";
import { colour, px, section, swatch } from "./pieces.mjs";

const ROOM = { left: 66, right: 44, top: 20, bottom: 20 }; // px

export class Timeline {
  constructor(app) {
    this.app = app;
    this.band = draw("rect", { class: "pb-ra-band" });
    [this.rows, this.bars, this.axis] = ["rows", "bars", "axis"].map((name) => draw("g", { class: `pb-ra-${name}` }));
    this.svg = draw("svg", { role: "img" }, this.rows, this.band, this.bars, this.axis);
    this.box = make("div", { class: "pb-ra-timeline" }, this.svg);
    this.root = section(
      "Who computes when",
      this.box,
      make(
        "p",
        { class: "pb-ra-legend" },
        swatch("now", "computing, in the rank's colour"),
        swatch("wire", "messages"),
        swatch("shown", "messages that nothing hides"),
        swatch("idle", "waiting"),
      ),
    );
    this.svg.addEventListener("click", (e) => this.click(e));
    this.sizes = new ResizeObserver(() => this.box.clientWidth !== this.width && (this.update(), this.show()));
    this.sizes.observe(this.box);
  }

  update() {
    const { result } = this.app,
      { ranks } = result.values;
    this.width = this.box.clientWidth;
    if (!this.width) return;
    this.high = ranks > 8 ? 13 : 20;
    this.height = ROOM.top + (ranks + 1) * this.high + ROOM.bottom;
    this.scale = (this.width - ROOM.left - ROOM.right) / result.seconds;
    setAll(this.svg, {
      viewBox: `0 0 ${this.width} ${this.height}`,
      height: this.height,
      "aria-label": this.aloud(result),
    });
    this.drawRows(result);
    this.bars.replaceChildren(...result.steps.flatMap((step) => this.step(step)));
    this.drawAxis(result);
  }

  x(time) {
    return ROOM.left + time * this.scale;
  }

  y(row) {
    return ROOM.top + row * this.high;
  }

  drawRows({ work, seconds: whole, values }) {
    const wide = px(this.width - ROOM.left - ROOM.right),
      middle = (row) => this.y(row) + this.high / 2 + 4;
    const row = (i, name, end) => [
      draw("rect", { class: "pb-ra-track", x: ROOM.left, y: this.y(i) + 1, width: wide, height: this.high - 2 }),
      draw("text", { x: ROOM.left - 6, y: middle(i), "text-anchor": "end" }, name),
      draw("text", { x: this.width, y: middle(i), "text-anchor": "end" }, end),
    ];
    const messages = this.app.result.message;
    this.rows.replaceChildren(
      ...work.seconds.flatMap((own, rank) => row(rank, rank, percent(own / whole))),
      ...row(values.ranks, "messages", percent(messages / whole)),
    );
  }

  /** What the ranks compute in a step, and its message: that part stands apart which nobody's computing hides. */
  step({ ranks, start, compute, message }) {
    const bar = (kind, row, from, long, style) =>
      draw("rect", {
        class: `pb-ra-${kind}`,
        x: px(this.x(from)),
        y: this.y(row) + 2,
        width: px(Math.max(0.5, long * this.scale - 1)),
        height: this.high - 4,
        ...style,
      });
    const all = ranks.map((rank, i) => rank.seconds && bar("busy", i, start, rank.seconds, { style: colour(i) }));
    const hidden = Math.min(message, compute),
      shown = message - hidden;
    return [
      ...all,
      hidden && bar("wire", ranks.length, start, hidden),
      shown && bar("shown", ranks.length, start + hidden, shown),
    ].filter(Boolean);
  }

  /** The number of each step above, where there is room; times below. */
  drawAxis({ steps, seconds: whole }) {
    const text = (x, y, words) => draw("text", { x: px(x), y, "text-anchor": "middle" }, words),
      below = this.height - 5;
    let last = -Infinity;
    const numbers = steps.flatMap(({ start, end }, i) => {
      const x = this.x((start + end) / 2);
      if (x - last < 16) return [];
      last = x;
      return [text(x, ROOM.top - 6, i + 1)];
    });
    this.axis.replaceChildren(
      ...numbers,
      ...[0, 0.5, 1].map((part) => text(this.x(part * whole), below, part ? seconds(part * whole) : 0)),
    );
  }

  show() {
    const { step } = this.app;
    if (!this.width) return;
    set(this.band, "visibility", step ? "visible" : "hidden");
    if (step)
      setAll(this.band, {
        x: px(this.x(step.start)),
        y: ROOM.top - 1,
        width: px((step.end - step.start) * this.scale),
        height: this.height - ROOM.top - ROOM.bottom + 2,
      });
  }

  aloud({ work, seconds: whole, message }) {
    return `${work.seconds.map((own, rank) => `Rank ${rank} computes ${percent(own / whole)} of the time`).join(". ")}. Messages are on their way ${percent(message / whole)} of it.`;
  }

  click(event) {
    const time = (event.clientX - this.svg.getBoundingClientRect().left - ROOM.left) / this.scale;
    const found = this.app.result.steps.findIndex(({ start, end }) => time >= start && time < end);
    if (found >= 0) this.app.jump(found);
  }

  close() {
    this.sizes.disconnect();
  }
}
