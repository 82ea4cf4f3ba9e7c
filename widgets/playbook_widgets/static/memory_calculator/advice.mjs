// What would make it fit, each with a button that does it.

import { button, make, say } from "../shared/dom.mjs";
import { percent } from "../shared/numbers.mjs";

const upper = (text) => text[0].toUpperCase() + text.slice(1);

export class Advice {
  constructor(app) {
    this.app = app;
    this.list = make("ol", { class: "pb-mc-advice" });
    this.note = make("p", { class: "pb-mc-note" });
    this.root = make("section", { "aria-label": "What would make it fit", hidden: "" }, make("h3", { class: "pb-mc-heading" }, "What would make it fit"), this.note, this.list);
  }

  update() {
    const { app } = this, { result, error } = app.current();
    this.root.hidden = !result || result.fits || Boolean(error);
    if (this.root.hidden) return;
    const ready = result.advice !== null && result.advice !== undefined;
    this.list.toggleAttribute("data-stale", !ready);
    if (!ready) {
      say(this.note, "Trying changes …");
      for (const el of this.list.querySelectorAll("button")) el.disabled = true;
      return;
    }
    const found = result.advice.length ? "Fastest first, by simulated time on such GPUs, eight in a node." : "No layout on as many GPUs does, nor do three changes. A smaller model, a shorter sequence or a larger GPU would.";
    say(this.note, [found, result.limit].filter(Boolean).join(" "));
    if (this.shown === result.advice) return;
    this.shown = result.advice;
    this.list.replaceChildren(...result.advice.map((advice) => this.item(advice)));
  }

  item(advice) {
    const { app } = this, name = upper(advice.changes.map((change) => change.label).join(" + ")), one = advice.changes.length === 1;
    const why = advice.changes.map((change) => (one ? change.why : `${change.label}: ${change.why}`)).join("; ");
    const gpus = advice.gpus > app.current().result.gpus ? `Needs ${advice.gpus} GPUs. ` : "";
    const result = make("p", { class: "pb-mc-then" }, make("b", {}, app.bytes(advice.peak)), make("span", {}, `${app.bytes(advice.spare)} to spare`));
    return make("li", {}, make("div", {}, make("b", {}, name), make("p", {}, `${gpus}${this.cost(advice.cost)}. ${upper(why)}.`)), result,
      button("Apply", () => app.apply(advice), { "aria-label": `Apply ${name}` }));
  }

  cost(part) {
    const size = Math.abs(part);
    if (size < 0.005) return "Costs hardly any time";
    return `${part > 0 ? "Costs" : "Saves"} about ${percent(size)} of a step's time`;
  }
}
