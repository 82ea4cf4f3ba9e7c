// Ranks with tokens on the left, ranks with experts on the right, and between them bands as wide as the rows that they stand for.

import { draw, make, say, setAll } from "../shared/dom.mjs";
import { plural } from "../shared/numbers.mjs";
import { legend, px, section, WAYS, way } from "./pieces.mjs";

const BLOCK = 10,
  HEAD = 18,
  LINE = 12; // px: how wide a block is, room for the name of a node, for a line of text
const ORDER = ["lost", "across", "inside", "own"]; // what is drawn over what
const ROOM = { left: 50, right: 92, top: 20, bottom: 6 };

export class Flows {
  constructor(app) {
    this.app = app;
    [this.bands, this.blocks, this.names] = ["bands", "blocks", "names"].map((name) =>
      draw("g", { class: `pb-ro-${name}` }),
    );
    this.hatch = `${app.id}-hatch`;
    const stripes = draw("path", { d: "M0,5L5,0M-1,1L1,-1M4,6L6,4", class: "pb-ro-stripes" });
    const pattern = draw("pattern", { id: this.hatch, width: 5, height: 5, patternUnits: "userSpaceOnUse" }, stripes);
    this.svg = draw("svg", { role: "img" }, draw("defs", {}, pattern), this.bands, this.blocks, this.names);
    this.box = make("div", { class: "pb-ro-flows" }, this.svg);
    this.legend = legend([...Object.entries(WAYS), ["lost", "dropped"]]);
    this.note = make("p", { class: "pb-ro-note" });
    this.root = section("From tokens to experts", this.box, this.legend, this.note);
    this.sizes = new ResizeObserver(() => this.box.clientWidth !== this.width && this.show());
    this.sizes.observe(this.box);
  }

  show() {
    const { app } = this,
      { result, picture } = app,
      { ranks, node } = result.values;
    this.width = this.box.clientWidth;
    if (!this.width) return;
    this.loses = result.pictures.some(({ dropped }) => dropped.some(Boolean));
    this.legend.lastChild.hidden = !this.loses;
    this.height = ROOM.top + 360 + Math.max(0, ranks - 8) * 17 + ROOM.bottom;
    const gaps = this.gaps(result, picture);
    this.scale = (this.height - ROOM.top - ROOM.bottom - gaps.all) / result.choices;
    const left = this.left(result),
      right = this.right(result, picture, gaps);
    setAll(this.svg, {
      viewBox: `0 0 ${this.width} ${this.height}`,
      height: this.height,
      "aria-label": this.aloud(picture),
    });
    this.bands.replaceChildren(...this.drawBands(result, picture, left, right));
    this.blocks.replaceChildren(
      ...left.map(({ y, high }) => this.block(ROOM.left - BLOCK, y, high, "tokens")),
      ...right.flatMap((to) =>
        to.slots.map(({ y, high }, i) => this.block(this.end, y, high, to.lost ? "lost" : i % 2 ? "odd" : "even")),
      ),
    );
    this.names.replaceChildren(...this.drawNames(left, right, result.nodes > 1 ? node : 0));
    this.mark();
    say(this.note, this.words(result));
  }

  /** Where the blocks of experts begin. */
  get end() {
    return this.width - ROOM.right;
  }

  /** px between experts, between ranks, and all that is no row. */
  gaps({ nodes, values: { ranks } }, { experts, slots }) {
    const slot = slots.length > 64 ? 0 : 1.5,
      rank = ranks > 16 ? 3 : 6,
      heads = (nodes > 1 ? nodes - 1 : 0) * HEAD;
    const inside = experts.reduce((sum, own) => sum + own.length - 1, 0) * slot;
    return { slot, rank, all: inside + (ranks - 1 + this.loses) * rank + heads + (this.loses ? HEAD : 0) };
  }

  /** Blocks of tokens, spread over the height. */
  left({ nodes, choices, values: { ranks, node } }) {
    const high = (choices / ranks) * this.scale,
      heads = (nodes > 1 ? nodes - 1 : 0) * HEAD;
    const gap = ranks > 1 ? (this.height - ROOM.top - ROOM.bottom - heads - ranks * high) / (ranks - 1) : 0;
    return Array.from({ length: ranks }, (_, rank) => ({
      rank,
      high,
      y: ROOM.top + rank * (high + gap) + (nodes > 1 ? Math.floor(rank / node) * HEAD : 0),
    }));
  }

  /** Blocks of experts: for each rank its slots, and at the end what is dropped. */
  right({ nodes, values: { node } }, { experts, slots, dropped }, gaps) {
    let y = ROOM.top,
      slot = 0;
    const place = (rows) => {
      const at = { y, high: rows * this.scale };
      y += at.high + gaps.slot;
      return at;
    };
    const all = experts.map((own, rank) => {
      if (rank) y += gaps.rank - gaps.slot + (nodes > 1 && rank % node === 0 ? HEAD : 0);
      return { rank, experts: own, slots: own.map(() => place(slots[slot++])) };
    });
    y += gaps.rank - gaps.slot + HEAD;
    return this.loses ? [...all, { lost: true, slots: [place(dropped.reduce((a, b) => a + b))] }] : all;
  }

