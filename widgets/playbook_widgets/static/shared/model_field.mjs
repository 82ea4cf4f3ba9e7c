// The model that a page is about: a preset out of a list, or a text that the reader pastes: the config.json of a model, or
// a whole run, as Megatron-LM, torchtitan, DeepSpeed or Accelerate are told of it.

import { make } from "./dom.mjs";
import { TextField } from "./text_field.mjs";

const OWN = "own";

export class ModelField extends TextField {
  /** `presets` are their `parameters` and their `family` by name; `tell(value)` hears a name, or the text. */
  constructor({ id, presets, attributes, tell }) {
    const about = {
      rows: 4,
      "aria-label": "config.json, or a run",
      placeholder:
        "Paste the config.json of a model, or a run: a script of Megatron-LM, a file of torchtitan, DeepSpeed, Accelerate",
      hidden: "",
      ...attributes,
    };
    super({ id: `${id}-text`, tag: "textarea", attributes: about, tell });
    Object.assign(this, { presets, list: make("select", { id, ...attributes }) });
    this.list.append(make("option", { value: OWN }, "paste a config.json or a run…"));
    const groups = new Map();
    for (const [name, { parameters, family }] of Object.entries(presets)) {
      if (!groups.has(family)) groups.set(family, this.list.appendChild(make("optgroup", { label: family })));
      groups.get(family).append(make("option", { value: name }, `${name}, ${parameters}`));
    }
    this.list.addEventListener("change", () => this.chosen());
  }

  chosen() {
    this.waiting = this.list.value === OWN; // for a text: what the page shows is still the model before
    this.text.hidden = !this.waiting;
    if (!this.waiting) return this.tell(this.list.value);
    this.text.focus();
    this.typed(0); // what was pasted before
  }

  typed(wait) {
    this.text.value.trim() ? super.typed(wait) : this.stop();
  }

  /** What was pasted has become settings. */
  forget() {
    this.stop();
    this.waiting = false;
    this.text.value = "";
  }

  key() {} // Enter is a new line here

  show(value) {
    const name = String(value).toLowerCase(),
      preset = name in this.presets;
    if (preset && this.waiting) return;
    this.waiting = false;
    this.list.value = preset ? name : OWN;
    this.text.hidden = preset;
    preset ? (this.value = undefined) : super.show(value);
  }
}
