// What is drawn as tables, and what the reader takes along: Python, a command, a link, a file.

import { button, make, say, tableOf } from "../shared/dom.mjs";
import { MINUS } from "../shared/numbers.mjs";
import { Carrier } from "../shared/parts.mjs";
import { section } from "./pieces.mjs";

export class Details {
  constructor(app) {
    this.app = app;
    const fold = (title) => {
      const table = make("div", { class: "pb-scroll", tabindex: "0", role: "group", "aria-label": title });
      const el = make("details", { class: "pb-ro-fold" }, make("summary", {}, title), table);
      el.addEventListener("toggle", () => this.tables());
      return { el, table };
    };
    [this.experts, this.pairs] = [fold("All experts as a table"), fold("Rows from rank to rank as a table")];
    this.carrier = new Carrier("pb-ro-said");
    [this.code, this.command] = [make("code", { tabindex: "0" }), make("code", { tabindex: "0" })];
    this.trains = section(
      "A training run with this router",
      this.line(this.command, "Command"),
      make(
        "p",
        { class: "pb-ro-note" },
        "A small byte-level model on as many ranks, each with as many tokens; its text is real, so the skew is the text's own.",
      ),
    );
    this.link = button("Copy link", () => this.carrier.copy(app.model.get("link"), "Link copied"), { hidden: "" });
    const save = button("Save JSON", () => this.save(), { title: "Inputs and outputs, every picture" });
    const tools = make("div", { class: "pb-ro-tools" }, this.link, save, this.carrier.root);
    this.root = make(
      "div",
      { class: "pb-ro-details" },
      this.experts.el,
      this.pairs.el,
      section("The rows of each rank in Python", this.line(this.code, "Code")),
      this.trains,
      tools,
    );
  }

  line(code, name) {
    const copy = button("Copy", () => this.carrier.copy(code.textContent, `${name} copied`), {
      "aria-label": `Copy ${name.toLowerCase()}`,
    });
    return make("div", { class: "pb-ro-code" }, code, copy);
  }

  update() {
    const { result, model } = this.app;
    this.trains.hidden = !result.command;
    if (this.command.textContent !== result.command)
      this.command.replaceChildren(...result.command.split(/(?= --)/).map((piece) => make("span", {}, piece)));
    this.link.hidden = !model.get("link");
  }

  show() {
    say(this.code, this.app.picture.code);
    this.tables();
  }

  tables() {
    const { experts, pairs } = this,
      { picture } = this.app;
    if (experts.el.open)
      experts.table.replaceChildren(
        tableOf(
          ["expert", "rows", "on ranks", "bias"],
          picture.loads.map((rows, e) => [
            e,
            rows,
            this.homes(e).join(", "),
            String(picture.bias[e]).replace("-", MINUS),
          ]),
        ),
      );
    if (pairs.el.open)
      pairs.table.replaceChildren(
        tableOf(
          ["tokens of", ...picture.ranks.map((_, rank) => `to rank ${rank}`), "dropped"],
          picture.bands.map((row, source) => [`rank ${source}`, ...this.byRank(row), picture.dropped[source]]),
        ),
      );
  }

  homes(expert) {
    return this.app.picture.experts.flatMap((own, rank) => (own.includes(expert) ? [rank] : []));
  }

  byRank(row) {
    const { result, picture } = this.app;
    if (result.coarse) return row;
    let slot = 0;
    return picture.experts.map((own) => row.slice(slot, (slot += own.length)).reduce((a, b) => a + b, 0));
  }

  save() {
    const { inputs, result } = this.app;
    this.carrier.save("routing.json", "application/json", JSON.stringify({ inputs, outputs: result }, null, 1));
  }

  close() {
    this.carrier.close();
  }
}
