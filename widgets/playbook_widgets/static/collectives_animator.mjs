// The collectives animator. `inputs` is a flat object of what the reader has set, `outputs` what
// playbook_widgets.compute.animation.compute makes of it (every message, what it changes, when it is on its way), `constants`
// says what the controls are. Nothing is computed here that Python can: this module draws, plays, and listens.

import { Settings } from "./collectives_animator/controls.mjs";
import { Details } from "./collectives_animator/details.mjs";
import { Rivals } from "./collectives_animator/rivals.mjs";
import { Stage } from "./collectives_animator/stage.mjs";
import { Strip } from "./collectives_animator/strip.mjs";
import { Traffic } from "./collectives_animator/traffic.mjs";
import { Verdict } from "./collectives_animator/verdict.mjs";
import { states } from "./collectives_animator/words.mjs";
import { make } from "./shared/dom.mjs";
import { entry, linked } from "./shared/form.mjs";
import { Player, STEP } from "./shared/player.mjs";
import { Stepper } from "./shared/stepper.mjs";

// The state in a link: collective=all_gather&ranks=8&step=3
const { encode, decode } = linked({ collective: "all_reduce" }, [
  "algorithm",
  "ranks",
  "bytes",
  "cluster",
  "ranks_per_node",
  "root",
  "step",
]);

export { decode, encode };

/** Collectives of which a chunk holds the parts of several ranks. */
const SUMS = new Set(["reduce", "reduce_scatter", "all_reduce", "barrier"]);

class Animator extends Stepper {
  constructor(model, el) {
    super(model, "pb-ca", "collective");
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    this.settings = new Settings(this);
    [this.verdict, this.stage, this.player, this.strip] = [
      new Verdict(this),
      new Stage(this),
      new Player(this),
      new Strip(this),
    ];
    [this.rivals, this.traffic, this.details] = [new Rivals(this), new Traffic(this), new Details(this)];
    this.parts = [this.verdict, this.stage, this.strip, this.rivals, this.traffic, this.details];
    this.build(el);
  }

  build(el) {
    const { verdict, stage, player } = this;
    stage.root.append(player.root, stage.legend, stage.reading);
    const pair = make("div", { class: "pb-ca-pair" }, this.rivals.root, this.traffic.root);
    this.open(
      el,
      "Collectives animator",
      this.settings.root,
      this.status,
      verdict.root,
      stage.root,
      verdict.numbers,
      this.strip.root,
      pair,
      this.details.root,
    );
  }

  // --- what is known

  /** What the controls show: what the reader has set over what follows from it. */
  values() {
    const { defaults } = this.constants,
      { inputs } = this,
      cluster = inputs.cluster ?? defaults.cluster;
    const base = {
      ...defaults,
      algorithm: defaults.algorithm[inputs.collective],
      ranks_per_node: Math.min(16, defaults.ranks_per_node[cluster] ?? 16),
    };
    return { ...base, ...inputs };
  }

  /** Whether two ranks are in one node. */
  together(a, b) {
    const inNode = this.result.nodes[0].length;
    return Math.floor(a / inNode) === Math.floor(b / inNode);
  }

  take() {
    const outputs = this.model.get("outputs");
    this.error = outputs.error;
    if (outputs.error) return;
    const { values, steps } = outputs,
      plan = [values.collective, values.algorithm, values.ranks, values.root, steps.length].join();
    Object.assign(this, { result: outputs, states: states(outputs), sums: SUMS.has(values.collective) });
    if (this.plan === plan) return;
    this.plan = plan;
    this.stop();
    this.at = this.asked();
  }

  // --- what the reader sets

  /** Set one field; what equals the default is left out, so that links stay short. Another plan starts at its beginning. */
  change(field, value) {
    const { [field]: _, ...inputs } = this.inputs,
      { defaults, collectives } = this.constants;
    if (field === "collective" && !collectives[value].algorithms.some(([name]) => name === inputs.algorithm))
      delete inputs.algorithm;
    if (!["bytes", "cluster", "ranks_per_node"].includes(field)) delete inputs.step;
    const base = {
      ...defaults,
      algorithm: defaults.algorithm[inputs.collective],
      ranks_per_node: defaults.ranks_per_node[inputs.cluster ?? defaults.cluster],
    }[field];
    if (field === "collective" || value !== base) inputs[field] = value;
    this.submit(inputs);
  }

  refresh() {
    for (const part of [this.settings, ...this.parts]) part.update();
    this.player.show();
    this.root.toggleAttribute("data-stale", Boolean(this.error));
  }

  // --- where the reader is

  back() {
    this.jump(this.moving ? this.at : this.at - 1);
  }

  forward() {
    if (this.at >= this.steps) return;
    if (this.still.matches) return this.jump(this.at + 1);
    const next = this.moving ? this.at + 1 : this.at; // a step that is under way is finished at once
    if (next >= this.steps) return this.jump(next);
    this.stop();
    this.at = next;
    this.move(next + 1);
  }

  run() {
    this.still.matches ? this.pictures() : this.move(this.steps);
  }

  /** Let messages move until the reader is at `until`. */
  move(until) {
    Object.assign(this, { until, moving: true, drawn: performance.now() });
    cancelAnimationFrame(this.next);
    this.show();
    this.next = requestAnimationFrame((now) => this.tick(now));
  }

  tick(now) {
    this.progress += (Math.max(0, now - this.drawn) / STEP) * this.speed;
    this.drawn = now;
    if (this.progress >= 1) {
      Object.assign(this, { at: this.at + 1, progress: 0 });
      if (this.at >= Math.min(this.until, this.steps)) return this.jump(this.at);
      this.show();
    } else this.frame();
    this.next = requestAnimationFrame((later) => this.tick(later));
  }

  frame() {
    this.stage.frame();
    this.strip.frame();
    this.player.show();
  }

  close() {
    super.close();
    for (const part of [this.verdict.announcer, this.details.carrier]) part.close();
    this.stage.sizes.disconnect();
    this.strip.sizes.disconnect();
  }
}

export default entry(Animator);
