// The collectives animator. `inputs` is a flat object of what the reader has set, `outputs` what
// playbook.planning.animation.compute makes of it (every message, what it changes, when it is on its way), `constants`
// says what the controls are. Nothing is computed here that Python can: this module draws, plays, and listens.

import { decodePairs, encodePairs } from "./shared/address.mjs";
import { make, newId } from "./shared/dom.mjs";
import { PythonStatus } from "./shared/parts.mjs";
import { Settings } from "./collectives_animator/controls.mjs";
import { Details } from "./collectives_animator/details.mjs";
import { Player, STEP } from "./shared/player.mjs";
import { Rivals } from "./collectives_animator/rivals.mjs";
import { Stage } from "./collectives_animator/stage.mjs";
import { Strip } from "./collectives_animator/strip.mjs";
import { Traffic } from "./collectives_animator/traffic.mjs";
import { Verdict } from "./collectives_animator/verdict.mjs";
import { states } from "./collectives_animator/words.mjs";

// The state in a link: collective=all_gather&ranks=8&step=3
const KEYS = ["collective", "algorithm", "ranks", "bytes", "cluster", "ranks_per_node", "root", "step"];

export function encode(inputs) {
  return encodePairs(inputs, KEYS);
}

export function decode(text) {
  return { collective: "all_reduce", ...decodePairs(text, KEYS) };
}

/** Collectives of which a chunk holds the parts of several ranks. */
const SUMS = new Set(["reduce", "reduce_scatter", "all_reduce", "barrier"]);

class Animator {
  constructor(model, el) {
    Object.assign(this, { model, id: newId("pb-ca"), constants: model.get("constants"), at: 0, progress: 0, speed: 1, moving: false, playing: false });
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    this.status = make("p", { class: "pb-ca-status", role: "status" });
    this.take();
    this.settings = new Settings(this);
    [this.verdict, this.stage, this.player, this.strip] = [new Verdict(this), new Stage(this), new Player(this, "pb-ca"), new Strip(this)];
    [this.rivals, this.traffic, this.details] = [new Rivals(this), new Traffic(this), new Details(this)];
    this.python = new PythonStatus(model, this.status);
    this.build(el);
    this.refresh();
    this.handlers = { outputs: () => this.arrived(), inputs: () => this.told(), link: () => this.details.update() };
    for (const [trait, handler] of Object.entries(this.handlers)) model.on(`change:${trait}`, handler);
  }

  build(el) {
    const { verdict, stage, player } = this;
    stage.root.append(player.root, stage.legend, stage.reading);
    const pair = make("div", { class: "pb-ca-pair" }, this.rivals.root, this.traffic.root);
    this.root = make("div", { class: "pb-w pb-form pb-ca", role: "group", "aria-label": "Collectives animator" },
      this.settings.root, this.status, verdict.root, stage.root, verdict.numbers, this.strip.root, pair, this.details.root);
    this.root.addEventListener("keydown", (e) => this.key(e));
    el.replaceChildren(this.root);
  }

  // --- what is known

  get inputs() {
    return this.model.get("inputs");
  }

  /** What the controls show: what the reader has set over what follows from it. */
  values() {
    const { defaults } = this.constants, { inputs } = this, cluster = inputs.cluster ?? defaults.cluster;
    const base = { ...defaults, algorithm: defaults.algorithm[inputs.collective], ranks_per_node: Math.min(16, defaults.ranks_per_node[cluster] ?? 16) };
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
    const { values, steps } = outputs, plan = [values.collective, values.algorithm, values.ranks, values.root, steps.length].join();
    Object.assign(this, { result: outputs, states: states(outputs), sums: SUMS.has(values.collective) });
    if (this.plan === plan) return;
    this.plan = plan;
    this.stop();
    this.at = this.asked();
  }

  /** Where the inputs say that the reader is. */
  asked() {
    const step = Number(this.inputs.step ?? 0);
    return Math.min(this.result.steps.length, Math.max(0, Number.isInteger(step) ? step : 0));
  }

  // --- what the reader sets

  /** Set one field; what equals the default is left out, so that links stay short. Another plan starts at its beginning. */
  change(field, value) {
    const { [field]: _, ...inputs } = this.inputs, { defaults, collectives } = this.constants;
    if (field === "collective" && !collectives[value].algorithms.some(([name]) => name === inputs.algorithm)) delete inputs.algorithm;
    if (!["bytes", "cluster", "ranks_per_node"].includes(field)) delete inputs.step;
    const base = { ...defaults, algorithm: defaults.algorithm[inputs.collective], ranks_per_node: defaults.ranks_per_node[inputs.cluster ?? defaults.cluster] }[field];
    if (field === "collective" || value !== base) inputs[field] = value;
    this.send(inputs);
    this.model.save_changes();
  }

