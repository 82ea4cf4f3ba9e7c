// The pipeline schedule visualizer. `inputs` is a flat object of what the reader has set, `outputs` what
// playbook_widgets.compute.visualizer.compute makes of it (one timeline or two, as columns), `constants` says what the controls
// are. Nothing is computed here that Python can: this module draws, plays, and listens.

import { Builder } from "./schedule_visualizer/builder.mjs";
import { Settings, tools } from "./schedule_visualizer/controls.mjs";
import { Details } from "./schedule_visualizer/details.mjs";
import { Gestures } from "./schedule_visualizer/gestures.mjs";
import { Pointing } from "./schedule_visualizer/pointing.mjs";
import { Reading } from "./schedule_visualizer/reading.mjs";
import { Runs } from "./schedule_visualizer/runs.mjs";
import { Scene } from "./schedule_visualizer/scene.mjs";
import { lastAtOrBefore, Side } from "./schedule_visualizer/side.mjs";
import { Verdict } from "./schedule_visualizer/verdict.mjs";
import { make, say, set } from "./shared/dom.mjs";
import { entry, linked } from "./shared/form.mjs";
import { rounded } from "./shared/numbers.mjs";
import { Player } from "./shared/player.mjs";
import { Stepper } from "./shared/stepper.mjs";

// The state in a link: schedule=zb-h1&compare=1f1b&stages=8&step=12
const link = linked(
  { schedule: "1f1b" },
  "compare stages microbatches vpp run times f b w comm transfer overlap fb limit rest path own step".split(" "),
);
/** A whole step is played in so many ms, at speed 1. */
const PLAY = 14000;
const HELP =
  "Point at an action for what it needs and who waits for it, at a gap for its reason, at the strip below for memory. Drag moves, Ctrl and wheel or two fingers zoom. " +
  "Keys: arrows go from action to action, + − 0 zoom, c critical path, space plays, Escape lets go.";

export function encode(inputs) {
  return link.encode({ ...inputs, path: inputs.path || null });
}

export const decode = link.decode;

class Visualizer extends Stepper {
  constructor(model, el) {
    super(model, "pb-sv", "schedule");
    Object.assign(this, {
      clock: null,
      narrow: el.clientWidth < 640,
      still: matchMedia("(prefers-reduced-motion: reduce)"),
    });
    this.at = this.asked();
    this.settings = new Settings(this, this.narrow);
    this.scene = new Scene(this);
    [this.pointing, this.reading, this.verdict, this.builder, this.runs, this.details] = [
      Pointing,
      Reading,
      Verdict,
      Builder,
      Runs,
      Details,
    ].map((Part) => new Part(this));
    this.player = new Player(this);
    this.parts = [this.verdict, this.builder, this.runs, this.details];
    this.lay(el);
    this.gestures = new Gestures(this);
    this.scene.begin();
  }

  lay(el) {
    const { zoom, path } = tools(this),
      { stage, scroll } = this.scene;
    this.pathButton = path;
    stage.append(this.reading.root);
    [this.caption, this.legend] = ["caption", "legend"].map((name) => make("p", { class: `pb-sv-${name}` }));
    const help = make("p", { class: "pb-sv-note", id: `${this.id}-help` }, HELP);
    const bar = make(
      "div",
      { class: "pb-sv-bar" },
      this.player.root,
      make("span", { class: "pb-sv-buttons" }, path, this.builder.open, zoom),
    );
    const scene = make(
      "section",
      { class: "pb-sv-scene", "aria-label": "Timeline" },
      bar,
      this.caption,
      stage,
      scroll,
      this.reading.live,
      this.legend,
      this.builder.root,
      help,
    );
    this.open(
      el,
      "Pipeline schedule visualizer",
      this.settings.root,
      this.status,
      this.verdict.root,
      scene,
      this.verdict.numbers,
      this.runs.root,
      this.details.root,
    );
  }

  // --- what is known

  /** What the controls show: what the reader has set, over what holds otherwise, over what follows from it. */
  values() {
    const fixed = Object.entries(this.constants.defaults).filter(([, value]) => value !== null);
    return { ...Object.fromEntries(fixed), ...this.result.values, ...this.inputs };
  }

  take() {
    const outputs = this.model.get("outputs");
    this.error = outputs.error;
    if (outputs.error) return;
    this.result = outputs;
    this.sides = outputs.sides.map((side) => new Side(side, this.constants.causes));
    this.cap = outputs.cap;
    this.total = Math.max(outputs.board?.rival.makespan ?? 0, ...this.sides.map((side) => side.makespan)) || 1;
    this.most = Math.max(this.cap ?? 0, ...this.sides.map((side) => side.peak));
    this.moments = Float64Array.from(new Set(this.sides[0].start)).sort();
  }

  /** A time with its unit; seconds as people say them. */
  time(value, digits = 4) {
    const { unit } = this.result,
      size = Math.abs(value);
    const [one, name] = unit !== "s" || !value || size >= 1 ? [1, unit] : size >= 1e-3 ? [1e-3, "ms"] : [1e-6, "µs"];
    return `${rounded(value / one, digits)}${name ? ` ${name}` : ""}`;
  }

  get building() {
    return Boolean(this.result.board);
  }

  get steps() {
    return this.moments.length;
  }

  get home() {
    return this.steps;
  }

  // --- what the reader sets