  block(x, y, high, kind) {
    return draw("rect", {
      class: "pb-ro-block",
      "data-kind": kind,
      x,
      y: px(y),
      width: BLOCK,
      height: Math.max(0.5, px(high)),
      ...(kind === "lost" ? { fill: `url(#${this.hatch})` } : {}),
    });
  }

  /** A band for each rank with tokens and each expert, or each rank with experts where there are many. */
  drawBands({ coarse, values: { node } }, { bands, dropped }, left, right) {
    const ends = right.flatMap((to) =>
      coarse || to.lost
        ? [{ ...to, y: to.slots[0].y }]
        : to.slots.map(({ y }, i) => ({ rank: to.rank, expert: to.experts[i], y })),
    );
    const all = [];
    for (const { rank: source, y } of left) {
      let from = y;
      ends.forEach((to, i) => {
        const rows = to.lost ? dropped[source] : bands[source][i],
          high = rows * this.scale;
        if (!rows) return;
        all.push(this.band(from, to.y, high, source, to, rows, node));
        from += high;
        to.y += high;
      });
    }
    return all.sort((a, b) => ORDER.indexOf(a.dataset.kind) - ORDER.indexOf(b.dataset.kind));
  }

  band(y0, y1, high, source, { rank, expert, lost }, rows, node) {
    const [x0, x1] = [ROOM.left, this.end],
      middle = px((x0 + x1) / 2),
      [a, b, c, d] = [y0, y1, y1 + high, y0 + high].map(px);
    const path = `M${x0},${a}C${middle},${a} ${middle},${b} ${x1},${b}V${c}C${middle},${c} ${middle},${d} ${x0},${d}Z`;
    const kind = lost ? "lost" : way(source, rank, node),
      where = lost ? "dropped" : `${expert === undefined ? "" : `expert ${expert} on `}rank ${rank}, ${WAYS[kind]}`;
    const to = lost ? { fill: `url(#${this.hatch})` } : { "data-to": rank };
    return draw(
      "path",
      { d: path, "data-kind": kind, ...to },
      draw("title", {}, `${plural(rows, "row")} of rank ${source}: ${where}`),
    );
  }

  drawNames(left, right, node) {
    const text = (x, y, words, anchor = "start", kind = "") =>
      draw("text", { x: px(x), y: px(y), "text-anchor": anchor, class: kind }, words);
    const heads = left
      .filter(({ rank }) => node && rank % node === 0)
      .flatMap(({ rank, y }) => [
        text(0, y - 6, `node ${rank / node}`, "start", "pb-ro-quiet"),
        text(this.width, right[rank].slots[0].y - 6, `node ${rank / node}`, "end", "pb-ro-quiet"),
      ]);
    const sources = left.map(({ rank, y, high }) =>
      text(ROOM.left - BLOCK - 5, y + high / 2 + 4, `rank ${rank}`, "end"),
    );
    const experts = right
      .filter((to) => !to.lost)
      .flatMap((to) =>
        to.slots
          .map(({ y, high }, i) =>
            high < 9 ? null : text(this.end + BLOCK + 4, y + high / 2 + 4, to.experts[i], "start", "pb-ro-quiet"),
          )
          .filter(Boolean),
      );
    const middles = apart(
      right.map(({ slots }) => (slots[0].y + slots.at(-1).y + slots.at(-1).high) / 2),
      this.height - ROOM.bottom,
    );
    const targets = right.map((to, i) =>
      text(this.width, middles[i] + 4, to.lost ? "dropped" : `rank ${to.rank}`, "end"),
    );
    return [...heads, ...sources, ...experts, ...targets];
  }

  /** Fade what does not go to the rank that the reader has marked. */
  mark() {
    const { marked } = this.app;
    for (const band of this.bands.children)
      band.toggleAttribute("data-faded", marked !== null && band.dataset.to !== String(marked));
  }

  words({ coarse, values }) {
    const what = coarse ? "the experts of a rank are drawn together" : "small numbers are experts";
    const replicas =
      values.remedy === "replicas"
        ? " Replicas of an expert share its rows evenly: those of the first ranks' tokens go to the first replica."
        : "";
    return `Left, the choices of each rank's tokens; right, the rows that each rank computes; ${what}. The width of a band is its number of rows.${replicas}`;
  }

  aloud({ ranks, experts, dropped }) {
    const lost = dropped.reduce((a, b) => a + b);
    return `${ranks.map((rows, rank) => `Rank ${rank} computes ${plural(rows, "row")}${experts[rank].length > 8 ? "" : ` for experts ${experts[rank].join(", ")}`}`).join(". ")}. ${lost ? `${plural(lost, "choice")} dropped.` : ""}`;
  }

  close() {
    this.sizes.disconnect();
  }
}

/** Places of lines of text, in order, pushed apart where they would touch, and up again from the end. */
export function apart(places, end) {
  const found = [...places];
  found.forEach((y, i) => i && (found[i] = Math.max(y, found[i - 1] + LINE)));
  for (let i = found.length - 1, most = end; i >= 0; i--, most = found[i + 1] - LINE)
    found[i] = Math.min(found[i], most);
  return found;
}
