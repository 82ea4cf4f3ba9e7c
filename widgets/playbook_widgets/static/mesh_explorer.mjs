// The mesh explorer. `inputs` is a flat object of what the reader has set, `outputs` what playbook_widgets.compute.mesh.compute
// makes of it (one rank: its groups, what it holds and sends), `constants` says what the controls are. Nothing is computed here
// that Python can: this module draws, and listens. `rank` is the rank that the reader has chosen, `point` one that a pointer is on.

import { Actions } from "./mesh_explorer/actions.mjs";
import { Mesh } from "./mesh_explorer/mesh.mjs";
import { Rank } from "./mesh_explorer/rank.mjs";
import { Sent } from "./mesh_explorer/sent.mjs";
import { make } from "./shared/dom.mjs";
import { Examples } from "./shared/examples.mjs";
import { entry, Form, linked } from "./shared/form.mjs";
import { Settings } from "./shared/settings.mjs";

// The state in a link: model=llama3-8b&tp=8&rank=5
const { encode, decode } = linked({}, [
  "model",
  "tp",
  "cp",
  "dp",
  "pp",
  "ep",
  "etp",
  "sp",
  "zero",
  "replicate",
  "per_node",
  "seq",
  "micro_batch",
  "grad_acc",
  "rank",
]);

export { decode, encode };

class MeshExplorer extends Form {
  constructor(model, el) {
    super(model, "pb-me", "rank", { only: null });
    this.settings = new Settings(this, "pb-me");
    this.parts = [
      new Examples(this, "Layouts to load", ["rank", "point"]),
      ...[Mesh, Rank, Sent, Actions].map((Part) => new Part(this)),
    ];
    const [examples, mesh, rank, sent, actions] = this.parts.map((part) => part.root);
    this.open(
      el,
      "Mesh explorer: who each rank talks to, what it holds and sends",
      examples,
      this.settings.root,
      this.status,
      mesh,
      make("div", { class: "pb-me-pair" }, rank, sent),
      actions,
    );
  }

  // --- what is known

  /** The groups of the shown rank that are lit: all, or the one that the reader has asked for. */
  get lit() {
    return this.result.groups.filter(({ name }) => this.only === null || name === this.only);
  }

  take() {
    super.take();
    if (!this.result.groups.some(({ name }) => name === this.only)) this.only = null;
  }

  // --- what the reader sets

  /** Set one field; what equals the default is left out, so that links stay short. The rank stays one that there is. */
  change(field, value) {
    const { [field]: _, point, ...inputs } = this.inputs,
      { defaults, experts } = this.constants;
    if (field === "rank" || value !== defaults[field]) inputs[field] = value;
    if (field === "model" && !experts.includes(value)) delete inputs.ep;
    const { tp, cp, dp, pp, rank } = { ...defaults, ...inputs },
      ranks = tp * cp * dp * pp;
    if (field !== "rank" && ranks >= 1 && rank >= ranks) inputs.rank = ranks - 1;
    this.submit(inputs);
  }

  /** A pointer is on a rank, or (null) on none. */
  point(rank) {
    const { point = null, ...inputs } = this.inputs;
    if (rank !== point && !(point === null && this.error))
      this.submit(rank === null ? inputs : { ...inputs, point: rank });
  }

  /** Light one group alone, or all again. */
  light(name) {
    this.only = this.only === name ? null : name;
    this.refresh();
  }
}

export default entry(MeshExplorer);
