// My cluster. `inputs` is a flat object of what the reader has set, with `layout`, the one that is looked at, and `map`,
// whether the best of each cell is wanted; `outputs` is what playbook_widgets.compute.my_cluster.compute makes of it.

import { Bars } from "./memory_calculator/bars.mjs";
import { Heat } from "./my_cluster/heat.mjs";
import { Plan } from "./my_cluster/plan.mjs";
import { Ranking } from "./my_cluster/ranking.mjs";
import { Timeline } from "./my_cluster/timeline.mjs";
import { decodePairs, encodePairs } from "./shared/address.mjs";
import { make, newId } from "./shared/dom.mjs";
import { entry } from "./shared/form.mjs";
import { Freshness } from "./shared/freshness.mjs";
import { Groups } from "./shared/groups.mjs";
import { bytes, SYSTEMS } from "./shared/numbers.mjs";
import { Announcer, PythonStatus } from "./shared/parts.mjs";
import { settings } from "./shared/pasted.mjs";

/** What the ranking is narrowed to stays as it was typed: 2,4 is a list. */
const ONLY = ["tp", "pp", "cp", "ep", "zero", "replicate", "recompute"];
const MACHINE = "accelerator memory reserve unit tflops hbm gpus_per_node intra inter price tokens calibration".split(
  " ",
);
const PLAN = ["gpus", "global_batch", "seq", "train", "precision", "fp8"];
const KEYS = ["model", ...MACHINE, ...PLAN, ...ONLY, "runs_in", "layout"];

/** Of a model that was pasted, a link carries the fields that Python has read, not the whole text. */
export function encode(inputs, outputs) {
  const own = outputs?.own;
  return encodePairs(own && own.pasted === inputs.model ? { ...inputs, model: own.fields } : inputs, KEYS);
}

export function decode(text) {
  return { ...decodePairs(text, KEYS, ONLY), map: false };
}

class MyCluster {
  constructor(model, el) {
    Object.assign(this, { model, id: newId("pb-cl"), constants: model.get("constants") });
    this.fresh = new Freshness(model, ({ map, ...setting }) => setting);
    this.take();
    this.status = make("span", { class: "pb-mc-status", role: "status" });
    this.controls = new Groups(this, el.clientWidth < 640);
    this.ranking = new Ranking(this);
    this.heat = new Heat(this);
    this.timeline = new Timeline(this);
    this.bars = new Bars(this.memory());
    this.plan = new Plan(this);
    this.announcer = new Announcer();
    this.python = new PythonStatus(model, this.status);
    this.build(el);
    this.refresh();
    this.handlers = [
      ["change:outputs", () => this.arrived()],
      ["change:inputs", () => this.told()],
      ["change:status", () => this.freshen()],
      ["change:link", () => this.plan.update()],
    ];
    for (const [event, handler] of this.handlers) model.on(event, handler);
    this.rest();
  }

  build(el) {
    const answer = make("div", { class: "pb-mc-answer" }, this.fresh.root, this.ranking.verdict, this.announcer.root);
    const legend = this.constants.categories.map(([, words, , colour]) =>
      make("span", {}, make("i", { class: "pb-cl-swatch", style: `--hue:${colour}` }), words),
    );
    const held = make(
      "section",
      { "aria-label": "Memory" },
      make("h3", { class: "pb-mc-heading" }, "Its memory, on each GPU"),
      this.bars.root,
      make("p", { class: "pb-cl-legend" }, ...legend),
    );
    this.detail = make(
      "div",
      { class: "pb-mc-detail" },
      this.ranking.root,
      this.timeline.root,
      held,
      this.heat.root,
      this.plan.root,
    );
    this.results = make("div", { class: "pb-mc-results" }, answer, this.detail);
    this.root = make(
      "div",
      { class: "pb-w pb-form pb-mc pb-cl", role: "group", "aria-label": "My cluster" },
      make("div", { class: "pb-mc-grid" }, this.controls.root, this.results),
    );
    el.replaceChildren(this.root);
  }

