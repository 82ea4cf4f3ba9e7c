// What the schedules come to: the sentence, and a row of numbers for each.

import { make, say } from "../shared/dom.mjs";
import { rounded } from "../shared/numbers.mjs";
import { Announcer } from "../shared/parts.mjs";

const percent = (part) => `${(100 * part).toFixed(1)}\u202f%`;

export class Verdict {
  constructor(app) {
    this.app = app;
    this.stale = make("span", { class: "pb-sv-stale" }, "before the last change");
    this.answer = make("p", { class: "pb-sv-answer" });
    this.announcer = new Announcer();
    this.root = make(
      "section",
      { class: "pb-sv-verdict", "aria-label": "Result" },
      this.answer,
      this.stale,
      this.announcer.root,
    );
    this.numbers = make("section", { class: "pb-sv-numbers", "aria-label": "Numbers" });
  }

  update() {
    const { result, error, sides } = this.app;
    this.stale.hidden = !error;
    if (this.answer.textContent !== result.answer) this.announcer.tell(() => this.app.result.answer);
    say(this.answer, result.answer);
    this.numbers.replaceChildren(...sides.map((side) => this.tiles(side)));
  }

  tiles(side) {
    const { numbers, paper, peaks } = side,
      { cap, sides } = this.app,
      time = (value) => this.app.time(value);
    const waits = numbers.makespan - numbers.ideal,
      over = cap !== null && side.peak > cap + 1e-9;
    const found = [
      this.tile("makespan", time(numbers.makespan), `busiest rank works ${time(numbers.ideal)}`),
      this.tile(
        "bubble of the step",
        percent(numbers.bubble_fraction),
        `waits ${time(waits)}, ${rounded(numbers.bubble_ratio, 3)} of its work`,
      ),
      this.tile("if steps overlap", percent(numbers.bubble_fraction_span), `span ${time(numbers.span)}`),
      ...(paper ? [this.paper(paper, time)] : []),
      this.tile(
        "activations, highest peak",
        rounded(side.peak, 4),
        cap === null
          ? `micro-batches; least ${rounded(Math.min(...peaks), 4)}`
          : over
            ? `⚠ too much: ${rounded(cap, 4)} micro-batches fit`
            : `of ${rounded(cap, 4)} micro-batches that fit`,
        over,
      ),
      this.causes(side),
    ];
    const title = sides.length > 1 ? [make("h3", { class: "pb-sv-heading" }, side.label)] : [];
    return make("div", {}, ...title, make("ul", { class: "pb-sv-tiles" }, ...found));
  }

  tile(name, value, note, over = false) {
    return make(
      "li",
      over ? { "data-over": "" } : {},
      make("span", {}, name),
      make("b", {}, value),
      make("span", {}, note),
    );
  }

  paper({ text, time: told, simulated, of }, time) {
    const equal = Math.abs(told - simulated) <= 1e-6 * Math.max(1, Math.abs(simulated));
    return this.tile(
      `bubble on paper${of === "span" ? ", between steps" : ""}`,
      time(told),
      `${text}; simulated ${equal ? "the same ✓" : time(simulated)}`,
    );
  }

  /** Waiting of all ranks, by cause. */
  causes(side) {
    const total = Object.values(side.causes).reduce((a, b) => a + b, 0),
      kinds = Object.entries(side.causes).filter(([, time]) => time > 1e-9 * side.makespan);
    const whole = side.makespan * side.ranks || 1;
    const parts = kinds.map(([cause, time]) =>
      make("span", { title: side.causeNames[cause] }, `${cause}\u00a0${percent(time / whole)}`),
    );
    return make(
      "li",
      { class: "pb-sv-causes" },
      make("span", {}, "all ranks wait"),
      make("b", {}, total ? percent(total / whole) : "never"),
      make("span", { class: "pb-sv-kinds" }, ...parts),
    );
  }

  close() {
    this.announcer.close();
  }
}
