// The gossip widget. `inputs` is a flat object of what the reader has set, `outputs` what
// playbook_widgets.compute.gossip.compute makes of it (values after every step, the disagreement that is left, who takes from
// whom), `constants` says what the controls are. Nothing is computed here that Python can: this module draws, plays, and listens.

import { Curve } from "./gossip/curve.mjs";
import { Facts } from "./gossip/facts.mjs";
import { Graph } from "./gossip/graph.mjs";
import { number } from "./gossip/pieces.mjs";
import { Start } from "./gossip/start.mjs";
import { make, say, set } from "./shared/dom.mjs";
import { Examples } from "./shared/examples.mjs";
import { entry, linked } from "./shared/form.mjs";
import { plural, share } from "./shared/numbers.mjs";
import { Player } from "./shared/player.mjs";
import { Settings } from "./shared/settings.mjs";
import { Stepper } from "./shared/stepper.mjs";
import { Verdict } from "./shared/verdict.mjs";

// The state in a link: topology=torus&nodes=16&values=10,0,0,5&step=3
const { encode, decode } = linked(
  { topology: "ring" },
  ["nodes", "values", "parameters", "itemsize", "step", "node"],
  ["values"],
);

export { decode, encode };

/** Fields with which other steps come. */
const STEPS = ["topology", "nodes", "values"];

class GossipMixing extends Stepper {
  constructor(model, el) {
    super(model, "pb-go", "topology");
    this.at = this.asked();
    this.settings = new Settings(this, "pb-go");
    this.player = new Player(this);
    this.caption = make("p", { class: "pb-go-caption" });
    const parts = [
      new Examples(this, "Topologies to load", ["step", "node"]),
      new Start(this),
      new Graph(this),
      new Curve(this),
      new Facts(this),
      new Verdict(this),
    ];
    const [examples, start, graph, curve, facts, verdict] = parts.map((part) => part.root);
    this.parts = parts;
    const pair = make("div", { class: "pb-go-pair" }, make("div", { class: "pb-go-column" }, graph, start), curve);
    const scene = make(
      "section",
      { class: "pb-go-scene", "aria-label": "Step by step" },
      this.caption,
      this.player.root,
      pair,
    );
    this.open(
      el,
      "Gossip: values that mix over a topology",
      examples,
      this.settings.root,
      this.status,
      scene,
      facts,
      verdict,
    );
  }

  // --- what is known

  get steps() {
    return this.result.frames.length - 1;
  }

  /** Values of all nodes at the step that is shown. */
  get frame() {
    return this.result.frames[this.at];
  }

  /** The node whose neighbours are lit, and whose value is set. */
  get node() {
    const { node = 0 } = this.inputs;
    return Number.isInteger(node) ? Math.min(this.frame.length - 1, Math.max(0, node)) : 0;
  }

  /** What the node takes in the step that comes next: pairs of a node and a weight. */
  get taken() {
    const { mixing } = this.result;
    return mixing[this.at % mixing.length][this.node];
  }

  /** The texts of the values at the start, as many as there are nodes. */
  get texts() {
    const texts = String(this.values().values).split(",");
    return this.frame.map((_, i) => texts[i] ?? "0");
  }

  /** With other values come steps: an address may have named one that there was not before. */
  arrived() {
    this.take();
    this.at = this.playing ? Math.min(this.at, this.steps) : this.asked();
    this.refresh();
  }

  told() {
    super.told();
    if (!this.own) this.show();
  }

  // --- what the reader sets

  change(field, value) {
    if (STEPS.includes(field)) this.stop();
    super.change(field, value);
  }

  load(inputs) {
    this.stop();
    super.load(inputs);
  }

  /** Other values, another topology, begin at the beginning. */
  submit({ step, ...inputs }) {
    const kept = STEPS.every((field) => inputs[field] === this.inputs[field]) && step !== undefined;
    super.submit(kept ? { ...inputs, step } : inputs);
  }

  /** Values at the start, the zeros at the end left out. */
  put(texts) {
    this.change("values", texts.join(",").replace(/(,0)+$/, ""));
  }

  /** A value of the node that is chosen. */
  putOne(text) {
    this.put(this.texts.with(this.node, text));
  }

  /** Show another node; Python need not hear of it. */
  choose(node) {
    const { node: _, ...inputs } = this.inputs,
      { length } = this.frame,
      next = (node + length) % length;
    this.send(next ? { ...inputs, node: next } : inputs);
    this.show();
  }

  // --- where the reader is

  show() {
    const { left, mean } = this.result,
      [low, high] = [Math.min(...this.frame), Math.max(...this.frame)];
    const part = this.at
      ? `${share(left[this.at], 1)} of the disagreement is left, values from ${number(low)} to ${number(high)}`
      : `values from ${number(low)} to ${number(high)}`;
    say(
      this.caption,
      `${this.at ? `After ${plural(this.at, "step")}` : "At the start"}: ${part}, mean ${number(mean)}.`,
    );
    super.show();
    set(this.player.slider, "aria-valuetext", this.at ? `after step ${this.at}` : "at the start");
  }
}

export default entry(GossipMixing);
