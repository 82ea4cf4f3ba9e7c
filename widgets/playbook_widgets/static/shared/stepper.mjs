// A widget that a reader goes through step by step: what it hears of its model, where the reader is, and how it plays.

import { Form } from "./form.mjs";
import { STEP } from "./player.mjs";

export class Stepper extends Form {
  /** A subclass has `result` with its `steps`, a `player`, and parts that may have a `show()` to draw the place. `home` is the
      place that no link needs to say, and where a reader begins. */
  constructor(model, prefix, lead) {
    super(model, prefix, lead, { at: 0, progress: 0, speed: 1, playing: false, moving: false });
  }

  /** How many steps there are. */
  get steps() {
    return this.result.steps.length;
  }

  get home() {
    return 0;
  }

  /** Listen to the model, and to keys. */
  listen() {
    super.listen();
    this.root.addEventListener("keydown", (e) => this.key(e));
  }

  // --- there and back

  /** Where the inputs say that the reader is. */
  asked() {
    const step = Number(this.inputs.step ?? this.home);
    return Math.min(this.steps, Math.max(0, Number.isInteger(step) ? step : this.home));
  }

  send(inputs) {
    this.own = true;
    super.send(inputs);
    this.own = false;
    this.settings.update();
  }

  /** Inputs that come from elsewhere, the address or another view, may say another step. */
  told() {
    this.settings.update();
    if (this.own || this.playing || this.moving || this.asked() === this.at) return;
    this.at = this.asked();
    this.show();
  }

  arrived() {
    this.take();
    this.at = Math.min(this.at, this.steps);
    this.refresh();
  }

  refresh() {
    super.refresh();
    this.show();
  }

  // --- where the reader is

  show() {
    this.player.show();
    for (const part of this.parts) part.show?.();
  }

  jump(at) {
    this.stop();
    this.at = Math.min(this.steps, Math.max(0, at));
    this.rest();
  }

  back() {
    this.jump(this.at - 1);
  }

  forward() {
    this.jump(this.at + 1);
  }

  toggle() {
    if (this.playing) return this.jump(this.at);
    if (this.at >= this.steps) this.at = 0;
    this.playing = true;
    this.run();
  }

  /** Play to the end. */
  run() {
    this.pictures();
  }

  /** From one picture to the next, without motion between them. */
  pictures() {
    this.show();
    this.later = setTimeout(() => {
      this.at = Math.min(this.at + 1, this.steps);
      this.at === this.steps ? this.jump(this.at) : this.pictures();
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
    this.send(this.at === this.home ? others : { ...others, step: this.at });
    this.show();
  }

  /** Arrows, Home, End and the space bar, but where they have a meaning of their own. */
  key(event) {
    const { target, key } = event,
      scrub = target.matches(`.${this.prefix}-scrub`);
    const typing = target.matches("select, input, textarea") && !(scrub && key === " "),
      pressing = target.matches("button, summary");
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || typing) return;
    const end = () => this.jump(this.steps),
      start = () => this.jump(0);
    const action = {
      ArrowRight: () => this.forward(),
      ArrowLeft: () => this.back(),
      Home: start,
      End: end,
      " ": () => this.toggle(),
    }[key];
    if (!action || (key === " " && pressing) || target.closest(".pb-scroll")) return;
    event.preventDefault();
    action();
  }

  close() {
    this.stop();
    super.close();
  }
}
