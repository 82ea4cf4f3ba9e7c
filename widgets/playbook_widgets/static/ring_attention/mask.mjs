// The mask: a row for each query, a column for each key. A block has the colour of the rank that computes it.

import { draw, make, say, set } from "../shared/dom.mjs";
import { grouped } from "../shared/numbers.mjs";
import { colour, px, section, swatch } from "./pieces.mjs";
import { pairs } from "./words.mjs";

const EDGE = 38,
  MOST = 460; // px: room for names at the left and above, and the largest mask

export class Mask {
  constructor(app) {
    this.app = app;
    [this.names, this.blocks, this.numbers] = ["names", "blocks", "numbers"].map((name) =>
      draw("g", { class: `pb-ra-${name}` }),
    );
    this.stripes = draw("pattern", {
      id: `${app.id}-all`,
      patternUnits: "userSpaceOnUse",
      patternTransform: "rotate(45)",
    });
    this.frame = draw("rect", { class: "pb-ra-frame" });
    this.outline = draw("path", { class: "pb-ra-outline" }); // of this step's blocks, above all others
    this.svg = draw(
      "svg",
      { role: "img" },
      draw("defs", {}, this.stripes),
      this.frame,
      this.names,
      this.blocks,
      this.outline,
      this.numbers,
    );
    this.box = make(
      "div",
      { class: "pb-ra-mask", tabindex: "0", role: "group", "aria-label": "Mask; arrow keys step, the space bar plays" },
      this.svg,
    );
    this.reading = make("p", { class: "pb-ra-reading" });
    this.legend = make(
      "p",
      { class: "pb-ra-legend" },
      swatch("past", "computed"),
      swatch("now", "in this step"),
      swatch("next", "still to come"),
    );
    this.root = section("Who computes what of the mask", this.box, this.legend, this.reading);
    for (const type of ["pointermove", "pointerdown"]) this.box.addEventListener(type, (e) => this.point(e));
    this.box.addEventListener("pointerleave", () => this.read(null));
    this.sizes = new ResizeObserver(() => this.box.clientWidth !== this.width && (this.update(), this.show()));
    this.sizes.observe(this.box);
  }

  update() {
    this.width = this.box.clientWidth;
    if (!this.width) return;
    const { result } = this.app,
      side = (this.side = Math.min(this.width - EDGE, MOST)),
      whole = side + EDGE;
    this.scale = side / result.padded;
    for (const [key, value] of Object.entries({ viewBox: `0 0 ${this.width} ${whole}`, height: whole }))
      set(this.svg, key, value);
    for (const [key, value] of Object.entries({ x: EDGE, y: EDGE, width: px(side), height: px(side) }))
      set(this.frame, key, value);
    set(this.svg, "aria-label", this.words(result));
    this.drawNames(result);
    this.drawStripes(result.values.ranks);
    this.all = result.blocks.map((block) => ({ block, el: this.draw(block) }));
    this.blocks.replaceChildren(...this.all.map(({ el }) => el));
    this.numbers.replaceChildren(...this.all.flatMap(({ block }) => this.number(block)));
    this.read(null);
  }

  /** Which tokens each rank has: of queries at the left, of keys above. */
  drawNames({ ranges }) {
    const bars = ranges.flatMap((mine, rank) =>
      mine.flatMap(([first, end]) => {
        const [at, long] = [EDGE + first * this.scale, (end - first) * this.scale],
          name = { class: "pb-ra-name", "text-anchor": "middle" };
        const bar = { class: "pb-ra-own", style: colour(rank) },
          small = long < 11,
          tight = long < 15 && ranges.length > 9;
        const beside = draw("text", { ...name, x: EDGE - 15, y: px(at + long / 2 + 4) }, rank),
          above = draw("text", { ...name, x: px(at + long / 2), y: EDGE - 11 }, rank);
        return [
          draw("rect", { ...bar, x: EDGE - 7, y: px(at + 0.5), width: 5, height: px(long - 1) }),
          draw("rect", { ...bar, y: EDGE - 7, x: px(at + 0.5), height: 5, width: px(long - 1) }),
          ...(small && rank % 2 ? [] : [beside]),
          ...((small || tight) && rank % 2 ? [] : [above]),
        ];
      }),
    );
    const middle = EDGE + this.side / 2,
      aside = `translate(${EDGE - 28},${px(middle)}) rotate(-90)`;
    this.names.replaceChildren(
      ...bars,
      draw("text", { class: "pb-ra-axis", x: 0, y: EDGE - 26 }, "keys →"),
      draw("text", { class: "pb-ra-axis", transform: aside, "text-anchor": "middle" }, "← queries"),
    );
  }

