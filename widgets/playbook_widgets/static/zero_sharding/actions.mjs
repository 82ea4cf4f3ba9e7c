// What the reader takes along: the command, a link, the numbers.

import { button, make, say } from "../shared/dom.mjs";
import { grouped, plural } from "../shared/numbers.mjs";
import { Carrier } from "../shared/parts.mjs";
import { section } from "./pieces.mjs";

export class Actions {
  constructor(app) {
    this.app = app;
    this.command = make("code", { tabindex: "0" });
    const carrier = (this.carrier = new Carrier("pb-zs-said"));
    const copy = button("Copy", () => carrier.copy(this.command.textContent, "Command copied"), {
      "aria-label": "Copy command",
    });
    this.link = button("Copy link", () => carrier.copy(app.model.get("link"), "Link copied"), { hidden: "" });
    const save = button("Save JSON", () => this.save(), { title: "Inputs and outputs" });
    this.note = make("p", { class: "pb-zs-note" });
    this.root = section(
      "The same on the command line",
      make("div", { class: "pb-zs-command" }, this.command, copy),
      this.note,
      make("div", { class: "pb-zs-tools" }, this.link, save, carrier.root),
    );
  }

  update() {
    const { command, values } = this.app.result,
      more = command.parameters - values.parameters;
    if (this.command.textContent !== command.text) this.command.replaceChildren(...pieces(command.text));
    const size = more ? `${plural(Math.abs(more), "parameter")} ${more > 0 ? "more" : "fewer"}` : "as many parameters";
    say(
      this.note,
      values.model
        ? "Its params, gradients and optimizer are the bytes above; it adds activations and buffers."
        : `A command needs a model: this GPT has ${size} than Ψ = ${grouped(values.parameters)}. It adds activations and buffers.`.replace(
            "as many parameters than",
            "just",
          ),
    );
    this.link.hidden = !this.app.model.get("link");
  }

  save() {
    const { inputs, result } = this.app;
    this.carrier.save("zero.json", "application/json", JSON.stringify({ inputs, outputs: result }, null, 1));
  }

  close() {
    this.carrier.close();
  }
}

/** A command in pieces that lines break between: a flag stays with its value, and no hyphen ends a line. */
function pieces(command) {
  return command.split(/(?= --)/).map((piece) => make("span", {}, piece));
}
