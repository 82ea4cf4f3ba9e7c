// How uneven it is, in one number, in sentences, in numbers.

import { keep, make, say } from "../shared/dom.mjs";
import { grouped, percent, plural, rounded, share } from "../shared/numbers.mjs";
import { Announcer } from "../shared/parts.mjs";

export class Verdict {
  constructor(app) {
    this.app = app;
    [this.balance, this.of, this.stale] = ["balance", "of", "stale"].map((name) =>
      make("span", { class: `pb-ro-${name}` }),
    );
    this.stale.textContent = "last valid";
    this.answer = make("p", { class: "pb-ro-answer" });
    this.numbers = make("ul", { class: "pb-ro-facts", "aria-label": "Numbers" });
    this.announcer = new Announcer();
    const line = make("p", { class: "pb-ro-line" }, this.balance, this.of, this.stale);
    this.root = make(
      "section",
      { class: "pb-ro-verdict", "aria-label": "Result" },
      line,
      this.answer,
      this.announcer.root,
    );
  }

  show() {
    const { app } = this,
      { picture, result } = app;
    say(this.balance, picture.imbalance.toFixed(2));
    say(this.of, `busiest rank / mean; the others wait ${percent(picture.waiting)} of the time`);
    this.stale.hidden = !app.error;
    this.root.toggleAttribute("data-stale", Boolean(app.error));
    say(this.answer, picture.answer);
    const facts = this.facts(result, picture);
    keep(this.numbers, facts.length, () => make("li", {}, make("span"), make("b"), make("span"))).forEach((row, i) =>
      facts[i].forEach((text, k) => say(row.children[k], text)),
    );
    this.announcer.tell(() => `${this.balance.textContent} ${this.of.textContent}. ${picture.answer}`);
  }

  /** Name, number, remark. */
  facts({ values, choices, room }, { ranks, dropped, busiest_expert: expert, imbalance, waiting }) {
    const rows = ranks.reduce((a, b) => a + b),
      lost = dropped.reduce((a, b) => a + b),
      { tokens, top_k: k } = values;
    return [
      [
        "Busiest rank / mean",
        imbalance.toFixed(2),
        `${grouped(Math.max(...ranks))} rows, ${rounded(rows / ranks.length)} on average`,
      ],
      ["The others wait", percent(waiting), "of the time, if every row takes as long"],
      ["Busiest expert / mean", expert.toFixed(2), `${rounded(rows / values.experts)} rows on average`],
      ["Choices", grouped(choices), `${values.ranks} × ${tokens} tokens × ${k} experts`],
      [
        "Dropped",
        share(lost, choices),
        lost ? `${grouped(lost)} of ${grouped(choices)} choices` : "every choice is computed",
      ],
      [
        "Capacity of an expert",
        room === null ? "no limit" : plural(room, "row"),
        room === null
          ? "it takes all rows that come"
          : `of each sample, the tokens of a rank: ⌈${values.capacity} × ${tokens} × ${k} / ${values.experts}⌉`,
      ],
    ];
  }

  close() {
    this.announcer.close();
  }
}
