// The ZeRO widget. `inputs` is a flat object of what the reader has set, `outputs` what
// playbook_widgets.compute.zero_stages.compute makes of it (what each rank keeps and sends at every stage), `constants` says what
// the controls are. Nothing is computed here that Python can: this module draws, and listens.

import { make } from "./shared/dom.mjs";
import { entry, Form, linked } from "./shared/form.mjs";
import { Settings } from "./shared/settings.mjs";
import { Actions } from "./zero_sharding/actions.mjs";
import { Formulas } from "./zero_sharding/formulas.mjs";
import { Growth } from "./zero_sharding/growth.mjs";
import { Ranks } from "./zero_sharding/ranks.mjs";
import { Memory, Traffic } from "./zero_sharding/stages.mjs";
import { Verdict } from "./zero_sharding/verdict.mjs";

// The state in a link: zero=2&parameters=70B&replicas=128
const { encode, decode } = linked({ zero: 1 }, [
  "model",
  "parameters",
  "replicas",
  "grad_acc",
  "reshard",
  "precision",
  "optimizer_bytes",
  "accelerator",
  "bandwidth",
]);

export { decode, encode };

class ZeroSharding extends Form {
  constructor(model, el) {
    super(model, "pb-zs", "zero");
    this.settings = new Settings(this, "pb-zs");
    this.parts = [Verdict, Memory, Traffic, Ranks, Growth, Formulas, Actions].map((Part) => new Part(this));
    const [verdict, memory, traffic, ranks, growth, formulas, actions] = this.parts.map((part) => part.root);
    const pair = (...sections) => make("div", { class: "pb-zs-pair" }, ...sections);
    this.open(
      el,
      "ZeRO: what each rank keeps and sends",
      this.settings.root,
      this.status,
      verdict,
      pair(memory, traffic),
      ranks,
      pair(growth, formulas),
      actions,
    );
  }

  // --- what is known

  /** What the controls show: what the reader has set over what follows from it. */
  values() {
    const { defaults, presets, optimizer_bytes: bytes } = this.constants,
      { inputs } = this;
    const base = {
      ...defaults,
      parameters: presets[inputs.model] ?? defaults.parameters,
      optimizer_bytes: bytes[inputs.precision ?? defaults.precision],
    };
    return { ...base, ...inputs };
  }

  /** The chosen stage of the last valid answer. */
  get stage() {
    return this.result.stages[this.result.values.zero];
  }

  // --- what the reader sets

  /** Set one field; what equals the default is left out, so that links stay short. A model brings its parameters along. */
  change(field, value) {
    const { [field]: _, ...inputs } = this.inputs,
      { defaults, optimizer_bytes: bytes } = this.constants;
    const base = field === "optimizer_bytes" ? bytes[inputs.precision ?? defaults.precision] : defaults[field];
    if (field === "parameters") delete inputs.model;
    if (field === "model") {
      delete inputs.parameters;
      if (value) inputs.model = value;
      else if (this.result.values.parameters !== defaults.parameters) inputs.parameters = this.result.values.parameters;
    } else if (field === "zero" || value !== base) inputs[field] = value;
    this.submit(inputs);
  }
}

export default entry(ZeroSharding);
