// How long it takes, how well the work is shared, and what is sent.

import { keep, make, say } from "../shared/dom.mjs";
import { bytes, grouped, percent, rounded, seconds } from "../shared/numbers.mjs";
import { Announcer } from "../shared/parts.mjs";

export class Verdict {
  constructor(app) {
    this.app = app;
    [this.balance, this.of, this.stale] = ["balance", "of", "stale"].map((name) =>
      make("span", { class: `pb-ra-${name}` }),
    );
    this.stale.textContent = "last valid";
    this.answer = make("p", { class: "pb-ra-answer" });
    this.numbers = make("ul", { class: "pb-ra-facts", "aria-label": "Numbers" });
    this.announcer = new Announcer();
    const line = make("p", { class: "pb-ra-line" }, this.balance, this.of, this.stale);
    this.root = make(
      "section",
      { class: "pb-ra-verdict", "aria-label": "Result" },
      line,
      this.answer,
      this.announcer.root,
    );
  }

  update() {
    const { app } = this,
      { result } = app,
      { values, work } = result;
    say(this.balance, seconds(result.seconds));
    say(
      this.of,
      `${values.backward ? "backward" : "forward"} through attention in one layer; busiest / mean = ${work.balance.toFixed(2)}`,
    );
    this.stale.hidden = !app.error;
    this.root.toggleAttribute("data-stale", Boolean(app.error));
    say(this.answer, result.answer);
    const facts = this.facts(result),
      rows = keep(this.numbers, facts.length, () => make("li", {}, make("span"), make("b"), make("span")));
    rows.forEach((row, i) => facts[i].forEach((text, k) => say(row.children[k], text)));
    this.announcer.tell(() => `${this.balance.textContent} ${this.of.textContent}. ${result.answer}`);
  }

  /** Name, number, remark. */
  facts({
    values,
    padded,
    sent,
    formula,
    share,
    held,
    message,
    exposed,
    seconds: time,
    layers,
    pair_flops: flops,
    link,
  }) {
    const padding = padded - values.seq;
    return [
      [
        "Tokens of a rank",
        grouped(padded / values.ranks),
        padding
          ? `${values.seq} and ${padding} of padding among ${values.ranks}`
          : `${grouped(padded)} among ${values.ranks}`,
      ],
      [
        "Their K and V",
        bytes(share),
        `${grouped(padded / values.ranks)} tokens in ${values.kv_heads} ${values.kv_heads === 1 ? "head" : "heads"} of ${values.head_dim}`,
      ],
      ["Each rank sends", bytes(sent), formula],
      [
        "K and V at once",
        bytes(held),
        values.context === "gather"
          ? "those of all ranks"
          : values.context === "ring"
            ? "those it has, and those to come"
            : "all tokens, some of the heads",
      ],
      [
        "Messages hidden",
        message ? percent(1 - exposed / message) : "–",
        `${seconds(message)} in all, α = ${seconds(link.alpha)} each`,
      ],
      [
        `All ${layers} layers`,
        seconds(time * layers),
        `${flops} FLOPs a pair and head at ${rounded(values.tflops)} TFLOP/s`,
      ],
    ];
  }

  close() {
    this.announcer.close();
  }
}
