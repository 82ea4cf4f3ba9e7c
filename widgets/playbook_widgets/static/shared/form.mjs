// What widgets of settings have alike: a model, a status line, settings, parts, and how these hear of each other.

import { decodePairs, encodePairs } from "./address.mjs";
import { make, newId } from "./dom.mjs";
import { PythonStatus } from "./parts.mjs";

/** The functions of a link: it says the fields of `home`, which it need not say, and those of `others` that are set; those of
    `texts` stay as they were typed. */
export function linked(home, others, texts) {
  const keys = [...Object.keys(home), ...others];
  return {
    encode: (inputs) => encodePairs(inputs, keys),
    decode: (text) => ({ ...home, ...decodePairs(text, keys, texts) }),
  };
}

/** What a module of a widget has as its default. */
export function entry(Widget) {
  return {
    render({ model, el }) {
      const widget = new Widget(model, el);
      return () => widget.close();
    },
  };
}

export class Form {
  /** `lead` is the field that every link says. A subclass sets `settings` and `parts`, of which the last one shows the link,
      and then calls `open`. */
  constructor(model, prefix, lead, more = {}) {
    Object.assign(this, {
      model,
      prefix,
      lead,
      id: newId(prefix),
      constants: model.get("constants"),
      parts: [],
      ...more,
    });
    this.status = make("p", { class: `${prefix}-status`, role: "status" });
    this.take();
  }

  /** Lay the elements out, under a name for those who do not see them, draw, and listen. */
  open(el, label, ...children) {
    this.python = new PythonStatus(this.model, this.status);
    this.root = make("div", { class: `pb-w pb-form ${this.prefix}`, role: "group", "aria-label": label }, ...children);
    el.replaceChildren(this.root);
    this.refresh();
    this.listen();
  }

  listen() {
    this.handlers = {
      outputs: () => this.arrived(),
      inputs: () => this.told(),
      link: () => this.parts.at(-1).update(),
    };
    for (const [trait, handler] of Object.entries(this.handlers)) this.model.on(`change:${trait}`, handler);
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

  /** Set a field; what equals a default is left out, so that links stay short, but for the one that all of them say. */
  change(field, value) {
    const { [field]: _, ...inputs } = this.inputs;
    if (field === this.lead || value !== this.constants.defaults[field]) inputs[field] = value;
    this.submit(inputs);
  }

  load(inputs) {
    this.submit({ [this.lead]: this.constants.defaults[this.lead], ...inputs });
  }

  send(inputs) {
    this.model.set("inputs", inputs);
  }

  /** Inputs that Python is to hear of. */
  submit(inputs) {
    this.send(inputs);
    this.model.save_changes();
  }

  // --- there and back

  told() {
    this.settings.update();
  }

  arrived() {
    this.take();
    this.refresh();
  }

  refresh() {
    this.settings.update();
    for (const part of this.parts) part.update?.();
    this.root.toggleAttribute("data-stale", Boolean(this.error));
  }

  close() {
    for (const [trait, handler] of Object.entries(this.handlers)) this.model.off(`change:${trait}`, handler);
    for (const part of [this.python, this.settings, ...this.parts]) part.close?.();
  }
}
