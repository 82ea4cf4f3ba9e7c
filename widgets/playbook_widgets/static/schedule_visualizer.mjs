// The pipeline schedule visualizer. `inputs` is a flat object of what the reader has set, `outputs` what
// playbook.schedules.visualizer.compute makes of it (one timeline or two, as columns), `constants` says what the controls
// are. Nothing is computed here that Python can: this module draws, plays, and listens.

import { decodePairs, encodePairs } from "./shared/address.mjs";
import { make, say, set } from "./shared/dom.mjs";
import { rounded } from "./shared/numbers.mjs";
import { PythonStatus } from "./shared/parts.mjs";
import { Player } from "./shared/player.mjs";
import { Stepper } from "./shared/stepper.mjs";
import { Builder } from "./schedule_visualizer/builder.mjs";
import { coloursOf } from "./schedule_visualizer/colours.mjs";
import { Settings, tools } from "./schedule_visualizer/controls.mjs";
import { Details } from "./schedule_visualizer/details.mjs";
import { Geometry, layer } from "./schedule_visualizer/geometry.mjs";
import { Gestures } from "./schedule_visualizer/gestures.mjs";
import { Overlay } from "./schedule_visualizer/overlay.mjs";
import { Painter } from "./schedule_visualizer/painter.mjs";
import { Reading } from "./schedule_visualizer/reading.mjs";
import { Runs } from "./schedule_visualizer/runs.mjs";
import { Side, lastAtOrBefore } from "./schedule_visualizer/side.mjs";
import { Verdict } from "./schedule_visualizer/verdict.mjs";

// The state in a link: schedule=zb-h1&compare=1f1b&stages=8&step=12
const KEYS = "schedule compare stages microbatches vpp run times f b w comm transfer overlap fb limit rest path own step".split(" ");
/** Whole plays take so many ms, at speed 1. */
const PLAY = 14000;

export function encode(inputs) {
  return encodePairs({ ...inputs, path: inputs.path || null }, KEYS);
}

export function decode(text) {
  const found = decodePairs(text.replace(/(^|&)own=(?=&|$)/, "$1own=."), KEYS);
  return { schedule: "1f1b", ...found, ...(found.own === undefined ? {} : { own: found.own === "." ? "" : String(found.own) }) };
}

class Visualizer extends Stepper {
  constructor(model, el) {
    super(model, "pb-sv");
    Object.assign(this, { hovered: null, pinned: null, clock: null, narrow: el.clientWidth < 640 });
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    this.status = make("p", { class: "pb-sv-status", role: "status" });
    this.geometry = new Geometry(this);
    this.take();
    this.at = this.asked();
    this.settings = new Settings(this, this.narrow);
    this.painter = new Painter(this);
    this.overlay = new Overlay(this);
    [this.verdict, this.reading, this.builder, this.runs, this.details] = [Verdict, Reading, Builder, Runs, Details].map((Part) => new Part(this));
    this.player = new Player(this);
    this.python = new PythonStatus(model, this.status);
    this.build_(el);
    this.gestures = new Gestures(this);
    this.sizes = new ResizeObserver(() => this.resize());
    this.resize();
    this.sizes.observe(this.stage);
    this.watchTheme();
    this.refresh();
    this.listen(() => this.details.update());
  }

