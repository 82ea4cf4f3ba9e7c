// One setting with what it means and a way back to its default, for a form of many of them.

import { parse } from "./address.mjs";
import { Control } from "./control.mjs";
import { button, make, say, set } from "./dom.mjs";
import { ModelField } from "./model_field.mjs";
import { NumberField } from "./number_field.mjs";

export class Setting extends Control {
  /** `change(field, value)` tells what the reader did, `reset(field)` that the default is wanted; `presets` are the models. */
  constructor(spec, id, { change, reset, presets }) {
    super(spec, id, change, "pb-set", { reset, presets });
  }

  get about() {
    return { "aria-describedby": `${this.id}-help ${this.id}-error${this.spec.notes ? ` ${this.id}-note` : ""}` };
  }

  parts() {
    return (
      { switch: () => this.switch(), model: () => this.model(), size: () => this.size() }[this.spec.kind]?.() ??
      super.parts()
    );
  }

  extras() {
    const { spec, prefix } = this,
      help = make("span", { class: `${prefix}-help`, id: `${this.id}-help` }, spec.help);
    this.back = button("↺", () => this.drop(), {
      class: `${prefix}-reset`,
      "aria-label": `Reset ${spec.label}`,
      hidden: "",
    });
    this.note = make("p", { class: `${prefix}-note`, id: `${this.id}-note`, hidden: "" });
    return spec.notes ? [this.back, this.note, help] : [this.back, help];
  }

  drop() {
    this.field?.stop();
    this.reset(this.spec.field);
    this.row.querySelector("input:checked, input:not([type=radio]), select").focus();
  }

  switch() {
    this.box = make("input", { type: "checkbox", role: "switch", id: this.id, ...this.about });
    this.box.addEventListener("change", () => this.tell(this.box.checked));
    return [this.label(), this.box];
  }

  model() {
    this.field = new ModelField({ id: this.id, presets: this.presets, attributes: this.about, tell: this.tell });
    return [this.label(), this.field.list, this.field.find, this.field.text];
  }

  number() {
    const { label, stops, unit } = this.spec;
    this.field = new NumberField({
      id: this.id,
      label,
      stops,
      attributes: this.about,
      tell: this.tell,
      next: (by) => this.next(by),
    });
    this.field.text.setAttribute("inputmode", "decimal");
    return [
      this.label(),
      this.field.slider,
      make(
        "span",
        { class: `${this.prefix}-field` },
        this.field.text,
        ...(unit ? [make("span", { class: "pb-unseen" }, unit)] : []),
      ),
    ];
  }

  /** One up or down from what stands in the field; where the stops are fractions, a unit of the first digit of the least. */
  next(by) {
    const { stops } = this.spec,
      now = parse(this.field.text.value);
    if (typeof now !== "number") return undefined;
    const places = stops.every(Number.isInteger) ? 0 : -Math.floor(Math.log10(Math.min(...stops.filter(Boolean))));
    const next = Number((now + by * 10 ** -places).toFixed(places));
    return next >= 0 ? next : undefined;
  }

  /** Bytes with their unit, as in 96GB. A number alone is in the unit in which sizes are shown. */
  size() {
    const { label, stops } = this.spec,
      tell = (value) => this.tell(typeof value === "number" ? `${value}${this.unit}` : value);
    const next = (by) => Math.max(0, Math.round(this.amount) + by);
    this.field = new NumberField({ id: this.id, label, stops, attributes: this.about, tell, next });
    return [this.label(), this.field.slider, make("span", { class: `${this.prefix}-field` }, this.field.text)];
  }

  /** What is to be said of a choice. */
  remark(value) {
    const note = this.spec.notes?.find(([choice]) => choice === value)?.[1];
    say(this.note, note ?? "");
    this.note.hidden = !note;
  }

  /** Show a value, `size` being the number that it means in `unit`, whether it is the reader's own, and why it was refused. */
  show(value, { own, idle, error, size = value, unit = this.spec.unit }) {
    Object.assign(this, { unit, amount: size });
    this.remark(String(value).toLowerCase());
    if (this.box) this.box.checked = value === true;
    else super.show(value, { size, error });
    this.back.hidden = !own;
    this.row.toggleAttribute("data-own", own);
    this.row.toggleAttribute("data-idle", idle);
    for (const group of this.row.querySelectorAll("[role=radiogroup]"))
      set(group, "aria-disabled", idle ? "true" : null);
    for (const el of this.row.querySelectorAll("input, select")) el.disabled = idle;
    if (this.field?.slider && typeof size === "number")
      set(this.field.slider, "aria-valuetext", `${size}${unit ? ` ${unit}` : ""}`);
  }
}
