// One setting: its name, a control of its kind, and why a value is refused.

import { make, say, set } from "./dom.mjs";
import { NumberField } from "./number_field.mjs";
import { count } from "./numbers.mjs";
import { TextField } from "./text_field.mjs";

export class Control {
  /** `change(field, value)` tells what the reader did; `prefix` is that of the widget's classes; `more` is a subclass's own. */
  constructor(spec, id, change, prefix, more = {}) {
    Object.assign(this, {
      ...more,
      spec,
      prefix,
      id: `${id}-${spec.field.replace(".", "-")}`,
      tell: (value) => change(spec.field, value),
    });
    this.error = make("p", { class: `${prefix}-error`, id: `${this.id}-error`, role: "alert", hidden: "" });
    this.row = make(
      "div",
      { class: `${prefix}-row ${prefix}-${spec.kind}`, "data-field": spec.field },
      ...this.parts(),
      ...this.extras(),
      this.error,
    );
  }

  get about() {
    return { "aria-describedby": `${this.id}-error` };
  }

  /** Label and inputs, by the kind of the setting. */
  parts() {
    return (
      { select: () => this.select(), choice: () => this.choice(), text: () => this.text() }[this.spec.kind]?.() ??
      this.number()
    );
  }

  /** What stands in the row behind them. */
  extras() {
    return [];
  }

  label() {
    return make("label", { for: this.id }, this.spec.label);
  }

  select() {
    this.list = make("select", { id: this.id, ...this.about });
    const groups = new Map();
    for (const [value, words, group] of this.spec.choices) {
      if (group && !groups.has(group)) groups.set(group, this.list.appendChild(make("optgroup", { label: group })));
      (groups.get(group) ?? this.list).append(make("option", { value }, words));
    }
    this.list.addEventListener("change", () => this.tell(this.list.value));
    return [this.label(), this.list];
  }

  choice() {
    const options = this.spec.choices.map(([value, words], i) => {
      const radio = make("input", { type: "radio", name: this.id, value: i, class: "pb-unseen", ...this.about });
      radio.addEventListener("change", () => this.tell(value));
      return make("label", {}, radio, make("span", {}, words));
    });
    this.radios = options.map((option) => option.firstChild);
    return [
      make("span", { class: `${this.prefix}-label`, id: `${this.id}-label` }, this.spec.label),
      make("span", { class: "pb-options", role: "radiogroup", "aria-labelledby": `${this.id}-label` }, ...options),
    ];
  }

  text() {
    this.field = new TextField({ id: this.id, attributes: this.about, tell: this.tell });
    return [this.label(), this.field.text];
  }

  number() {
    const { label, stops } = this.spec;
    const next = (by) => stops[Math.min(stops.length - 1, Math.max(0, Number(this.field.slider.value) + by))];
    const away = stops[0] < 0 ? undefined : (stop, size) => Math.abs(Math.log((stop + 1e-3) / (size + 1e-3)));
    this.field = new NumberField({
      id: this.id,
      label,
      stops,
      attributes: this.about,
      tell: this.tell,
      written: (value) => this.written(value),
      next,
      away,
    });
    return [this.label(), this.field.slider, make("span", { class: `${this.prefix}-field` }, this.field.text)];
  }

  written(value) {
    return typeof value === "number" && this.spec.kind === "count" ? count(value) : String(value ?? "");
  }

  /** Show a value, `size` being the number that it means, and why it was refused. */
  show(value, { size = value, error }) {
    if (this.list) this.showChosen(String(value ?? ""), error);
    else if (this.radios) this.radios.forEach((radio, i) => (radio.checked = this.spec.choices[i][0] === value));
    else this.field.show(value, size);
    if (this.field?.slider && typeof size === "number") set(this.field.slider, "aria-valuetext", this.written(size));
    for (const el of this.row.querySelectorAll("input, select, textarea"))
      set(el, "aria-invalid", error ? "true" : null);
    say(this.error, error ?? "");
    this.error.hidden = !error;
  }

  /** Names are the same in any case; what was read and is right, but not on the list, stands at its end. */
  showChosen(value, error) {
    if (this.list.value !== value) this.list.value = value;
    if (this.list.selectedIndex < 0) this.list.value = value.toLowerCase();
    if (this.list.selectedIndex >= 0 || !value || error) return;
    this.list.append(make("option", { value }, value));
    this.list.value = value;
  }
}
