// The mesh explorer. `inputs` is a flat object of what the reader has set, `outputs` what playbook_widgets.compute.mesh.compute
// makes of it (one rank: its groups, what it holds and sends), `constants` says what the controls are. Nothing is computed here
// that Python can: this module draws, and listens. `rank` is the rank that the reader has chosen, `point` one that a pointer is on.

import { decodePairs, encodePairs } from "./shared/address.mjs";
import { make, newId } from "./shared/dom.mjs";
import { Examples } from "./shared/examples.mjs";
import { PythonStatus } from "./shared/parts.mjs";
import { Settings } from "./shared/settings.mjs";
import { Actions } from "./mesh_explorer/actions.mjs";
import { Mesh } from "./mesh_explorer/mesh.mjs";
import { Rank } from "./mesh_explorer/rank.mjs";
import { Sent } from "./mesh_explorer/sent.mjs";

// The state in a link: model=llama3-8b&tp=8&rank=5
const KEYS = ["model", "tp", "cp", "dp", "pp", "ep", "sp", "zero", "per_node", "seq", "micro_batch", "grad_acc", "rank"];

export function encode(inputs) {
  return encodePairs(inputs, KEYS);
}

export function decode(text) {
  return decodePairs(text, KEYS);
}

class MeshExplorer {
  constructor(model, el) {
    Object.assign(this, { model, prefix: "pb-me", id: newId("pb-me"), constants: model.get("constants"), only: null });
    this.status = make("p", { class: "pb-me-status", role: "status" });
    this.take();
    this.settings = new Settings(this, "pb-me");
    this.parts = [new Examples(this, "Layouts to load", ["rank", "point"]), ...[Mesh, Rank, Sent, Actions].map((Part) => new Part(this))];
    this.python = new PythonStatus(model, this.status);
    this.build(el);
    this.refresh();
    this.handlers = { outputs: () => this.arrived(), inputs: () => this.settings.update(), link: () => this.parts.at(-1).update() };
    for (const [trait, handler] of Object.entries(this.handlers)) model.on(`change:${trait}`, handler);
  }

  build(el) {
    const [examples, mesh, rank, sent, actions] = this.parts.map((part) => part.root);
    this.root = make("div", { class: "pb-w pb-form pb-me", role: "group", "aria-label": "Mesh explorer: who each rank talks to, what it holds and sends" },
      examples, this.settings.root, this.status, mesh, make("div", { class: "pb-me-pair" }, rank, sent), actions);
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

  /** The groups of the shown rank that are lit: all, or the one that the reader has asked for. */
  get lit() {
    return this.result.groups.filter(({ name }) => this.only === null || name === this.only);
  }

  take() {
    const outputs = this.model.get("outputs");
    this.error = outputs.error;
    if (outputs.error) return;
    this.result = outputs;
    if (!outputs.groups.some(({ name }) => name === this.only)) this.only = null;
  }

  // --- what the reader sets

  send(inputs) {
    this.model.set("inputs", inputs);
    this.model.save_changes();
  }

  /** Set one field; what equals the default is left out, so that links stay short. The rank stays one that there is. */
  change(field, value) {
    const { [field]: _, point, ...inputs } = this.inputs, { defaults, experts } = this.constants;
    if (field === "rank" || value !== defaults[field]) inputs[field] = value;
    if (field === "model" && !experts.includes(value)) delete inputs.ep;
    const { tp, cp, dp, pp, rank } = { ...defaults, ...inputs }, ranks = tp * cp * dp * pp;
    if (field !== "rank" && ranks >= 1 && rank >= ranks) inputs.rank = ranks - 1;
    this.send(inputs);
  }

  load(inputs) {
    this.send({ rank: this.constants.defaults.rank, ...inputs });
  }

  /** A pointer is on a rank, or (null) on none. */
  point(rank) {
    const { point = null, ...inputs } = this.inputs;
    if (rank !== point && !(point === null && this.error)) this.send(rank === null ? inputs : { ...inputs, point: rank });
  }

  /** Light one group alone, or all again. */
  light(name) {
    this.only = this.only === name ? null : name;
    this.refresh();
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
    const widget = new MeshExplorer(model, el);
    return () => widget.close();
  },
};
