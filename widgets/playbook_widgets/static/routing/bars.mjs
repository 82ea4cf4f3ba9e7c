// The rows of each rank against the mean, what it may take at most, and what is dropped.

import { button, keep, make, say, set } from "../shared/dom.mjs";
import { grouped, rounded } from "../shared/numbers.mjs";
import { legend, section } from "./pieces.mjs";

export class Bars {
  constructor(app) {
    this.app = app;
    this.list = make("ul", { class: "pb-ro-bars" });
    this.legend = legend([
      ["even", "rows, expert by expert"],
      ["lost", "dropped"],
      ["mean", "mean"],
      ["limit", "capacity of its experts"],
    ]);
    this.note = make("p", { class: "pb-ro-note" });
    this.root = section("Rows of each rank", this.list, this.legend, this.note);
  }

  /** What the whole width stands for: the same for all pictures, so that bars can be compared. */
  update() {
    const { pictures } = this.app.result,
      most = Math.max(...pictures.flatMap(({ ranks, missed }) => ranks.map((rows, rank) => rows + missed[rank])));
    const limit = Math.max(0, ...pictures.flatMap(({ capacity }) => capacity ?? []));
    this.scale = (limit <= 1.6 * most ? Math.max(most, limit) : most) * 1.02;
  }

  show() {
    const { picture, result } = this.app,
      { ranks, experts, slots, missed, capacity } = picture;
    const mean = ranks.reduce((a, b) => a + b) / ranks.length;
    this.list.toggleAttribute("data-many", ranks.length > 8);
    this.list.style.setProperty("--mean", mean / this.scale);
    let slot = 0;
    keep(this.list, ranks.length, (rank) => this.row(rank)).forEach((row, rank) => {
      const own = slots.slice(slot, (slot += experts[rank].length));
      this.rank(row, own, missed[rank], capacity?.[rank]);
      set(row.firstChild, "title", `experts ${experts[rank].join(", ")}`);
      say(row.lastChild, `${grouped(ranks[rank])}${missed[rank] ? ` (+${grouped(missed[rank])})` : ""}`);
    });
    [this.legend.children[1].hidden, this.legend.children[3].hidden] = [
      !result.pictures.some((p) => p.missed.some(Boolean)),
      !capacity || Math.max(...capacity) > this.scale,
    ];
    say(this.note, this.words(capacity, mean));
    this.mark();
  }

  row(rank) {
    const name = button(`rank ${rank}`, () => this.app.mark(rank), {
      class: "pb-ro-name",
      "aria-label": `Show the rows of rank ${rank} alone`,
    });
    return make(
      "li",
      {},
      name,
      make(
        "span",
        { class: "pb-ro-track", "aria-hidden": "true" },
        make("span"),
        make("i", { "data-kind": "lost" }),
        make("b"),
      ),
      make("span", { class: "pb-ro-sum" }),
    );
  }

  rank(row, own, missed, limit) {
    const [rows, lost, line] = row.children[1].children,
      wide = (count) => `${(100 * count) / this.scale}%`;
    rows.style.width = wide(own.reduce((a, b) => a + b));
    keep(rows, own.length, () => make("i")).forEach((el, i) => {
      el.dataset.kind = i % 2 ? "odd" : "even";
      el.style.flexGrow = own[i];
    });
    lost.style.width = wide(missed);
    line.hidden = !limit || limit > this.scale;
    line.style.left = wide(limit ?? 0);
  }

  mark() {
    [...this.list.children].forEach((row, rank) =>
      set(row.firstChild, "aria-pressed", String(rank === this.app.marked)),
    );
  }

  words(capacity, mean) {
    const limit = capacity
      ? ` Capacity holds for each expert and sample, so rows are dropped before a rank is full${Math.max(...capacity) > this.scale ? `, which would be at ${rounded(Math.max(...capacity))} rows` : ""}.`
      : "";
    return `The line is the mean, ${rounded(mean)} rows.${limit} Press a rank to see its rows alone in the picture above.`;
  }
}
