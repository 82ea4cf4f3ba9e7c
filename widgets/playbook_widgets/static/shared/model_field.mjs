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
    this.find = make("input", {
      type: "search",
      placeholder: "find…",
      "aria-label": "Find a model",
      autocomplete: "off",
      spellcheck: "false",
    });
    this.fill("");
    this.list.addEventListener("change", () => this.chosen());
    this.find.addEventListener("input", () => this.fill(this.find.value));
    this.find.addEventListener("keydown", (e) => this.pressed(e));
    this.find.addEventListener("blur", (e) => e.relatedTarget === this.list || this.found());
  }

  /** The models whose name, size or family has all words of `text`, or of the end of an address; in view while one looks. */
  fill(text) {
    const words = text
        .toLowerCase()
        .split("/")
        .at(-1)
        .split(/[^a-z0-9.]+/)
        .filter(Boolean),
      groups = new Map(),
      fits = (...said) => words.every((word) => said.join(" ").toLowerCase().includes(word));
    this.matches = Object.entries(this.presets).filter(([name, of]) => fits(name, of.parameters, of.family));
    this.list.replaceChildren(make("option", { value: OWN }, "paste your own…"));
    for (const [name, { parameters, family }] of this.matches) {
      if (!groups.has(family)) groups.set(family, this.list.appendChild(make("optgroup", { label: family })));
      groups.get(family).append(make("option", { value: name }, `${name}, ${parameters}`));
    }
    this.list.size = words.length ? Math.min(10, 2 + this.matches.length + groups.size) : 0;
    this.list.toggleAttribute("data-open", words.length > 0);
    if (this.name) this.list.value = this.name;
  }

  pressed(event) {
    if (event.key === "Escape") this.found();
    if (event.key === "ArrowDown") this.list.focus();
    if (event.key !== "Enter" || !this.matches.length || !this.find.value.trim()) return;
    const [[name]] = this.matches;
    this.found();
    this.list.value = name;
    this.chosen();
  }

  /** The whole list again. */
  found() {
    if (!this.find.value) return;
    const { value } = this.list;
    this.find.value = "";
    this.fill("");
    if (value) this.list.value = value;
  }

  chosen() {
    this.found();
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
    this.name = preset ? name : OWN;
    this.list.value = this.name;
    this.text.hidden = preset;
    preset ? (this.value = undefined) : super.show(value);
  }
}
