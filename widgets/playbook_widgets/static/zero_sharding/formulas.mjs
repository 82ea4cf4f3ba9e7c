// The formulas of the chosen stage, in symbols and with numbers filled in.

import { make, say } from "../shared/dom.mjs";
import { bytes } from "../shared/numbers.mjs";
import { section, swatch } from "./pieces.mjs";

export class Formulas {
  constructor(app) {
    this.app = app;
    this.table = make("table", { class: "pb-zs-formulas" });
    this.note = make("p", { class: "pb-zs-note" });
    this.root = section(
      "In formulas",
      make("div", { class: "pb-scroll", tabindex: "0", role: "group", "aria-label": "Formulas" }, this.table),
      this.note,
    );
    this.heading = this.root.firstChild;
  }

  update() {
    const { app } = this,
      { stage, constants, result } = app,
      { kinds, moves, names } = constants;
    say(this.heading, `In formulas: ${names[stage.zero]}`);
    const kept = stage.memory_terms.map((term) => this.row(term, kinds[term[0]]));
    const sent = stage.traffic_terms.map((term) => this.row(term, moves[term[0]][1]));
    this.table.replaceChildren(
      make("tbody", {}, ...kept, this.total("kept by each rank", stage.total)),
      make("tbody", {}, ...sent, this.total("sent by each rank in a step", stage.traffic)),
    );
    say(
      this.note,
      `Ψ parameters, N = ${result.values.replicas} replicas, G = ${result.values.grad_acc}, k = ${result.bytes_per_parameter.optimizer}. States alone: activations, buckets and the blocks that ZeRO-3 has gathered come on top.`,
    );
  }

  row([kind, formula, numbers, size], words) {
    const name = make("th", { scope: "row" }, swatch(kind), words),
      how = make("td", {}, make("i", {}, formula), make("span", {}, `= ${numbers}`));
    return make("tr", { "data-kind": kind }, name, how, make("td", { class: "pb-zs-number" }, bytes(size)));
  }

  total(words, size) {
    return make(
      "tr",
      { class: "pb-zs-total" },
      make("th", { scope: "row", colspan: 2 }, words),
      make("td", { class: "pb-zs-number" }, bytes(size)),
    );
  }
}
