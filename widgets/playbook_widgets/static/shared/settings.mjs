// The settings: a control for each, and what is refused that no control shows.

import { Control } from "./control.mjs";
import { make, say } from "./dom.mjs";

export class Settings {
  /** `app` has `inputs`, the last valid `result`, an `error`, what the controls show as `values()`, and `change(field, value)`. */
  constructor(app, prefix) {
    this.app = app;
    this.all = app.constants.controls.map(
      (spec) => new Control(spec, app.id, (field, value) => app.change(field, value), prefix),
    );
    this.general = make("p", { class: `${prefix}-error`, role: "alert", hidden: "" });
    const rows = make("div", { class: `${prefix}-controls` }, ...this.all.map((control) => control.row));
    this.root = make("section", { class: `${prefix}-settings`, "aria-label": "Settings" }, rows, this.general);
  }

  update() {
    const { error, inputs, result } = this.app,
      values = this.app.values();
    for (const control of this.all) {
      const { field } = control.spec,
        size = typeof inputs[field] === "number" ? inputs[field] : result.values[field];
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
