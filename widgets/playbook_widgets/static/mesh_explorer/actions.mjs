// What the reader takes along: the command, a link, the numbers.

import { button, make } from "../shared/dom.mjs";
import { Carrier } from "../shared/parts.mjs";
import { section } from "./pieces.mjs";

export class Actions {
  constructor(app) {
    this.app = app;
    this.command = make("code", { tabindex: "0" });
    const carrier = (this.carrier = new Carrier("pb-me-said"));
    const copy = button("Copy", () => carrier.copy(app.result.command, "Command copied"), {
      "aria-label": "Copy command",
    });
    this.link = button("Copy link", () => carrier.copy(app.model.get("link"), "Link copied"), { hidden: "" });
    const save = button("Save JSON", () => this.save(), { title: "Inputs and outputs" });
    this.root = section(
      "The same on the command line",
      make("div", { class: "pb-me-command" }, this.command, copy),
      make("div", { class: "pb-me-tools" }, this.link, save, carrier.root),
    );
  }

  update() {
    const { command } = this.app.result;
    if (this.command.textContent !== command) this.command.replaceChildren(...command.split(/(?= --)/).map(breakable));
    this.link.hidden = !this.app.model.get("link");
  }

  save() {
    const { inputs, result } = this.app;
    this.carrier.save("mesh.json", "application/json", JSON.stringify({ inputs, outputs: result }, null, 1));
  }

  close() {
    this.carrier.close();
  }
}

/** A flag with its value: lines break between flags or, where one is too long, at a comma, and no hyphen ends a line. */
const breakable = (flag) =>
  make("span", {}, ...flag.split(/(?<=,)/).flatMap((piece, i) => (i ? [make("wbr"), piece] : [piece])));
