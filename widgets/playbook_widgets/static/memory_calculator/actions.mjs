// What the reader takes along: the command, a link, the numbers, a picture.

import { button, make } from "../shared/dom.mjs";
import { Carrier } from "../shared/parts.mjs";
import { pictureOf } from "./picture.mjs";

export class Actions {
  constructor(app) {
    this.app = app;
    this.command = make("code", { tabindex: "0" });
    const carrier = (this.carrier = new Carrier("pb-mc-said"));
    this.copy = button("Copy", () => carrier.copy(this.command.textContent, "Command copied"), {
      "aria-label": "Copy command",
    });
    this.link = button("Copy link", () => carrier.copy(app.model.get("link"), "Link copied"), { hidden: "" });
    const json = button(
      "Save JSON",
      () =>
        carrier.save(
          "memory.json",
          "application/json",
          JSON.stringify({ inputs: app.inputs, outputs: app.model.get("outputs") }, null, 1),
        ),
      { title: "Inputs and outputs" },
    );
    const picture = button("Save picture", () => carrier.save("memory.svg", "image/svg+xml", pictureOf(app)), {
      title: "Verdict, bars and legend as SVG",
    });
    this.taking = [this.copy, this.link, json, picture];
    this.root = make(
      "section",
      { class: "pb-mc-actions", "aria-label": "Take it with you" },
      make("h3", { class: "pb-mc-heading" }, "The same on the command line"),
      make("div", { class: "pb-mc-command" }, this.command, this.copy),
      make("div", { class: "pb-mc-tools" }, this.link, json, picture, carrier.root),
    );
  }

  update() {
    const { app } = this,
      { result } = app.current();
    this.root.hidden = !result;
    if (result && this.command.textContent !== result.command) this.command.replaceChildren(...words(result.command));
    this.link.hidden = !app.model.get("link");
  }
}

/** A command in pieces that lines break between: a flag stays with its value, and no hyphen ends a line. */
function words(command) {
  return command.split(/(?= --)/).map((piece) => make("span", {}, piece));
}
