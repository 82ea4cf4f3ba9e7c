// What is drawn as a table, and what the reader takes along: Python, a command, a link, a file.

import { button, make, say, tableOf } from "../shared/dom.mjs";
import { bytes, listed, seconds } from "../shared/numbers.mjs";
import { Carrier } from "../shared/parts.mjs";
import { section } from "./pieces.mjs";
import { pairs } from "./words.mjs";

export class Details {
  constructor(app) {
    this.app = app;
    this.table = make("div", { class: "pb-scroll", tabindex: "0", role: "group", "aria-label": "All steps" });
    this.fold = make("details", { class: "pb-ra-fold" }, make("summary", {}, "All steps as a table"), this.table);
    this.fold.addEventListener("toggle", () => this.update());
    this.carrier = new Carrier("pb-ra-said");
    [this.code, this.command] = [make("code", { tabindex: "0" }), make("code", { tabindex: "0" })];
    this.trains = section(
      "A training run that computes so",
      this.line(this.command, "Command"),
      make(
        "p",
        { class: "pb-ra-note" },
        "It needs GPUs with room for the model; with --model tiny and fewer tokens it runs on any CPU.",
      ),
    );
    this.link = button("Copy link", () => this.carrier.copy(app.model.get("link"), "Link copied"), { hidden: "" });
    const save = button("Save JSON", () => this.save(), { title: "Inputs and outputs, every block and step" });
    const tools = make("div", { class: "pb-ra-tools" }, this.link, save, this.carrier.root);
    this.root = make(
      "div",
      { class: "pb-ra-details" },
      this.fold,
      section("The pairs of each rank in Python", this.line(this.code, "Code")),
      this.trains,
      tools,
    );
  }

  line(code, name) {
    const copy = button("Copy", () => this.carrier.copy(code.textContent, `${name} copied`), {
      "aria-label": `Copy ${name.toLowerCase()}`,
    });
    return make("div", { class: "pb-ra-code" }, code, copy);
  }

  update() {
    const { result, model } = this.app;
    say(this.code, result.code);
    this.trains.hidden = !result.command;
    if (this.command.textContent !== result.command)
      this.command.replaceChildren(...result.command.split(/(?= --)/).map((piece) => make("span", {}, piece)));
    this.link.hidden = !model.get("link");
    if (this.fold.open)
      this.table.replaceChildren(
        tableOf(
          ["step", "does", "pairs of each rank", "idle", "each sends", "computing", "message"],
          result.steps.map((step, i) => this.row(step, i)),
        ),
      );
  }

  row({ does, ranks, idle, sent, compute, message }, i) {
    return [
      i + 1,
      does,
      ranks.map((rank) => pairs(rank.pairs)).join(", "),
      listed(idle) || "nobody",
      sent ? bytes(sent) : "–",
      seconds(compute),
      seconds(message),
    ];
  }

  save() {
    const { inputs, result } = this.app;
    this.carrier.save("ring-attention.json", "application/json", JSON.stringify({ inputs, outputs: result }, null, 1));
  }

  close() {
    this.carrier.close();
  }
}
