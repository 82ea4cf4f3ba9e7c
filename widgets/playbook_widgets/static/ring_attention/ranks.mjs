// What each rank does in the step: whose keys it has, how much it computes with them, and what it sends.

import { keep, make, say, set } from "../shared/dom.mjs";
import { bytes, percent, seconds } from "../shared/numbers.mjs";
import { chip, colour, section } from "./pieces.mjs";
import { pairs, sent, tokens } from "./words.mjs";

export class Ranks {
  constructor(app) {
    this.app = app;
    this.list = make("ul", { class: "pb-ra-ranks" });
    this.note = make("p", { class: "pb-ra-note" });
    this.root = section("What each rank does in this step", this.list, this.note);
  }

  update() {
    const { ranks } = this.app.result.values;
    keep(this.list, ranks, (rank) => this.row(rank));
    this.list.toggleAttribute("data-many", ranks > 8);
  }

  row(rank) {
    const bar = make("span", { class: "pb-ra-bar", "aria-hidden": "true" }, make("i", { style: colour(rank) }));
    return make(
      "li",
      { "data-rank": rank },
      chip(rank),
      make("span", { class: "pb-ra-keys" }),
      bar,
      make("span", { class: "pb-ra-does" }),
    );
  }

  show() {
    const { result, step } = this.app;
    [...this.list.children].forEach((row, rank) => this.rank(row, rank, step));
    say(this.note, this.words(result, step));
  }

  rank(row, rank, step) {
    const { result } = this.app,
      mine = step?.ranks[rank],
      [, keys, bar, does] = row.children,
      most = Math.max(...result.steps.map(({ compute }) => compute));
    this.keys(keys, mine?.sources ?? []);
    bar.firstChild.hidden = !mine?.pairs;
    bar.firstChild.style.width = `${(100 * (mine?.seconds ?? 0)) / most}%`;
    const idle = step && !mine.pairs,
      share = step?.compute ? mine.seconds / step.compute : 0;
    row.toggleAttribute("data-idle", Boolean(idle));
    const waits = share && share < 0.995 ? `, waits ${percent(1 - share)}` : "";
    say(
      does,
      !step
        ? `${pairs(result.work.pairs[rank])} pairs in all`
        : idle
          ? step.does === "attend"
            ? "idle"
            : "no pairs"
          : `${pairs(mine.pairs)} pairs${waits}`,
    );
    set(
      row,
      "title",
      `rank ${rank} has tokens ${tokens(result.ranges[rank])}${mine?.pairs ? `; computes ${seconds(mine.seconds)}` : ""}`,
    );
  }

  /** Whose keys and values the rank has. */
  keys(el, sources) {
    const { context } = this.app.result.values,
      all = sources.length > 1,
      key = `${context} ${sources}`;
    if (el.dataset.key === key) return;
    el.dataset.key = key;
    if (!sources.length) return el.replaceChildren("–");
    el.replaceChildren("K, V of", ...(all ? [make("span", {}, "all")] : [chip(sources[0])]));
  }

  words(result, step) {
    const last = result.values.ranks - 1,
      ring = result.values.context === "ring" ? ` to the next rank, ${last} to 0` : "";
    if (!step) return `Each rank has sent ${bytes(result.sent)}.`;
    const before = result.steps.slice(0, this.app.at + 1).reduce((sum, each) => sum + each.sent, 0);
    const now = step.moves.length
      ? `Each sends ${sent(step)}${ring}: ${seconds(step.message)}.`
      : "Nothing is sent in this step.";
    return `${now} With it, ${bytes(before)} of ${bytes(result.sent)} are through.`.replace(
      "With it, ",
      step.moves.length ? "With it, " : "",
    );
  }
}