  /** Set a field; what equals its default is left out, so that links stay short. */
  change(field, value) {
    const { constants } = this,
      inputs = { ...this.inputs },
      preset = constants.presets[value];
    delete inputs.step;
    if (["schedule", "stages", "microbatches", "vpp"].includes(field)) delete inputs.own;
    if (field === "times") {
      for (const key of ["f", "b", "w", "comm", "rest"]) delete inputs[key];
      if (preset?.stages) Object.assign(inputs, { stages: preset.stages, microbatches: preset.microbatches });
    }
    if (value === "" || (field !== "schedule" && value === constants.defaults[field])) delete inputs[field];
    else inputs[field] = value;
    this.submit(inputs);
  }

  submit(inputs) {
    this.stop();
    this.clock = null;
    super.submit(inputs);
  }

  /** A schedule by hand, as text; null leaves it. */
  build(text) {
    const { own, step, trace, path, ...others } = this.inputs;
    this.submit(text === null ? others : { ...others, own: text });
  }

  /** A run's trace, or a schedule; null takes it away. */
  bring(trace) {
    const { own, step, trace: _, compare, ...others } = this.inputs;
    this.submit(trace === null ? others : { ...others, trace });
  }

  setPath(on) {
    const { path, ...others } = this.inputs;
    this.send(on ? { ...others, path: true } : others);
    this.show();
  }

  arrived() {
    this.take();
    this.at = this.asked();
    this.pointing.reset();
    this.scene.take();
    this.builder.follow();
    this.refresh();
  }

  refresh() {
    const label = this.sides.map((side) => side.label).join(" and ");
    set(
      this.scene.stage,
      "aria-label",
      `${label}: ${this.sides[0].ranks} ranks, ${this.sides[0].microbatches} micro-batches, ${this.time(this.total)}. ${this.result.answer}`,
    );
    this.keys();
    super.refresh();
  }

  legendWords() {
    const all = this.sides.map((side) => side.op).join(""),
      has = (op) => all.includes(op),
      found = [["F", "F forward"]];
    found.push([
      "B",
      has("X") && !has("B")
        ? "B backward, W its lower part"
        : has("X")
          ? "B backward (with W below it, both as one)"
          : "B backward, inputs",
    ]);
    found.push(["W", has("W") ? "W backward, weights" : "W weights"]);
    return [...found, ["memory", `activations kept${this.cap === null ? "" : ", dashed: what fits"}`]];
  }

  keys() {
    const swatch = (name) => make("i", { class: `pb-sv-swatch pb-sv-is-${name}` });
    const chunks = Math.max(...this.sides.map((side) => side.chunks)),
      words = this.legendWords().map(([name, text]) => make("span", {}, swatch(name), text));
    this.legend.replaceChildren(
      ...words,
      ...(chunks > 1 ? [make("span", {}, "fainter: a further stage of the rank")] : []),
    );
  }

  // --- where the reader is

  show() {
    const home = this.at === this.home && !this.playing;
    if (!this.playing) this.clock = home ? null : this.moments[this.at];
    say(this.caption, this.words());
    set(this.pathButton, "aria-pressed", String(Boolean(this.inputs.path)));
    this.player.show();
    this.scene.draw();
  }

  /** What everyone does at the moment that is shown. */
  words() {
    if (this.clock === null && this.inputs.path) return this.sides.map((side) => this.critical(side)).join(" ");
    if (this.clock === null) return "The whole step. Play it, or go through it moment by moment.";
    const [side] = this.sides,
      now = this.clock + 1e-9 * this.total,
      doing = [];
    for (let rank = 0; rank < side.ranks; rank++) {
      const i = side.firstAfter(rank, now);
      doing.push(
        i < side.offsets[rank + 1] && side.start[i] <= now
          ? side.half[i]
            ? `${side.short(i)} + ${side.short(i + 1)}`
            : side.short(i)
          : "idle",
      );
    }
    const when = `At ${this.time(this.clock)}: `;
    if (side.ranks <= 8 && !this.narrow) return when + doing.map((what, rank) => `rank ${rank} ${what}`).join(" · ");
    const count = (test) => doing.filter(test).length,
      idle = count((what) => what === "idle");
    return `${when}${count((w) => w.startsWith("F"))} ranks forward, ${count((w) => /^[BW]/.test(w))} backward, ${idle} idle`;
  }

  critical({ label, path, makespan, path_work: work }) {
    const rest = makespan - work,
      waits = rest > 1e-9 * makespan ? `, and between them ${this.time(rest)} for messages` : "";
    return `Critical path of ${label}: ${path.length} actions that take ${this.time(work)}${waits}.`;
  }

  /** Time runs on by itself; without motion, from one moment to the next. */
  run() {
    if (this.still.matches) return this.pictures();
    this.clock = this.at >= this.steps ? 0 : this.moments[this.at];
    this.drawn = performance.now();
    this.next = requestAnimationFrame((now) => this.tick(now));
  }

  tick(now) {
    this.clock += ((now - this.drawn) / PLAY) * this.speed * this.total;
    this.drawn = now;
    if (this.clock >= this.total) return this.jump(this.steps);
    this.at = Math.max(0, lastAtOrBefore(this.moments, this.clock));
    this.show();
    this.next = requestAnimationFrame((later) => this.tick(later));
  }

  close() {
    super.close();
    this.scene.close();
  }
}

export default entry(Visualizer);
