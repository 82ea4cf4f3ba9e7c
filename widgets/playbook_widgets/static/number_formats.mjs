// The widget of number formats. `inputs` is a flat object of what the reader has set, `outputs` what
// playbook_widgets.compute.number_formats.compute makes of it (a row for every format), `constants` says what the controls and
// the formats are. Nothing is computed here that Python can: this module draws, and listens. Setting a bit sets the number
// to what Python has said that it would be.

import { decodePairs, encodePairs } from "./shared/address.mjs";
import { button, make, newId, say } from "./shared/dom.mjs";
import { Examples } from "./shared/examples.mjs";
import { PythonStatus } from "./shared/parts.mjs";
import { Settings } from "./shared/settings.mjs";
import { Explained } from "./number_formats/explained.mjs";
import { Rows } from "./number_formats/rows.mjs";

// The state in a link: number=2^-25&scale=16&format=fp16
const KEYS = ["number", "rounding", "saturate", "scale", "draw", "format"];

export function encode(inputs) {
  return encodePairs(inputs, KEYS);
}

/** A number stays a text: of −0 and of long ones JavaScript's numbers would lose something. */
export function decode(text) {
  return { number: "0.1", ...decodePairs(text, KEYS, ["number"]) };
}

class NumberFormats {
  constructor(model, el) {
    Object.assign(this, { model, prefix: "pb-nf", id: newId("pb-nf"), constants: model.get("constants") });
    this.status = make("p", { class: "pb-nf-status", role: "status" });
    this.take();
    this.settings = new Settings(this, "pb-nf");
    this.drawn = make("span");
    this.draw = make("p", { class: "pb-nf-draw" }, button("Draw again", () => this.change("draw", this.result.values.draw + 1)), this.drawn);
    this.parts = [new Examples(this, "Numbers to load", ["draw", "format"]), new Rows(this), new Explained(this)];
    this.python = new PythonStatus(model, this.status);
    this.build(el);
    this.refresh();
    this.handlers = { outputs: () => this.arrived(), inputs: () => this.settings.update(), link: () => this.parts.at(-1).update() };
    for (const [trait, handler] of Object.entries(this.handlers)) model.on(`change:${trait}`, handler);
  }

  build(el) {
    const [examples, rows, explained] = this.parts.map((part) => part.root);
    this.root = make("div", { class: "pb-w pb-form pb-nf", role: "group", "aria-label": "A number in every format, bit by bit" },
      examples, this.settings.root, this.draw, this.status, rows, explained);
    el.replaceChildren(this.root);
  }

  // --- what is known

  get inputs() {
    return this.model.get("inputs");
  }

  /** What the controls show: what the reader has set over the defaults. */
  values() {
    return this.valuesOf(this.inputs);
  }

  valuesOf(inputs) {
    return { ...this.constants.defaults, ...inputs };
  }

  /** The row that is explained. */
  get chosen() {
    return this.result.rows.find(({ name }) => name === this.result.values.format);
  }

  take() {
    const outputs = this.model.get("outputs");
    this.error = outputs.error;
    if (!outputs.error) this.result = outputs;
  }

  // --- what the reader sets

  send(inputs) {
    this.model.set("inputs", inputs);
    this.model.save_changes();
  }

  /** Set a field; what equals a default is left out, so that links stay short, but for the number. */
  change(field, value) {
    const { [field]: _, ...inputs } = this.inputs, chosen = field === "scale" ? Number(value) : value; // a list speaks in texts
    if (field === "number" || chosen !== this.constants.defaults[field]) inputs[field] = chosen;
    this.send(inputs);
  }

  load(inputs) {
    this.send({ ...inputs });
  }

  /** Set the bit at a place of a format's row to the other digit: that row becomes the number, and is explained. */
  flip(name, at) {
    const { number } = this.inputs, inputs = { ...this.inputs, number: this.result.rows.find((row) => row.name === name).flips[at], format: name };
    if (inputs.number !== undefined && number !== inputs.number) this.send(inputs);
  }

  arrived() {
    this.take();
    this.refresh();
  }

  refresh() {
    const { values, u } = this.result;
    this.settings.update();
    this.draw.hidden = values.rounding !== "stochastic";
    say(this.drawn, `u = ${u} was drawn: a magnitude is rounded up if it lies more than u of the way to its upper neighbour.`);
    for (const part of this.parts) part.update();
    this.root.toggleAttribute("data-stale", Boolean(this.error));
  }

  close() {
    for (const [trait, handler] of Object.entries(this.handlers)) this.model.off(`change:${trait}`, handler);
    for (const part of [this.python, this.settings, ...this.parts]) part.close?.();
  }
}

export default {
  render({ model, el }) {
    const widget = new NumberFormats(model, el);
    return () => widget.close();
  },
};