  /** All ranks' colours, for blocks that all compute. */
  drawStripes(ranks) {
    const wide = 7;
    for (const [key, value] of Object.entries({ width: ranks * wide, height: ranks * wide }))
      set(this.stripes, key, value);
    this.stripes.replaceChildren(
      ...Array.from({ length: ranks }, (_, rank) =>
        draw("rect", {
          class: "pb-ra-stripe",
          style: colour(rank),
          x: rank * wide,
          y: 0,
          width: wide,
          height: ranks * wide,
        }),
      ),
    );
  }

  draw({ rank, pieces }) {
    const at = (token) => px(EDGE + token * this.scale),
      path = ([q0, q1, k0, k1, triangle]) =>
        triangle ? `M${at(k0)},${at(q0)}V${at(q1)}H${at(k1)}z` : `M${at(k0)},${at(q0)}V${at(q1)}H${at(k1)}V${at(q0)}z`;
    const style = rank === null ? `--rank: url(#${this.app.id}-all)` : colour(rank);
    return draw("path", { class: "pb-ra-block", d: pieces.map(path).join(""), style });
  }

  /** The step in which a block is computed, where there is room for it. */
  number({ step, pieces }) {
    return pieces.flatMap(([q0, q1, k0, k1, triangle]) => {
      const high = (q1 - q0) * this.scale,
        wide = (k1 - k0) * this.scale;
      if (Math.min(high, wide) < (triangle ? 26 : 15)) return [];
      const [x, y] = triangle ? [k0 + (k1 - k0) * 0.32, q0 + (q1 - q0) * 0.7] : [(k0 + k1) / 2, (q0 + q1) / 2];
      return [
        draw(
          "text",
          {
            "data-step": step,
            x: px(EDGE + x * this.scale),
            y: px(EDGE + y * this.scale + 4),
            "text-anchor": "middle",
          },
          step + 1,
        ),
      ];
    });
  }

  show() {
    if (!this.all) return;
    const { at } = this.app,
      when = (step) => (step < at ? "past" : step === at ? "now" : "next");
    for (const { block, el } of this.all) set(el, "data-when", when(block.step));
    set(
      this.outline,
      "d",
      this.all
        .filter(({ block }) => block.step === at)
        .map(({ el }) => el.getAttribute("d"))
        .join(""),
    );
    for (const el of this.numbers.children) set(el, "data-when", when(Number(el.dataset.step)));
  }

  words({ values, ranges }) {
    const { places } = this.app.constants,
      whose =
        values.context === "ulysses"
          ? "every rank computes all of it, for its heads"
          : `${places[values.placement]} on ${ranges.length} ranks`;
    return `Mask of ${grouped(this.app.result.padded)} queries and keys, ${values.causal ? "causal" : "nothing masked"}: ${whose}`;
  }

  /** The block under the pointer. */
  point(event) {
    if (!this.scale) return;
    const box = this.svg.getBoundingClientRect(),
      [k, q] = [event.clientX - box.left, event.clientY - box.top].map((x) => (x - EDGE) / this.scale);
    const inside = ([q0, q1, k0, k1, triangle]) =>
      q >= q0 && q < q1 && k >= k0 && k < k1 && (!triangle || q - q0 >= k - k0);
    this.read(this.app.result.blocks.find(({ pieces }) => pieces.some(inside)));
  }

  read(block) {
    const { result } = this.app;
    if (!block)
      return say(
        this.reading,
        this.numbers.childElementCount ? "The number in a block is the step in which it is computed." : "",
      );
    if (block.rank === null)
      return say(this.reading, `Every rank computes this for ${result.work.heads} of ${result.values.heads} heads.`);
    const count = result.steps[block.step].ranks[block.rank],
      own = result.values.context === "ring" ? `, ${pairs(count.pairs)} pairs` : "";
    say(this.reading, `Queries of rank ${block.rank} and keys of rank ${block.source}: step ${block.step + 1}${own}.`);
  }

  close() {
    this.sizes.disconnect();
  }
}
