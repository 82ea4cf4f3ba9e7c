// The memory calculator. `inputs` is { configs: [config] or [config, config], advice }, a config a flat object of what
// the reader has set; `outputs` is what playbook_widgets.compute.calculator.compute makes of it; `constants` says what the
// controls are. Nothing is computed here that Python can: this module draws, and listens.

import { Actions } from "./memory_calculator/actions.mjs";
import { Advice } from "./memory_calculator/advice.mjs";
import { Bars } from "./memory_calculator/bars.mjs";
import { Controls } from "./memory_calculator/controls.mjs";
import { Curve } from "./memory_calculator/curve.mjs";
import { Table } from "./memory_calculator/table.mjs";
import { Verdict } from "./memory_calculator/verdict.mjs";
import { decodePairs, encodePairs } from "./shared/address.mjs";
import { make, newId } from "./shared/dom.mjs";
import { entry } from "./shared/form.mjs";
import { Freshness } from "./shared/freshness.mjs";
import { bytes, MINUS, SYSTEMS, share } from "./shared/numbers.mjs";
import { PythonStatus } from "./shared/parts.mjs";
import { settings } from "./shared/pasted.mjs";

// The state in a link: model=llama3-70b&tp=8;model=llama3-70b&tp=4
const KEYS = (
  "model layers hidden heads kv_heads head_dim ffn vocab activation gated norm bias tied dropout moe.experts moe.top_k moe.ffn " +
  "moe.shared_experts moe.dense_layers moe.every moe.scores moe.normalized moe.balance_loss moe.balance_over moe.z_loss accelerator memory reserve unit gpus dp tp sp cp pp schedule vpp ep etp zero replicate micro_batch grad_acc seq recompute " +
  "attention fused offload bucket_mb train precision fp8 optimizer_bytes"
).split(" ");

/** Of a model that was pasted, a link carries the fields that Python has read, not the whole text. */
export function encode(inputs, outputs) {
  const short = (config, own) => (own && own.pasted === config.model ? { ...config, model: own.fields } : config);
  return inputs.configs.map((config, side) => encodePairs(short(config, outputs?.results[side]?.own))).join(";");
}

export function decode(text) {
  return {
    configs: text
      .split(";")
      .slice(0, 2)
      .map((part) => decodePairs(part, KEYS)),
    advice: false,
  };
}

class Calculator {
  constructor(model, el) {
    Object.assign(this, {
      model,
      id: newId("pb-mc"),
      prefix: "pb-mc",
      constants: model.get("constants"),
      side: 0,
      stage: [null, null],
      opened: new Set(),
      last: [],
      errors: [],
    });
    this.fresh = new Freshness(model, (inputs) => inputs.configs);
    this.take();
    const narrow = el.clientWidth < 640;
    this.status = make("span", { class: "pb-mc-status", role: "status" });
    this.controls = new Controls(this, narrow);
    this.verdict = new Verdict(this);
    this.bars = new Bars(this);
    this.table = new Table(this);
    this.curve = new Curve(this);
    this.advice = new Advice(this);
    this.actions = new Actions(this);
    this.python = new PythonStatus(model, this.status);
    this.build(el);
    this.refresh();
    this.handlers = [
      ["change:outputs", () => this.arrived()],
      ["change:inputs", () => this.told()],
      ["change:status", () => this.freshen()],
      ["change:link", () => this.actions.update()],
    ];
    for (const [event, handler] of this.handlers) model.on(event, handler);
    this.rest();
  }

  build(el) {
    const answer = make(
      "div",
      { class: "pb-mc-answer" },
      this.fresh.root,
      this.verdict.root,
      this.verdict.facts,
      this.bars.root,
    );
    const detail = make(
      "div",
      { class: "pb-mc-detail" },
      this.advice.root,
      this.table.root,
      this.curve.root,
      this.actions.root,
    );
    this.results = make("div", { class: "pb-mc-results" }, answer, detail);
    this.root = make(
      "div",
      { class: "pb-w pb-form pb-mc", role: "group", "aria-label": "Memory calculator" },
      make("div", { class: "pb-mc-grid" }, this.controls.root, this.results),
    );
    el.replaceChildren(this.root);
  }

