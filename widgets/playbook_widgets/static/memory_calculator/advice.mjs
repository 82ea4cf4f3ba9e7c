// What would make it fit, each with a button that does it.

import { button, make, say } from "../shared/dom.mjs";
import { plural, seconds } from "../shared/numbers.mjs";

const upper = (text) => text[0].toUpperCase() + text.slice(1);

export class Advice {
  constructor(app) {
    this.app = app;
    this.list = make("ol", { class: "pb-mc-advice" });
    this.note = make("p", { class: "pb-mc-note" });
    this.title = make("h3", { class: "pb-mc-heading" });
    this.root = make(
      "section",
      { "aria-label": "What would make it fit", hidden: "" },
      this.title,
      this.note,
      this.list,
    );
  }

  update() {
    const { app } = this,
      { result, error } = app.current();
    this.root.hidden = !result || result.verdict === "fits" || Boolean(error);
    if (this.root.hidden) return;
    say(
      this.title,
      result.verdict === "tight" ? `What would leave ${app.bytes(result.reserve)} free` : "What would make it fit",
    );
    const ready = result.advice !== null && result.advice !== undefined;
    this.list.toggleAttribute("data-stale", !ready);
    if (!ready) {
      say(this.note, "Trying changes …");
      for (const el of this.list.querySelectorAll("button")) el.disabled = true;
      return;
    }
    say(this.note, [this.found(result), result.limit].filter(Boolean).join(" "));
    if (this.shown === result.advice) return;
    this.shown = result.advice;
    this.list.replaceChildren(...result.advice.map((advice) => this.item(advice)));
  }

  item(advice) {
    const { app } = this,
      name = upper(advice.changes.map((change) => change.label).join(" + ")),
      one = advice.changes.length === 1;
    const why = advice.changes.map((change) => (one ? change.why : `${change.label}: ${change.why}`)).join("; ");
    const more = advice.gpus > app.current().result.ranks ? `, on ${plural(advice.gpus, "GPU")}` : "";
    const result = make(
      "p",
      { class: "pb-mc-then" },
      make("b", {}, app.bytes(advice.peak)),
      make("span", {}, `${app.bytes(advice.spare)} to spare`),
    );
    return make(
      "li",
      {},
      make(
        "div",
        {},
        make("b", {}, `${name}${more}`),
        make("p", {}, `A step of about ${seconds(advice.seconds)}. ${upper(why)}.`),
      ),
      result,
      button("Apply", () => app.apply(advice), { "aria-label": `Apply ${name}${more}` }),
    );
  }

  /** What was found: on the GPUs that there are, or on more only. */
  found({ advice, ranks, per_node }) {
    const here = plural(ranks, "GPU");
    if (!advice.length)
      return `No layout on ${here} does, nor do three changes. A smaller model, a shorter sequence or a larger GPU would.`;
    const timed = `Fastest first, by the simulated time of a step on such GPUs, ${per_node} in a node.`;
    return advice.some(({ gpus }) => gpus <= ranks)
      ? timed
      : `Nothing was found that fits on ${here}; on more, these do. ${timed}`;
  }
}