  build_(el) {
    const { zoom, path } = tools(this);
    this.pathButton = path;
    [this.base, this.top] = [layer("pb-sv-base"), layer("pb-sv-top")];
    this.stage = make("div", { class: "pb-sv-stage", tabindex: "0", role: "application", "aria-roledescription": "timeline", "aria-describedby": `${this.id}-help` }, this.base, this.top, this.reading.root);
    this.scroll = make("input", { type: "range", min: 0, max: 1000, step: 1, class: "pb-sv-across", "aria-label": "Part of the step in view", hidden: "" });
    this.scroll.addEventListener("input", () => this.across(Number(this.scroll.value) / 1000));
    this.caption = make("p", { class: "pb-sv-caption" });
    this.legend = make("p", { class: "pb-sv-legend" });
    const help = make("p", { class: "pb-sv-note", id: `${this.id}-help` }, "Point at an action for what it needs and who waits for it, at a gap for its reason, at the strip below for memory. Drag moves, Ctrl and wheel or two fingers zoom. Keys: arrows go from action to action, + − 0 zoom, c critical path, space plays, Escape lets go.");
    const bar = make("div", { class: "pb-sv-bar" }, this.player.root, make("span", { class: "pb-sv-buttons" }, path, this.builder.open, zoom));
    const scene = make("section", { class: "pb-sv-scene", "aria-label": "Timeline" }, bar, this.caption, this.stage, this.scroll, this.reading.live, this.legend, this.builder.root, help);
    this.root = make("div", { class: "pb-w pb-form pb-sv", role: "group", "aria-label": "Pipeline schedule visualizer" },
      this.settings.root, this.status, this.verdict.root, scene, this.verdict.numbers, this.runs.root, this.details.root);
    el.replaceChildren(this.root);
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
    const before = this.total;
    this.result = outputs;
    this.sides = outputs.sides.map((side) => new Side(side, this.constants.causes));
    this.cap = outputs.cap;
    this.unit = outputs.unit ? ` ${outputs.unit}` : "";
    this.total = Math.max(...this.sides.map((side) => side.makespan)) || 1;
    this.most = Math.max(this.cap ?? 0, ...this.sides.map((side) => side.peak));
    this.moments = Float64Array.from(new Set(this.sides[0].start)).sort();
    if (!this.view || before !== this.total || !this.zoomed) this.view = [0, this.total];
    this.hovered = null;
    if (this.pinned && !this.building) this.pinned = null;
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

  get zoomed() {
    return this.view[1] - this.view[0] < this.total * 0.999;
  }

  get current() {
    return this.hovered ?? this.pinned;
  }

  best(rank) {
    return this.result.board?.best[rank][this.builder.whole ? 1 : 0];
  }

  // --- what the reader sets

  /** Set a field; what equals its default is left out, so that links stay short. */
  change(field, value) {
    const { constants } = this, inputs = { ...this.inputs }, preset = constants.presets[value];
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
    this.send(inputs);
    this.model.save_changes();
  }

  /** A schedule by hand, as text; null leaves it. */
  build(text) {
    const { own, step, trace, ...others } = this.inputs;
    this.submit(text === null ? others : { ...others, own: text });
  }

  /** A run's trace, or a schedule; null takes it away. */
  lay(trace) {
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
    this.resize();
    this.refresh();
  }

  refresh() {
    for (const part of [this.settings, this.verdict, this.builder, this.runs, this.details]) part.update();
    const label = this.sides.map((side) => side.label).join(" and ");
    set(this.stage, "aria-label", `${label}: ${this.sides[0].ranks} ranks, ${this.sides[0].microbatches} micro-batches, ${rounded(this.total, 5)}${this.unit}. ${this.result.answer}`);
    this.root.toggleAttribute("data-stale", Boolean(this.error));
    this.keys();
    this.show();
  }

  legendWords() {
    const all = this.sides.map((side) => side.op).join(""), has = (op) => all.includes(op), found = [["F", "F forward"]];
    found.push(["B", has("X") && !has("B") ? "B backward, W its lower part" : has("X") ? "B backward (with W below it, both as one)" : "B backward, inputs"]);
    found.push(["W", has("W") ? "W backward, weights" : "W weights"]);
    return [...found, ["memory", `activations kept${this.cap === null ? "" : ", dashed: what fits"}`]];
  }

  keys() {
    const swatch = (name) => make("i", { class: `pb-sv-swatch pb-sv-is-${name}` });
    const chunks = Math.max(...this.sides.map((side) => side.chunks)), words = this.legendWords().map(([name, text]) => make("span", {}, swatch(name), text));
    this.legend.replaceChildren(...words, ...(chunks > 1 ? [make("span", {}, "deeper shade: a further stage of the rank")] : []));
  }

  // --- where the reader is

  show() {
    const home = this.at === this.home && !this.playing;
    if (!this.playing) this.clock = home ? null : this.moments[this.at];
    say(this.caption, this.words());
    set(this.pathButton, "aria-pressed", String(Boolean(this.inputs.path)));
    this.player.show();
    this.draw();
  }

  /** What everyone does at the moment that is shown. */
  words() {
    if (this.clock === null) return "";
    const [side] = this.sides, now = this.clock + 1e-9 * this.total, doing = [];
    for (let rank = 0; rank < side.ranks; rank++) {
      const i = side.firstAfter(rank, now);
      doing.push(i < side.offsets[rank + 1] && side.start[i] <= now ? (side.half[i] ? `${side.short(i)} + ${side.short(i + 1)}` : side.short(i)) : "idle");
    }
    const when = `At ${rounded(this.clock, 4)}${this.unit}: `;
    if (side.ranks <= 8 && !this.narrow) return when + doing.map((what, rank) => `rank ${rank} ${what}`).join(" · ");
    const count = (test) => doing.filter(test).length, idle = count((what) => what === "idle");
    return `${when}${count((w) => w.startsWith("F"))} ranks forward, ${count((w) => /^[BW]/.test(w))} backward, ${idle} idle`;
  }

  /** Time runs on by itself; without motion, from one moment to the next. */
  run() {
    if (this.still.matches) return this.pictures();
    this.clock = this.at >= this.steps ? 0 : this.moments[this.at];
    this.then = performance.now();
    this.next = requestAnimationFrame((now) => this.tick(now));
  }

  tick(now) {
    this.clock += ((now - this.then) / PLAY) * this.speed * this.total;
    this.then = now;
    if (this.clock >= this.total) return this.jump(this.steps);
    this.at = Math.max(0, lastAtOrBefore(this.moments, this.clock));
    this.show();
    this.next = requestAnimationFrame((later) => this.tick(later));
  }

  // --- what is in view

  look(low, high) {
    const span = Math.min(Math.max(high - low, this.total / 4000), this.total), start = Math.min(Math.max(low, 0), this.total - span);
    this.view = [start, start + span];
    this.draw(true);
  }

  zoom(factor, around) {
    const [low, high] = this.view, held = this.pinned?.kind === "slot" ? this.sides[this.pinned.side].start[this.pinned.at] : NaN;
    const at = around ?? (held >= low && held <= high ? held : (low + high) / 2);
    this.look(at - (at - low) * factor, at + (high - at) * factor);
  }

  zoomTo(found) {
    if (found?.kind !== "slot" && found?.kind !== "idle") return;
    const side = this.sides[found.side], [start, end] = found.kind === "slot" ? [side.start[found.at], side.end[found.at]] : [side.idle.start[found.at], side.idle.end[found.at]];
    const span = Math.max(8 * (end - start), this.total / 60);
    this.look((start + end - span) / 2, (start + end + span) / 2);
  }

  pan(part) {
    const [low, high] = this.view, by = part * (high - low);
    this.look(low + by, high + by);
  }

  all() {
    this.look(0, this.total);
  }

  across(part) {
    const span = this.view[1] - this.view[0], low = part * (this.total - span);
    this.look(low, low + span);
  }

  // --- what is pointed at

  point(found, at) {
    const same = found && this.hovered && found.kind === this.hovered.kind && found.at === this.hovered.at && found.side === this.hovered.side && found.rank === this.hovered.rank && found.kind !== "strip";
    if (same) return this.reading.move(at);
    if (!found && !this.hovered) return;
    this.hovered = found?.kind === "lane" && !this.building ? null : found;
    this.reading.show(this.current, at ?? this.spot(this.current));
    this.drawTop();
  }

  /** Hold on to something, so that keys go on from there. */
  pin(found, at) {
    this.pinned = found;
    this.hovered = null;
    this.reading.show(found, at ?? this.spot(found));
    this.reading.tell(found);
    this.drawTop();
  }

  spot(found) {
    if (!found || found.kind === "lane" || found.kind === "strip") return found ? [this.geometry.x(found.time ?? 0), this.geometry.laneTop(found.side, found.rank) + this.geometry.bar] : [0, 0];
    const [x, y, wide, high] = found.kind === "slot" ? this.geometry.box(found.side, found.at) : this.geometry.gapBox(found.side, found.at);
    return [x + Math.min(wide, 40), y + high];
  }

  /** Actions and gaps of a rank, in order of time. */
  cells(s, rank) {
    const side = this.sides[s], found = side.gapsOf[rank].map((g) => ({ side: s, rank, kind: "idle", at: g, time: side.idle.start[g] }));
    for (let i = side.offsets[rank]; i < side.offsets[rank + 1]; i++) found.push({ side: s, rank, kind: "slot", at: i, time: side.start[i] });
    return found.sort((a, b) => a.time - b.time || a.at - b.at);
  }

  /** To the next action or gap of the rank, or the one before. */
  walk(by) {
    const held = this.pinned ?? { side: 0, rank: 0, time: -1 }, all = this.cells(held.side, held.rank);
    if (!all.length) return this.settle({ ...held, kind: "lane", at: -1, time: 0 });
    const here = all.findIndex((cell) => cell.kind === held.kind && cell.at === held.at);
    this.settle(all[Math.min(all.length - 1, Math.max(0, here + by))]);
  }

  /** To the rank above or below, at the same time. */
  climb(by) {
    const held = this.pinned ?? { side: 0, rank: -by, time: this.view[0] };
    let [s, rank] = [held.side, held.rank + by];
    if (rank < 0) (s -= 1), (rank = (this.sides[s]?.ranks ?? 1) - 1);
    else if (rank >= this.sides[s].ranks) (s += 1), (rank = 0);
    if (!this.sides[s]) return;
    const all = this.cells(s, rank), cell = all.findLast((c) => c.time <= held.time + 1e-9) ?? all[0] ?? { side: s, rank, kind: "lane", at: -1, time: 0 };
    this.settle({ ...cell, time: cell.time });
  }

  /** What keys have come to is brought into view. */
  settle(cell) {
    const [low, high] = this.view;
    if (cell.time < low || cell.time > high) this.look(cell.time - (high - low) / 2, cell.time + (high - low) / 2);
    this.pin(cell);
  }

  // --- drawing

  resize() {
    const before = this.geometry.height;
    this.geometry.fit(this.stage.clientWidth);
    if (this.geometry.height !== before || this.drawnWidth !== this.geometry.width) this.draw(true);
  }

  colours() {
    return (this.palette ??= coloursOf(this.root));
  }

  /** Another theme has other colours. */
  watchTheme() {
    const again = () => ((this.palette = null), this.draw(true));
    this.themes = new MutationObserver(again);
    this.themes.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme", "class"] });
    this.themes.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "class"] });
  }

  painterFor(c, colours) {
    return Object.assign(new Painter(this), { c, colours, family: this.painter.family });
  }

  /** Draw in the next frame, once, whatever has asked for it. The layer below only if `all`, or for other sides. */
  draw() {
    this.due ??= requestAnimationFrame(() => {
      this.due = null;
      const start = performance.now();
      this.drawNow();
      performance.measure("pb-draw", { start });
    });
  }

  drawNow() {
    const state = [...this.view, this.geometry.width, this.geometry.height, this.palette === null].join();
    if (this.drawnState !== state || this.drawnResult !== this.result) {
      this.painter.paint(this.context(this.base), this.colours());
      Object.assign(this, { drawnState: [...this.view, this.geometry.width, this.geometry.height, false].join(), drawnResult: this.result, drawnWidth: this.geometry.width });
    }
    this.drawTop();
    this.scroll.hidden = !this.zoomed;
    const [low, high] = this.view, part = this.total > high - low ? low / (this.total - high + low) : 0;
    this.scroll.value = Math.round(1000 * part);
    this.scroll.style.setProperty("--at", `${100 * part}%`);
  }

  drawTop() {
    const start = performance.now();
    this.overlay.paint(this.context(this.top), this.colours());
    performance.measure("pb-point", { start });
  }

  context(canvas) {
    const scale = Math.max(devicePixelRatio || 1, 1), { width, height } = this.geometry, c = canvas.getContext("2d");
    const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
    if (canvas.width !== wide || canvas.height !== high) {
      Object.assign(canvas, { width: wide, height: high });
      canvas.style.height = `${height}px`;
      this.stage.style.height = `${height}px`;
    }
    c.setTransform(scale, 0, 0, scale, 0, 0);
    return c;
  }

  close() {
    super.close();
    cancelAnimationFrame(this.due);
    this.sizes.disconnect();
    this.themes.disconnect();
    for (const part of [this.python, this.settings, this.verdict, this.details]) part.close();
  }
}

export default {
  render({ model, el }) {
    const visualizer = new Visualizer(model, el);
    return () => visualizer.close();
  },
};
