// The goodput widget. `inputs` is a flat object of what the reader has set, `outputs` what
// playbook_widgets.compute.goodput.compute makes of it (parts of the time, a curve over intervals), `constants` says what
// the controls are. Nothing is computed here that Python can: this module draws, and listens.

import { decodePairs, encodePairs } from "./shared/address.mjs";
import { make, newId } from "./shared/dom.mjs";
import { Examples } from "./shared/examples.mjs";
import { PythonStatus } from "./shared/parts.mjs";
import { Settings } from "./shared/settings.mjs";
import { Verdict } from "./shared/verdict.mjs";
import { Curve } from "./goodput/curve.mjs";
import { Parts } from "./goodput/parts.mjs";

// The state in a link: every=3600&gpus=1024&save=30
const KEYS = ["every", "gpus", "mtbf", "save", "restart"];

export function encode(inputs) {
  return encodePairs(inputs, KEYS);
}

export function decode(text) {
  return { every: 3600, ...decodePairs(text, KEYS) };
}

class GoodputCurve {
  constructor(model, el) {
    Object.assign(this, { model, prefix: "pb-gp", id: newId("pb-gp"), constants: model.get("constants") });
    this.status = make("p", { class: "pb-gp-status", role: "status" });
    this.take();
    this.settings = new Settings(this, "pb-gp");
    this.parts = [new Examples(this, "Runs to load", []), new Parts(this), new Curve(this), new Verdict(this)];
    this.python = new PythonStatus(model, this.status);
    this.build(el);
    this.refresh();
    this.handlers = { outputs: () => this.arrived(), inputs: () => this.settings.update(), link: () => this.parts.at(-1).update() };
    for (const [trait, handler] of Object.entries(this.handlers)) model.on(`change:${trait}`, handler);
  }

  build(el) {
    const [examples, parts, curve, verdict] = this.parts.map((part) => part.root);
    this.root = make("div", { class: "pb-w pb-form pb-gp", role: "group", "aria-label": "Goodput: what the time of a run goes to" },
      examples, this.settings.root, this.status, parts, curve, verdict);
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

  /** Set a field; what equals a default is left out, so that links stay short, but for the interval. */
  change(field, value) {
    const { [field]: _, ...inputs } = this.inputs;
    if (field === "every" || value !== this.constants.defaults[field]) inputs[field] = value;
    this.send(inputs);
  }

  load(inputs) {
    this.send({ every: this.constants.defaults.every, ...inputs });
  }

  arrived() {
    this.take();
    this.refresh();
  }

  refresh() {
    this.settings.update();
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
    const widget = new GoodputCurve(model, el);
    return () => widget.close();
  },
};