  /** The memory of the layout that is looked at, as the calculator's bars take it. */
  memory() {
    const app = this,
      stage = () => app.result.report.fullest;
    return {
      constants: app.constants,
      inputs: { configs: [null] },
      errors: [],
      opened: new Set(),
      bytes: (size) => app.bytes(size),
      selected: stage,
      pinned: () => false,
      open() {},
      get last() {
        return [app.result?.report];
      },
      shown() {
        return this.last.filter(Boolean);
      },
    };
  }

  // --- what is known

  get inputs() {
    return this.model.get("inputs");
  }

  get unit() {
    return this.inputs.unit in SYSTEMS ? this.inputs.unit : "GB";
  }

  bytes(size) {
    return bytes(size, this.unit);
  }

  /** What the controls set, its last valid result and, if the newest was refused, why. */
  current() {
    const { map, layout, ...config } = this.inputs;
    return { config, result: this.result, error: this.error };
  }

  base(field) {
    return this.constants.defaults[field];
  }

  isOwn(field) {
    return field !== "model" && field in this.inputs && this.inputs[field] !== this.base(field);
  }

  /** A result of a setting that is no longer that of the controls stands until a newer one comes, unless this came by a link. */
  take() {
    if (this.strange && !this.fresh.fresh) return;
    this.strange = false;
    const outputs = this.model.get("outputs");
    this.error = outputs.error;
    if (!outputs.error) this.result = outputs;
  }

  // --- what the reader does

  change(field, value) {
    const { [field]: _, ...others } = this.inputs;
    if (field === "model") [this.before, this.pasted] = [this.inputs, undefined];
    if (field === "accelerator")
      for (const key of ["memory", "tflops", "hbm", "gpus_per_node", "intra", "inter"]) delete others[key];
    this.send(field !== "model" && value === this.base(field) ? others : { ...others, [field]: value });
  }

  reset(field) {
    const { [field]: _, ...others } = this.inputs;
    this.send(others);
  }

  /** Look at a layout; the fastest needs no name. */
  look(layout) {
    this.change("layout", layout === this.result.rows[0].layout ? "" : layout);
  }

  // --- there and back

  send(inputs) {
    this.put({ ...inputs, map: false });
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
    Object.assign(this, { result: undefined, error: undefined, strange: true });
    this.take();
    this.refresh();
  }

  arrived() {
    this.take();
    if (this.result?.pasted && this.fresh.fresh && !this.error) {
      this.pasted = this.result.pasted;
      this.controls.all.get("model").field.forget();
      return this.send(settings(this.inputs, this.before ?? {}, this.pasted, MACHINE, []));
    }
    this.refresh();
    this.rest();
  }

  /** The map takes longer: it is asked for when the reader rests. */
  rest() {
    clearTimeout(this.resting);
    if (!this.result || this.error || this.inputs.map) return;
    this.resting = setTimeout(() => this.put({ ...this.inputs, map: true }), 600);
  }

  refresh() {
    this.controls.update();
    this.freshen();
    this.ranking.verdict.hidden = this.detail.hidden = !this.result;
    if (!this.result) return;
    for (const part of [this.ranking, this.timeline, this.bars, this.heat, this.plan]) part.update();
    this.announcer.tell(() => this.ranking.verdict.innerText);
  }

  /** Say, and show, whether the results are those of the settings. */
  freshen() {
    this.fresh.update({
      root: this.results,
      buttons: this.plan.taking,
      shown: Boolean(this.result),
      error: this.error,
    });
  }

  close() {
    for (const [event, handler] of this.handlers) this.model.off(event, handler);
    clearTimeout(this.resting);
    for (const part of [this.fresh, this.python, this.controls, this.announcer, this.plan.carrier]) part.close();
  }
}

export default entry(MyCluster);
