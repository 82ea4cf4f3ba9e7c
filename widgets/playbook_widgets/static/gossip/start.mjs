// The values at the start: that of the chosen node, and of all at once.

import { parse } from "../shared/address.mjs";
import { Control } from "../shared/control.mjs";
import { button, make, say, set } from "../shared/dom.mjs";

const TOP = 10; // of the values that buttons set

export class Start {
  constructor(app) {
    this.app = app;
    this.control = new Control(
      app.constants.value,
      app.id,
      (_, value) => app.putOne(String(value).replaceAll(",", ".").trim()),
      app.prefix,
    );
    const fill = (name, value) => button(name, () => app.put(app.frame.map(value)));
    const tools = make(
      "div",
      { class: "pb-go-tools" },
      fill("Only this node", (_, i) => (i === app.node ? TOP : 0)),
      fill("First half", (_, i, { length }) => (i < length / 2 ? TOP : 0)),
      fill("Random", () => Math.floor(Math.random() * (TOP + 1))),
      button("Reset", () => app.jump(0)),
    );
    this.root = make("section", { "aria-label": "Values at the start" }, this.control.row, tools);
  }

  update() {
    this.show();
  }

  show() {
    const { app } = this,
      text = app.texts[app.node],
      { error } = app;
    say(this.control.row.querySelector("label"), `Node ${app.node} at start`);
    this.control.show(parse(text), { error: error?.field === "values" ? error.message : null });
    set(this.control.field.slider, "aria-label", `Value of node ${app.node} at the start, slider`);
  }

  close() {
    this.control.field.stop();
  }
}
