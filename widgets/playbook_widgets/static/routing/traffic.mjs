// What one dispatch sends, straight and in two steps, over which links.

import { keep, make, say, set } from "../shared/dom.mjs";
import { bytes } from "../shared/numbers.mjs";
import { legend, section } from "./pieces.mjs";

const KINDS = [
  ["inside", "within nodes"],
  ["across", "between nodes"],
];
const NAMES = { plain: "plain all-to-all", two_steps: "two steps" };

export class Traffic {
  constructor(app) {
    this.app = app;
    this.list = make("ul", { class: "pb-ro-traffic" });
    this.note = make("p", { class: "pb-ro-note" });
    this.root = section("Bytes sent by one dispatch", this.list, legend(KINDS), this.note);
  }

  show() {
    const { picture, result } = this.app,
      ways = Object.keys(NAMES),
      sum = ([a, b]) => a + b;
    const most = Math.max(1, ...result.pictures.flatMap((each) => ways.map((name) => sum(each[name])))) * 1.02;
    keep(this.list, ways.length, (i) => this.row(NAMES[ways[i]])).forEach((row, i) => {
      const [, track, numbers] = row.children,
        sent = picture[ways[i]];
      KINDS.forEach((_, k) => (track.children[k].style.width = `${(100 * sent[k]) / most}%`));
      const words = KINDS.map(([, where], k) => `${bytes(sent[k])} ${where}`).join(", ");
      set(track, "aria-label", `${NAMES[ways[i]]}: ${words}`);
      say(numbers, words);
    });
    say(this.note, this.words(result));
  }

  row(name) {
    const bar = make(
      "span",
      { class: "pb-ro-track", role: "img" },
      ...KINDS.map(([kind]) => make("i", { "data-kind": kind })),
    );
    return make("li", {}, make("span", { class: "pb-ro-name" }, name), bar, make("span", { class: "pb-ro-sums" }));
  }

  words({ row_bytes: row, values }) {
    const size = `${values.hidden} × ${values.itemsize} B = ${bytes(row)}`;
    return `All ranks together, in one layer; a row is ${size}. Plain all-to-all: one row per choice, straight to its rank. Two steps: each token goes once to every node that has some of its experts, and inside that node one row to each of them. Results travel back the same way.`;
  }
}
