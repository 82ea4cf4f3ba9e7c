// The settings, and what the chosen stage divides.

import { make, say } from "../shared/dom.mjs";
import { Control } from "./control.mjs";

export class Settings {
  constructor(app) {
    this.app = app;
    this.all = app.constants.controls.map((spec) => new Control(spec, app.id, (field, value) => app.change(field, value)));
    this.general = make("p", { class: "pb-zs-error", role: "alert", hidden: "" });
    const rows = make("div", { class: "pb-zs-controls" }, ...this.all.map((control) => control.row));
    this.root = make("section", { class: "pb-zs-settings", "aria-label": "Settings" }, rows, this.general);
  }

  update() {
    const { error, inputs, result } = this.app, values = this.app.values();
    for (const control of this.all) {
      const { field } = control.spec, size = typeof inputs[field] === "number" ? inputs[field] : result.values[field];
      control.show(values[field], { size, error: error?.field === field ? error.message : null });
    }
    const elsewhere = error && !this.all.some(({ spec }) => spec.field === error.field);
    say(this.general, elsewhere ? error.message : "");
    this.general.hidden = !elsewhere;
  }

  close() {
    for (const { field } of this.all) field?.stop();
  }
}
