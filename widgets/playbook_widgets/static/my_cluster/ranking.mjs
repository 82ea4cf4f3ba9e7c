// The fastest layouts, and the words on the one that is looked at.

import { fit } from "../memory_calculator/fit.mjs";
import { button, keep, make, say, set } from "../shared/dom.mjs";
import { grouped, percent, plural, rounded, seconds } from "../shared/numbers.mjs";

const COLUMNS = ["layout", "step", "MFU", "tokens/s/GPU", "memory", "$ for 10⁹ tokens"];

/** An amount of money, in the currency of the price. */
export const money = (value) => `$${grouped(value < 100 ? value.toFixed(2) : Math.round(value))}`;

export class Ranking {
  constructor(app) {
    this.app = app;
    this.line = make(
      "p",
      { class: "pb-mc-line" },
      make("span", { class: "pb-mc-peak" }),
      make("span", { class: "pb-mc-of" }),
      make("span", { class: "pb-mc-stale", hidden: "" }, "last valid"),
    );
    this.facts = make("p", { class: "pb-mc-facts pb-cl-facts" });
    this.verdict = make(
      "section",
      { class: "pb-mc-verdict", "aria-label": "The layout that is looked at" },
      this.line,
      this.facts,
    );
    this.note = make("p", { class: "pb-mc-note" });
    this.body = make("tbody");
    const head = make(
      "tr",
      {},
      ...COLUMNS.map((name, i) => make("th", { scope: "col", class: i ? "pb-mc-number" : "" }, name)),
    );
    const table = make("table", { class: "pb-mc-table pb-cl-table" }, make("thead", {}, head), this.body);
    this.root = make(
      "section",
      { "aria-label": "Layouts" },
      make("h3", { class: "pb-mc-heading" }, "Every layout that fits, fastest first"),
      this.note,
      make("div", { class: "pb-scroll" }, table),
    );
  }

  update() {
    const { app } = this,
      { rows, chosen, candidates, evaluated, values, parameters, memory, reserve } = app.result,
      [peak, of, stale] = this.line.children;
    say(peak, seconds(chosen.seconds));
    say(of, `a step with ${chosen.layout || "one device"}`);
    stale.hidden = !app.error;
    const share = `MFU ${percent(chosen.mfu)}, ${grouped(Math.round(chosen.rate))} tokens/s on each GPU`;
    say(
      this.facts,
      [
        `${plural(values.gpus, "GPU")}`,
        `${rounded(parameters / 1e9)}B parameters`,
        share,
        `${app.bytes(chosen.needs)} of ${app.bytes(memory)} on the fullest GPU: ${fit(app, { ...chosen, reserve, spare: memory - chosen.needs })}`,
        `10⁹ tokens cost ${money(chosen.cost)}`,
      ].join(" · "),
    );
    say(
      this.note,
      `${grouped(candidates)} can run; ${grouped(evaluated)} had to be simulated to know the ${rows.length} fastest that fit${reserve ? ` and leave ${app.bytes(reserve)} of each GPU free` : ""}. Press one to look at it.`,
    );
    keep(this.body, rows.length, (i) => this.row(i)).forEach((el, i) => this.show(el, rows[i], i === app.result.at));
  }

  row(index) {
    const name = button("", () => this.app.look(this.app.result.rows[index].layout), {
      class: "pb-cl-layout",
      "aria-pressed": "false",
    });
    return make(
      "tr",
      {},
      make("th", { scope: "row" }, name),
      ...COLUMNS.slice(1).map(() => make("td", { class: "pb-mc-number" })),
    );
  }

  show(el, row, chosen) {
    const name = el.querySelector("button"),
      texts = [
        seconds(row.seconds),
        percent(row.mfu),
        grouped(Math.round(row.rate)),
        this.app.bytes(row.needs),
        money(row.cost),
      ];
    const layout = row.layout || "one device";
    if (name.textContent !== layout)
      name.replaceChildren(...layout.split(/(?<=,)/).flatMap((part) => [part, make("wbr")])); // no word is broken
    set(name, "aria-pressed", String(chosen));
    texts.forEach((text, i) => say(el.children[i + 1], text));
  }
}
