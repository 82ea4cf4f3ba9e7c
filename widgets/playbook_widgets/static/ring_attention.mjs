// The ring-attention widget. `inputs` is a flat object of what the reader has set, `outputs` what
// playbook_widgets.compute.ring_attention.compute makes of it (the blocks of the mask, what each rank does in every step, bytes and
// times), `constants` says what the controls are. Nothing is computed here that Python can: this module draws, and listens.

import { Details } from "./ring_attention/details.mjs";
import { Mask } from "./ring_attention/mask.mjs";
import { Ranks } from "./ring_attention/ranks.mjs";
import { Rivals } from "./ring_attention/rivals.mjs";
import { Timeline } from "./ring_attention/timeline.mjs";
import { Verdict } from "./ring_attention/verdict.mjs";
import { sentence } from "./ring_attention/words.mjs";
import { Work } from "./ring_attention/work.mjs";
import { make } from "./shared/dom.mjs";
import { entry, linked } from "./shared/form.mjs";
import { Player } from "./shared/player.mjs";
import { Settings } from "./shared/settings.mjs";
import { Stepper } from "./shared/stepper.mjs";

// The state in a link: context=ring&placement=contiguous&ranks=8&step=3
const { encode, decode } = linked({ context: "ring" }, [
  "placement",
  "ranks",
  "seq",
  "causal",
  "backward",
  "model",
  "heads",
  "kv_heads",
  "head_dim",
  "itemsize",
  "cluster",
  "bandwidth",
  "tflops",
  "step",
]);

export { decode, encode };

/** What a field takes with it when it changes, because it says otherwise. */
const FOLLOW = { model: ["heads", "kv_heads", "head_dim"], cluster: ["bandwidth", "tflops"], itemsize: ["tflops"] };
/** The fields with which other steps come. */
const STEPS = ["context", "ranks", "backward"];

class RingAttention extends Stepper {
  constructor(model, el) {
    super(model, "pb-ra", "context");
    this.at = this.asked();
    this.settings = new Settings(this, "pb-ra");
    this.player = new Player(this);
    this.caption = make("p", { class: "pb-ra-caption", "aria-live": "polite" }, make("b"), " ", make("span"));
    this.parts = [Verdict, Mask, Ranks, Timeline, Work, Rivals, Details].map((Part) => new Part(this));
    this.build(el);
  }

  build(el) {
    const [verdict, mask, ranks, timeline, work, rivals, details] = this.parts;
    const pair = make(
      "div",
      { class: "pb-ra-pair" },
      mask.root,
      make("div", { class: "pb-ra-column" }, ranks.root, work.root),
    );
    const scene = make(
      "section",
      { class: "pb-ra-scene", "aria-label": "Step by step" },
      this.caption,
      this.player.root,
      pair,
      timeline.root,
    );
    this.open(
      el,
      "Ring attention",
      this.settings.root,
      this.status,
      verdict.root,
      scene,
      rivals.root,
      verdict.numbers,
      details.root,
    );
  }

  // --- what is known

  /** What the controls show: what the reader has set, over what holds otherwise, over what follows from it. */
  values() {
    const fixed = Object.entries(this.constants.defaults).filter(([, value]) => value !== null);
    return { ...this.result.values, ...Object.fromEntries(fixed), ...this.inputs };
  }

  /** The step that is shown; undefined when all is done. */
  get step() {
    return this.result.steps[this.at];
  }

  // --- what the reader sets

  /** Set fields; what equals a default is left out, so that links stay short. Other steps start at their beginning. */
  change(field, value, more = {}) {
    const inputs = { ...this.inputs, ...more },
      { defaults } = this.constants;
    for (const name of FOLLOW[field] ?? []) delete inputs[name];
    if (field === "context" && value === "ulysses") delete inputs.placement;
    if (STEPS.includes(field)) {
      this.stop();
      this.at = 0;
      delete inputs.step;
    }
    if (field !== "context" && value === defaults[field]) delete inputs[field];
    else inputs[field] = value;
    this.submit(inputs);
  }

  // --- where the reader is

  show() {
    const [head, text] = sentence(this);
    this.caption.firstChild.textContent = head;
    this.caption.lastChild.textContent = text;
    super.show();
  }
}

export default entry(RingAttention);
