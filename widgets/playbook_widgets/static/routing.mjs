// The routing widget. `inputs` is a flat object of what the reader has set, `outputs` what
// playbook_widgets.compute.routing.compute makes of it (a picture of where all rows go; with biases, one after every update),
// `constants` says what the controls are. Nothing is computed here that Python can: this module draws, and listens.

import { Bars } from "./routing/bars.mjs";
import { Curve } from "./routing/curve.mjs";
import { Details } from "./routing/details.mjs";
import { Flows } from "./routing/flows.mjs";
import { Traffic } from "./routing/traffic.mjs";
import { Verdict } from "./routing/verdict.mjs";
import { make, say, set } from "./shared/dom.mjs";
import { entry, linked } from "./shared/form.mjs";
import { plural } from "./shared/numbers.mjs";
import { Player } from "./shared/player.mjs";
import { Settings } from "./shared/settings.mjs";
import { Stepper } from "./shared/stepper.mjs";

// The state in a link: remedy=bias&experts=64&skew=1.5&step=3
const { encode, decode } = linked({ remedy: "none" }, [
  "experts",
  "top_k",
  "ranks",
  "node",
  "tokens",
  "skew",
  "capacity",
  "top_groups",
  "bias_rate",
  "spare",
  "hidden",
  "itemsize",
  "seed",
  "step",
]);

export { decode, encode };

/** What a field takes with it when it changes: other nodes, another limit on them. */
const FOLLOW = { ranks: ["top_groups"], node: ["top_groups"], remedy: ["step"] };
/** Settings that mean something with one remedy alone. */
const OF_REMEDY = { bias_rate: "bias", spare: "replicas" };

class Routing extends Stepper {
  constructor(model, el) {
    super(model, "pb-ro", "remedy");
    this.at = this.asked();
    this.marked = null;
    this.settings = new Settings(this, "pb-ro");
    this.player = new Player(this);
    this.caption = make("p", { class: "pb-ro-caption" });
    this.parts = [Verdict, Flows, Bars, Traffic, Curve, Details].map((Part) => new Part(this));
    this.build(el);
  }

  build(el) {
    const [verdict, flows, bars, traffic, curve, details] = this.parts;
    this.steering = make("div", { class: "pb-ro-steering" }, this.caption, this.player.root);
    const scene = make(
      "section",
      { class: "pb-ro-scene", "aria-label": "Where the tokens go" },
      this.steering,
      flows.root,
    );
    const pair = make(
      "div",
      { class: "pb-ro-pair" },
      bars.root,
      make("div", { class: "pb-ro-column" }, curve.root, traffic.root),
    );
    this.open(
      el,
      "Routing tokens to experts",
      this.settings.root,
      this.status,
      verdict.root,
      scene,
      pair,
      verdict.numbers,
      details.root,
    );
  }

  // --- what is known

  get steps() {
    return this.result.pictures.length - 1;
  }

  /** What is shown: how it stands, or stood after as many updates. */
  get picture() {
    return this.result.pictures[this.at];
  }

  /** What the controls show: what the reader has set, over what holds otherwise, over what follows from it. */
  values() {
    const fixed = Object.entries(this.constants.defaults).filter(([, value]) => value !== null);
    return { ...this.result.values, ...Object.fromEntries(fixed), ...this.inputs };
  }

  /** With the updates come places among them: an address may have named one that there was not before. */
  arrived() {
    this.take();
    this.at = this.playing ? Math.min(this.at, this.steps) : this.asked();
    this.refresh();
  }

  // --- what the reader sets

  /** Set a field; what equals a default is left out, so that links stay short. */
  change(field, value) {
    const { [field]: _, ...inputs } = this.inputs;
    for (const name of FOLLOW[field] ?? []) delete inputs[name];
    if (field === "remedy") {
      this.stop();
      this.at = 0;
    }
    const chosen = field === "capacity" && value ? Number(value) : value; // a list speaks in texts
    if (field === "remedy" || (chosen !== "" && chosen !== this.constants.defaults[field])) inputs[field] = chosen;
    this.submit(inputs);
  }

  /** Show the rows of one rank alone; the same again shows all. */
  mark(rank) {
    this.marked = this.marked === rank ? null : rank;
    for (const part of this.parts) part.mark?.();
  }

  refresh() {
    const { remedy, ranks } = this.result.values;
    for (const { row, spec } of this.settings.all)
      row.hidden = OF_REMEDY[spec.field] && OF_REMEDY[spec.field] !== remedy && this.error?.field !== spec.field;
    this.steering.hidden = !this.steps;
    if (this.marked >= ranks) this.marked = null;
    super.refresh();
  }

  // --- where the reader is

  show() {
    const after = this.at ? `after ${plural(this.at, "update")} of the biases` : "before the first update";
    say(this.caption, `The same tokens, ${after} (of ${this.steps}).`);
    super.show();
    set(this.player.slider, "aria-valuetext", after);
  }
}

export default entry(Routing);