  send(inputs) {
    this.own = true;
    this.model.set("inputs", inputs);
    this.own = false;
    this.settings.update();
  }

  /** Inputs that come from elsewhere, the address or another view, may say another step. */
  told() {
    this.settings.update();
    if (this.own || this.moving || this.asked() === this.at) return;
    this.at = this.asked();
    this.show();
  }

  arrived() {
    this.take();
    this.at = Math.min(this.at, this.result.steps.length);
    this.refresh();
  }

  refresh() {
    for (const part of [this.settings, this.verdict, this.stage, this.strip, this.rivals, this.traffic, this.details]) part.update();
    this.player.show();
    this.root.toggleAttribute("data-stale", Boolean(this.error));
  }

  // --- where the reader is

  show() {
    for (const part of [this.stage, this.player, this.strip, this.traffic, this.details]) part.show();
  }

  jump(at) {
    this.stop();
    this.at = at;
    this.rest();
  }

  back() {
    this.jump(Math.max(0, this.moving ? this.at : this.at - 1));
  }

  forward() {
    if (this.at >= this.result.steps.length) return;
    if (this.still.matches) return this.jump(this.at + 1);
    const next = this.moving ? this.at + 1 : this.at; // a step that is under way is finished at once
    if (next >= this.result.steps.length) return this.jump(next);
    this.stop();
    this.at = next;
    this.run(next + 1);
  }

  toggle() {
    if (this.playing) return this.pause();
    if (this.at >= this.result.steps.length) this.at = 0;
    this.playing = true;
    if (this.still.matches) this.tickStill();
    else this.run(this.result.steps.length);
  }

  pause() {
    this.stop();
    this.rest();
  }

  /** Let messages move until the reader is at `until`. */
  run(until) {
    Object.assign(this, { until, moving: true, then: performance.now() });
    cancelAnimationFrame(this.next);
    this.show();
    this.next = requestAnimationFrame((now) => this.tick(now));
  }

  tick(now) {
    this.progress += (Math.max(0, now - this.then) / STEP) * this.speed;
    this.then = now;
    if (this.progress >= 1) {
      Object.assign(this, { at: this.at + 1, progress: 0 });
      if (this.at >= Math.min(this.until, this.result.steps.length)) return this.pause();
      this.show();
    } else this.frame();
    this.next = requestAnimationFrame((later) => this.tick(later));
  }

  frame() {
    this.stage.frame();
    this.strip.frame();
    this.player.show();
  }

  /** Without motion, playing goes from one picture to the next. */
  tickStill() {
    this.show();
    this.later = setTimeout(() => {
      this.at = Math.min(this.at + 1, this.result.steps.length);
      this.at === this.result.steps.length ? this.pause() : this.tickStill();
    }, STEP / this.speed);
  }

  stop() {
    cancelAnimationFrame(this.next);
    clearTimeout(this.later);
    Object.assign(this, { moving: false, playing: false, progress: 0 });
  }

  /** Draw what is at rest, and remember the place for the link; Python need not hear of it. */
  rest() {
    const { step, ...others } = this.inputs;
    this.send(this.at ? { ...others, step: this.at } : others);
    this.show();
  }

  key(event) {
    const { target, key } = event, typing = target.matches("select, input:not(.pb-ca-scrub)") || (target.matches("input") && key !== " ");
    const pressing = target.matches("button, summary");
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || typing) return;
    const end = () => this.jump(this.result.steps.length), start = () => this.jump(0);
    const action = { ArrowRight: () => this.forward(), ArrowLeft: () => this.back(), Home: start, End: end, " ": () => this.toggle() }[key];
    if (!action || (key === " " && pressing) || target.closest(".pb-scroll")) return;
    event.preventDefault();
    action();
  }

  close() {
    this.stop();
    for (const [trait, handler] of Object.entries(this.handlers)) this.model.off(`change:${trait}`, handler);
    for (const part of [this.python, this.settings, this.verdict.announcer, this.details.carrier]) part.close();
    this.stage.sizes.disconnect();
    this.strip.sizes.disconnect();
  }
}

export default {
  render({ model, el }) {
    const animator = new Animator(model, el);
    return () => animator.close();
  },
};