  // --- what is known

  get inputs() {
    return this.model.get("inputs");
  }

  /** The configuration that the controls set, its last valid result and, if the newest was refused, why. */
  current() {
    return { config: this.inputs.configs[this.side], result: this.last[this.side], error: this.errors[this.side] };
  }

  /** The results that are drawn. */
  shown() {
    return this.inputs.configs.map((_, side) => this.last[side]).filter(Boolean);
  }

  /** The system of units in which sizes are shown; Python refuses others. */
  get unit() {
    const { unit } = this.inputs.configs[0];
    return unit in SYSTEMS ? unit : "GB";
  }

  bytes(size) {
    return bytes(size, this.unit);
  }

  versus(a, b) {
    return a === b
      ? "B needs as much as A."
      : `B needs ${this.bytes(Math.abs(b - a))} ${b < a ? "less" : "more"} than A (${b < a ? MINUS : "+"}${share(Math.abs(b - a), a)}).`;
  }

  /** The stage whose breakdown is shown: the reader's choice while it is there, else the fullest. */
  selected(side) {
    const result = this.last[side],
      chosen = this.stage[side];
    return chosen !== null && chosen < result.stages.length ? chosen : result.fullest;
  }

  /** What a control shows when the reader has set nothing. */
  base(field, config = this.current().config) {
    const { presets, defaults, recipes } = this.constants,
      own = this.last[this.side]?.own,
      { model = defaults.model } = config;
    const sizes = (own?.pasted === model ? own : presets[String(model).toLowerCase()])?.sizes ?? {};
    if (field === "optimizer_bytes") return recipes[config.precision ?? defaults.precision];
    return field in sizes ? sizes[field] : defaults[field];
  }

  isOwn(field) {
    const { config } = this.current();
    return field !== "model" && field in config && config[field] !== this.base(field);
  }

  /** Results of settings that are no longer those of the controls stand until newer ones come, unless these came by a link. */
  take() {
    if (this.strange && !this.fresh.fresh) return;
    this.strange = false;
    const { results } = this.model.get("outputs");
    this.errors = results.map((result) => result.error);
    results.forEach((result, side) => !result.error && (this.last[side] = result));
  }

  // --- what the reader does

  /** Set one field of the current configuration; what equals the preset is left out, so that links stay short. */
  change(field, value) {
    if (field === "unit")
      return this.send(
        this.inputs.configs.map(({ unit: _, ...config }) =>
          value === this.base(field) ? config : { ...config, unit: value },
        ),
      );
    const config = { ...this.current().config },
      { sizes } = Object.values(this.constants.presets)[0];
    if (field === "model") [this.before, this.pasted] = [this.current().config, undefined];
    if (field === "model") for (const key of Object.keys(sizes)) if (key !== "seq") delete config[key];
    if (field === "accelerator") delete config.memory;
    if (field === "gpus") delete config.dp;
    if (field === "dp") delete config.gpus;
    if (field === "moe.experts" && value === 0)
      for (const key of Object.keys(config)) if (key.startsWith("moe.")) delete config[key];
    delete config[field];
    const follows = this.controls.all.get(field).spec.follows && Object.keys(sizes).some((key) => key in config);
    if (follows || field === "model" || field === "gpus" || value !== this.base(field, config)) config[field] = value;
    this.send(this.inputs.configs.map((old, side) => (side === this.side ? config : old)));
  }

  reset(field) {
    if (field === "unit") return this.change(field, this.base(field));
    const { [field]: _, ...config } = this.current().config;
    this.send(this.inputs.configs.map((old, side) => (side === this.side ? config : old)));
  }

  clear() {
    const old = this.current().config,
      kept = ["model", "accelerator", "memory", "reserve", "unit"].filter((key) => key in old);
    const config = Object.fromEntries(kept.map((key) => [key, old[key]]));
    this.send(this.inputs.configs.map((old, side) => (side === this.side ? config : old)));
  }

