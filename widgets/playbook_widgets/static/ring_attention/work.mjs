// The work of each rank against the mean.

import { keep, make, say, set } from "../shared/dom.mjs";
import { chip, colour, section } from "./pieces.mjs";
import { pairs } from "./words.mjs";

export class Work {
  constructor(app) {
    this.app = app;
    this.list = make("ul", { class: "pb-ra-work" });
    this.note = make("p", { class: "pb-ra-note" });
    this.root = section("Work of each rank", this.list, this.note);
  }

  update() {
    const { work } = this.app.result,
      most = Math.max(...work.pairs),
      mean = work.pairs.reduce((a, b) => a + b) / work.pairs.length;
    this.list.toggleAttribute("data-many", work.pairs.length > 8);
    keep(this.list, work.pairs.length, (rank) => this.row(rank)).forEach((row, rank) => {
      row.children[1].firstChild.style.width = `${(100 * work.pairs[rank]) / most}%`;
      say(row.lastChild, pairs(work.pairs[rank]));
    });
    this.list.style.setProperty("--mean", mean / most);
    set(this.list, "aria-label", `Pairs of each rank; busiest over mean ${work.balance.toFixed(2)}`);
    say(
      this.note,
      `The line is the mean: busiest / mean = ${work.balance.toFixed(2)}. Counted are pairs of a query and a key that it may see, in each of ${work.heads} heads.`,
    );
  }

  row(rank) {
    return make(
      "li",
      {},
      chip(rank),
      make("span", { class: "pb-ra-bar" }, make("i", { style: colour(rank) })),
      make("span", { class: "pb-ra-does" }),
    );
  }
}
