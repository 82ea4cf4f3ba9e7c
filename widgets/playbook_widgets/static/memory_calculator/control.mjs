// One setting: its name, a control of its kind, what it means, a way back to its default, and why a value is refused.

import { parse } from "../shared/address.mjs";
import { button, make, say, set } from "../shared/dom.mjs";
import { NumberField } from "../shared/number_field.mjs";

export class Control {
  /** `change(field, value)` tells what the reader did; `reset(field)` that the default is wanted. */
  constructor(spec, id, { change, reset, choices }) {
    Object.assign(this, { spec, id: `${id}-${spec.field.replace(".", "-")}`, choices });
    this.tell = (value) => change(spec.field, value);
    this.error = make("p", { class: "pb-mc-error", id: `${this.id}-error`, role: "alert", hidden: "" });
    this.reset = button("↺", () => this.drop(reset), { class: "pb-mc-reset", "aria-label": `Reset ${spec.label}`, hidden: "" });
    this.row = make("div", { class: `pb-mc-row pb-mc-${spec.kind}`, "data-field": spec.field }, ...this[spec.kind](), this.reset,
      make("span", { class: "pb-mc-help", id: `${this.id}-help` }, spec.help), this.error);
  }

  drop(reset) {
    this.field?.stop();
    reset(this.spec.field);
    this.focusable().focus();
  }

  described() {
    return { "aria-describedby": `${this.id}-help ${this.id}-error` };
  }

  label() {
    return make("label", { for: this.id }, this.spec.label);
  }

  focusable() {
    return this.row.querySelector("input:checked, input:not([type=radio]), select");
  }

  number() {
    const { label, stops, unit } = this.spec;
    this.field = new NumberField({ id: this.id, label, stops, attributes: this.described(), tell: this.tell, next: (by) => this.next(by) });
    this.field.text.setAttribute("inputmode", "decimal");
    return [this.label(), this.field.slider, make("span", { class: "pb-mc-field" }, this.field.text, ...(unit ? [make("span", { class: "pb-unseen" }, unit)] : []))];
  }

  /** One up or down from what stands in the field; where the stops are fractions, a unit of the first digit of the least. */
  next(by) {
    const { stops } = this.spec, now = parse(this.field.text.value);
    if (typeof now !== "number") return undefined;
    const places = stops.every(Number.isInteger) ? 0 : -Math.floor(Math.log10(Math.min(...stops.filter(Boolean))));
    const next = Number((now + by * 10 ** -places).toFixed(places));
    return next >= 0 ? next : undefined;
  }

  choice() {
    const options = this.spec.choices.map(([value, text], i) => {
      const radio = make("input", { type: "radio", name: this.id, value: i, class: "pb-unseen", ...this.described() });
      radio.addEventListener("change", () => this.tell(value));
      return make("label", {}, radio, make("span", {}, text));
    });
    this.radios = options.map((option) => option.firstChild);
    return [make("span", { class: "pb-mc-label", id: `${this.id}-label` }, this.spec.label),
      make("span", { class: "pb-options", role: "radiogroup", "aria-labelledby": `${this.id}-label` }, ...options)];
  }

  select() {
    const groups = new Map();
    for (const [value, text, group = ""] of this.choices) {
      if (!groups.has(group)) groups.set(group, group ? make("optgroup", { label: group }) : make("span"));
      groups.get(group).append(make("option", { value }, text));
    }
    this.list = make("select", { id: this.id, ...this.described() });
    for (const [group, el] of groups) this.list.append(...(group ? [el] : el.children));
    this.list.addEventListener("change", () => this.tell(this.list.value));
    return [this.label(), this.list];
  }

  switch() {
    this.box = make("input", { type: "checkbox", role: "switch", id: this.id, ...this.described() });
    this.box.addEventListener("change", () => this.tell(this.box.checked));
    return [this.label(), this.box];
  }

  /** Show a value, whether it is the reader's own, and why it was refused. */
  show(value, { own, error, idle }) {
    ({ number: () => this.showNumber(value), choice: () => this.radios.forEach((radio, i) => (radio.checked = this.spec.choices[i][0] === value)),
      select: () => this.list.value !== value && (this.list.value = value), switch: () => (this.box.checked = value === true) })[this.spec.kind]();
    this.reset.hidden = !own;
    this.row.toggleAttribute("data-own", own);
    this.row.toggleAttribute("data-idle", idle);
    for (const group of this.row.querySelectorAll("[role=radiogroup]")) set(group, "aria-disabled", idle ? "true" : null);
    for (const el of this.row.querySelectorAll("input, select")) {
      el.disabled = idle;
      set(el, "aria-invalid", error ? "true" : null);
    }
    say(this.error, error ?? "");
    this.error.hidden = !error;
  }

  showNumber(value) {
    const { unit } = this.spec;
    this.field.show(value);
    if (typeof value === "number") set(this.field.slider, "aria-valuetext", `${value}${unit ? ` ${unit}` : ""}`);
  }
}
