// Spectral gap, steps and bytes in numbers, and the values of all nodes as a table.

import { keep, make, say, tableOf } from "../shared/dom.mjs";
import { number } from "./pieces.mjs";

export class Facts {
  constructor(app) {
    this.app = app;
    this.list = make("ul", { class: "pb-go-facts", "aria-label": "Numbers" });
    this.scroll = make("div", {
      class: "pb-scroll",
      tabindex: "0",
      role: "region",
      "aria-label": "Values of all nodes",
    });
    this.fold = make(
      "details",
      { class: "pb-go-fold" },
      make("summary", {}, "The values of all nodes, as a table"),
      this.scroll,
    );
    this.fold.addEventListener("toggle", () => this.show());
    this.root = make("section", { "aria-label": "Numbers" }, this.list, this.fold);
  }

  update() {
    const { facts } = this.app.result;
    keep(this.list, facts.length, () => make("li", {}, make("span"), make("b"), make("span"))).forEach((row, i) =>
      facts[i].forEach((text, k) => say(row.children[k], text)),
    );
  }

  show() {
    const { frame, result, at } = this.app;
    if (this.fold.open)
      this.scroll.replaceChildren(
        tableOf(
          ["node", "at the start", `after ${at} steps`],
          frame.map((value, i) => [i, number(result.frames[0][i]), number(value)]),
        ),
      );
  }
}