  /** Advice as the reader's own settings. Where a number of GPUs was given, it stays that which is given. */
  apply({ set }) {
    const { config, result } = this.current(),
      next = { ...config, ...set },
      size = (axis) => set[axis] ?? result.values[axis];
    if (config.gpus != null) {
      delete next.dp;
      next.gpus = size("dp") * size("tp") * size("cp") * size("pp");
    }
    const known = Object.fromEntries(Object.entries(next).filter(([, value]) => value !== null));
    this.send(this.inputs.configs.map((old, side) => (side === this.side ? known : old)));
  }

  compare() {
    const [config] = this.inputs.configs;
    [this.last[1], this.errors[1], this.stage[1], this.side] = [this.last[0], this.errors[0], this.stage[0], 1];
    this.send([config, { ...config }]);
  }

  swap() {
    for (const list of [this.last, this.errors, this.stage]) list.reverse();
    this.send([...this.inputs.configs].reverse());
  }

  remove() {
    this.side = 0;
    this.last.length = this.errors.length = 1;
    this.send([this.inputs.configs[0]]);
  }

  choose(side) {
    this.side = side;
    this.refresh();
    this.rest();
  }

  open(side, stage, category) {
    if (this.inputs.configs.length > 1) this.side = side;
    this.stage[side] = stage;
    if (category) this.opened = new Set([category]);
    else if (stage !== null && !this.opened.size)
      this.opened = new Set(this.constants.categories.map(([name]) => name));
    this.refresh();
  }

  /** Whether the reader has opened this very stage. */
  pinned(side, stage) {
    return this.stage[side] === stage && this.selected(side) === stage;
  }

  toggle(category) {
    this.opened.has(category) ? this.opened.delete(category) : this.opened.add(category);
    this.bars.update();
    this.table.update();
  }

  // --- there and back

  send(configs) {
    this.put({ configs, advice: false });
    this.refresh();
  }

  put(inputs) {
    this.own = true;
    this.model.set("inputs", inputs);
    this.own = false;
    this.model.save_changes();
  }

  /** Inputs have changed. Where the reader has not set them here, they came by a link: what is shown has nothing to do with them. */
  told() {
    if (this.own) return this.controls.update();
    Object.assign(this, { last: [], errors: [], strange: true });
    this.take();
    this.refresh();
  }

  arrived() {
    this.take();
    const { config, result, error } = this.current(),
      kept = ["accelerator", "memory", "reserve", "unit"],
      sizes = Object.keys(Object.values(this.constants.presets)[0].sizes);
    if (result?.pasted && this.fresh.fresh && !error) {
      this.pasted = result.pasted;
      this.controls.all.get("model").field.forget();
      const next = settings(config, this.before ?? {}, result.pasted, kept, sizes);
      return this.send(this.inputs.configs.map((old, side) => (side === this.side ? next : old)));
    }
    this.refresh();
    this.rest();
  }

  /** Advice is asked for when the reader rests on something that does not fit. */
  rest() {
    clearTimeout(this.resting);
    const { result, error } = this.current();
    if (!result || result.verdict === "fits" || error || this.inputs.advice) return;
    this.resting = setTimeout(() => this.put({ ...this.inputs, advice: true }), 250);
  }

  refresh() {
    if (this.side >= this.inputs.configs.length) this.side = 0;
    this.controls.update();
    for (const part of [this.verdict, this.bars, this.advice, this.table, this.curve, this.actions]) part.update();
    this.root.dataset.sides = this.inputs.configs.length;
    this.freshen();
  }

  /** Say, and show, whether the results are those of the settings. */
  freshen() {
    const { result, error } = this.current();
    this.fresh.update({ root: this.results, buttons: this.actions.taking, shown: Boolean(result), error });
  }

  close() {
    for (const [event, handler] of this.handlers) this.model.off(event, handler);
    clearTimeout(this.resting);
    for (const part of [this.fresh, this.python, this.controls, this.verdict.announcer, this.actions.carrier])
      part.close();
    this.curve.sizes.disconnect();
  }
}

export default entry(Calculator);
