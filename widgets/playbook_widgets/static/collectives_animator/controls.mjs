// The settings: a control for each, with the sentence that refuses its value.

import { make, say, set } from "../shared/dom.mjs";
import { NumberField } from "../shared/number_field.mjs";
import { exactly } from "../shared/numbers.mjs";

class Control {
  /** `change(field, value)` tells what the reader did. */
  constructor(spec, id, change) {
    Object.assign(this, { spec, id: `${id}-${spec.field}`, tell: (value) => change(spec.field, value) });
    this.error = make("p", { class: "pb-ca-error", id: `${this.id}-error`, role: "alert", hidden: "" });
    const parts = spec.kind === "select" ? [this.select()] : this.number();
    const label = make("label", { for: this.id }, spec.label);
    this.row = make(
      "div",
      { class: `pb-ca-row pb-ca-${spec.kind}`, "data-field": spec.field },
      label,
      ...parts,
      this.error,
    );
  }

  select() {
    this.list = make("select", { id: this.id, "aria-describedby": `${this.id}-error` });
    this.list.addEventListener("change", () => this.tell(this.list.value));
    this.offer(this.spec.choices);
    return this.list;
  }

  offer(choices) {
    const names = choices.map(([value]) => value).join();
    if (this.offered !== names)
      this.list.replaceChildren(...choices.map(([value, words]) => make("option", { value }, words)));
    this.offered = names;
  }

  number() {
    const { label, stops } = this.spec,
      attributes = { "aria-describedby": `${this.id}-error` };
    const next = (by) => stops[Math.min(stops.length - 1, Math.max(0, Number(this.field.slider.value) + by))];
    const away = (stop, size) => Math.abs(Math.log((stop + 1) / (size + 1)));
    this.field = new NumberField({
      id: this.id,
      label,
      stops,
      attributes,
      tell: this.tell,
      written: (value) => this.written(value),
      next,
      away,
    });
    return [this.field.slider, make("span", { class: "pb-ca-field" }, this.field.text)];
  }

  written(value) {
    return typeof value === "number" && this.spec.kind === "size" ? exactly(value) : String(value ?? "");
  }

  /** Show a value, `size` being the number that it means, whether it matters here, and why it was refused. */
  show(value, { size = value, error, idle }) {
    if (this.list) this.list.value = value;
    else this.showNumber(value, size);
    this.row.toggleAttribute("data-idle", idle);
    for (const el of this.row.querySelectorAll("input, select")) {
      el.disabled = idle;
      set(el, "aria-invalid", error ? "true" : null);
    }
    say(this.error, error ?? "");
    this.error.hidden = !error;
  }

  showNumber(value, size) {
    this.field.show(value, size);
    if (typeof size === "number") set(this.field.slider, "aria-valuetext", this.written(size));
  }
}

export class Settings {
  constructor(app) {
    this.app = app;
    this.all = app.constants.controls.map(
      (spec) => new Control(spec, app.id, (field, value) => app.change(field, value)),
    );
    this.general = make("p", { class: "pb-ca-error", role: "alert", hidden: "" });
    this.about = make("p", { class: "pb-ca-about" });
    const rows = make("div", { class: "pb-ca-controls" }, ...this.all.map((control) => control.row));
    this.root = make("section", { class: "pb-ca-settings", "aria-label": "Settings" }, rows, this.general, this.about);
  }

  update() {
    const { app } = this,
      { error, inputs, constants } = app,
      values = app.values();
    const { algorithms, result } = constants.collectives[values.collective] ?? { algorithms: [] };
    const idle = {
      root: !constants.rooted.includes(values.collective),
      ranks_per_node: values.cluster === "loopback",
      bytes: values.collective === "barrier",
    };
    for (const control of this.all) {
      const { field } = control.spec,
        size = typeof inputs[field] === "number" ? inputs[field] : app.result.values[field];
      if (field === "algorithm") control.offer(algorithms);
      control.row.hidden = field === "root" && idle.root;
      control.show(values[field], {
        size,
        error: error?.field === field ? error.message : null,
        idle: Boolean(idle[field]),
      });
    }
    const elsewhere = error && !this.all.some(({ spec }) => spec.field === error.field);
    say(this.general, elsewhere ? error.message : "");
    this.general.hidden = !elsewhere;
    const words = algorithms.find(([name]) => name === values.algorithm)?.[2];
    if (words) say(this.about, `${result} ${words}`);
  }

  close() {
    for (const { field } of this.all) field?.stop();
  }
}
