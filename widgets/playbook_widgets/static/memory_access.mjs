// The memory access widget. `inputs` is a flat object of what the reader has set, `outputs` what
// playbook_widgets.compute.access.compute makes of it (a picture of each warp of a block), `constants` says what the controls
// are. Nothing is computed here that Python can: this module draws, and listens. A step is a warp of the block.

import { Details } from "./memory_access/details.mjs";
import { Matrix } from "./memory_access/matrix.mjs";
import { Memory } from "./memory_access/memory.mjs";
import { Threads } from "./memory_access/threads.mjs";
import { Verdict } from "./memory_access/verdict.mjs";
import { make, say, set } from "./shared/dom.mjs";
import { Examples } from "./shared/examples.mjs";
import { entry, linked } from "./shared/form.mjs";
import { Player } from "./shared/player.mjs";
import { Settings } from "./shared/settings.mjs";
import { Stepper } from "./shared/stepper.mjs";

// The state in a link: memory=shared&along=column&remedy=padding&step=3
const { encode, decode } = linked({ memory: "global" }, [
  "access",
  "layout",
  "rows",
  "columns",
  "size",
  "vector",
  "along",
  "stride",
  "stride_y",
  "block_x",
  "block_y",
  "offset",
  "remedy",
  "padding",
  "step",
  "thread",
]);

export { decode, encode };

/** What a field takes with it when it changes: another memory has another array. */
const FOLLOW = { memory: ["rows", "columns", "offset", "remedy", "padding", "step"], remedy: ["padding"] };
/** Settings that mean something where another one has this value. */
const ONLY = { offset: ["memory", "global"], remedy: ["memory", "shared"], padding: ["remedy", "padding"] };

class MemoryAccess extends Stepper {
  constructor(model, el) {
    super(model, "pb-ma", "memory");
    this.at = this.asked();
    this.pointed = null;
    this.settings = new Settings(this, "pb-ma");
    this.player = new Player(this);
    this.caption = make("p", { class: "pb-ma-caption" });
    this.examples = new Examples(this, "Accesses to load", ["step", "thread"]);
    this.parts = [this.examples, ...[Verdict, Memory, Matrix, Threads, Details].map((Part) => new Part(this))];
    this.build(el);
  }

  build(el) {
    const [examples, verdict, memory, matrix, threads, details] = this.parts;
    this.steering = make("div", { class: "pb-ma-steering" }, this.caption, this.player.root);
    const pair = make("div", { class: "pb-ma-pair" }, matrix.root, threads.root);
    const scene = make("div", { class: "pb-ma-scene" }, this.steering, memory.root, pair);
    this.open(
      el,
      "Memory access of a warp",
      examples.root,
      this.settings.root,
      this.status,
      verdict.root,
      scene,
      verdict.numbers,
      details.root,
    );
  }

  // --- what is known

  get steps() {
    return this.result.pictures.length - 1;
  }

  /** What is shown: the accesses of one warp. */
  get picture() {
    return this.result.pictures[this.at];
  }

  /** The thread of the warp whose address is shown: the one that a pointer is on, or that is chosen. */
  get thread() {
    return this.pointed ?? this.chosen;
  }

  get chosen() {
    const { thread = this.constants.defaults.thread } = this.inputs;
    return Number.isInteger(thread) ? Math.min(31, Math.max(0, thread)) : 0;
  }

  /** What the reader has set over what holds otherwise: the size of an array depends on where it is. */
  valuesOf(inputs) {
    const { defaults, sides } = this.constants,
      side = sides[inputs.memory] ?? sides[defaults.memory];
    return { ...defaults, rows: side, columns: side, ...inputs };
  }

  /** With a larger block come warps: an address may have named one that there was not before. */
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

  /** Set a field; what equals a default is left out, so that links stay short. */
  change(field, value) {
    const { [field]: _, ...inputs } = this.inputs;
    for (const name of FOLLOW[field] ?? []) delete inputs[name];
    if (field === "memory" || value !== this.valuesOf({ ...inputs })[field]) inputs[field] = value;
    this.submit(inputs);
  }

  submit(inputs) {
    this.stop();
    super.submit(inputs);
  }

  /** Show another thread; Python need not hear of it. */
  choose(thread) {
    const { thread: _, ...inputs } = this.inputs;
    this.send(thread === this.constants.defaults.thread ? inputs : { ...inputs, thread });
    this.point(null);
  }

  /** A pointer is on a thread or on what it takes, or (null) on none. */
  point(thread) {
    this.pointed = thread;
    for (const part of this.parts) part.mark?.();
  }

  /** An element whose parts stand for threads, as their `data-thread` says, hears pointers and clicks. */
  pointable(el) {
    const at = ({ target, pointerType }) =>
      target.dataset.thread && pointerType !== "touch" ? Number(target.dataset.thread) : null;
    el.addEventListener("pointerover", (e) => at(e) !== this.pointed && this.point(at(e)));
    el.addEventListener("pointerleave", () => this.point(null));
    el.addEventListener("click", ({ target }) => target.dataset.thread && this.choose(Number(target.dataset.thread)));
  }

  refresh() {
    for (const { row, spec } of this.settings.all) {
      const [field, value] = ONLY[spec.field] ?? [];
      row.hidden = field !== undefined && this.result.values[field] !== value && this.error?.field !== spec.field;
    }
    this.steering.hidden = !this.steps;
    super.refresh();
  }

  // --- where the reader is

  show() {
    const { block_x: x, block_y: y } = this.result.values;
    say(this.caption, `Warp ${this.at} of the ${this.steps + 1} in a block of ${x} × ${y} threads.`);
    super.show();
    set(this.player.slider, "aria-valuetext", `warp ${this.at}`);
  }
}

export default entry(MemoryAccess);
