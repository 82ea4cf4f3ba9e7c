// Whether it fits, on one line for each configuration.

import { keep, make, say } from "../shared/dom.mjs";
import { count, grouped, plural } from "../shared/numbers.mjs";
import { Announcer } from "../shared/parts.mjs";
import { fit } from "./fit.mjs";

export class Verdict {
  constructor(app) {
    this.app = app;
    this.sides = make("div", { class: "pb-mc-sides" });
    this.difference = make("p", { class: "pb-mc-difference", hidden: "" });
    this.announcer = new Announcer();
    this.facts = make("div", { class: "pb-mc-sides pb-mc-facts" });
    this.root = make(
      "section",
      { class: "pb-mc-verdict", "aria-label": "Verdict" },
      this.sides,
      this.difference,
      this.announcer.root,
    );
  }

  side(index) {
    const name = make("b", { class: "pb-mc-name" }, "AB"[index]);
    const parts = {
      name,
      peak: make("span", { class: "pb-mc-peak" }),
      of: make("span", { class: "pb-mc-of" }),
      fits: make("span", { class: "pb-mc-fits" }),
      stale: make("span", { class: "pb-mc-stale", hidden: "" }, "last valid"),
    };
    const el = make("p", { class: "pb-mc-line" }, parts.name, parts.peak, parts.of, parts.fits, parts.stale);
    return Object.assign(el, { parts });
  }

  update() {
    const { app } = this,
      sides = keep(this.sides, app.inputs.configs.length, (i) => this.side(i));
    sides.forEach((el, index) => this.updateSide(el, index));
    keep(this.facts, sides.length, () => make("p")).forEach((el, index) =>
      say(el, app.last[index] ? this.about(app.last[index]) : ""),
    );
    const [a, b] = app.inputs.configs.map((_, i) => app.last[i]);
    this.difference.hidden = !(a && b);
    if (a && b) say(this.difference, app.versus(a.peak, b.peak));
    this.announcer.tell(() => sides.map((el) => el.innerText).join("; "));
  }

  updateSide(el, index) {
    const { app } = this,
      result = app.last[index],
      { name, peak, of, fits, stale } = el.parts;
    name.hidden = app.inputs.configs.length === 1;
    el.toggleAttribute("data-stale", Boolean(app.errors[index]));
    stale.hidden = !app.errors[index] || !result;
    el.hidden = !result;
    if (!result) return;
    say(peak, app.bytes(result.peak));
    say(of, `of ${app.bytes(result.memory)}`);
    say(fits, fit(app, result));
    el.dataset.verdict = result.verdict;
  }

  about({ ranks, parameters, active, global_batch: batch, tokens: all, memory, reserve }) {
    const { app } = this,
      sparse = active === parameters ? "" : `, ${count(active)} active per token`;
    const free = reserve ? [`${app.bytes(reserve)} of ${app.bytes(memory)} should stay free`] : [];
    return [
      `per GPU, ${plural(ranks, "GPU")}`,
      ...free,
      `${count(parameters)} parameters${sparse}`,
      `global batch ${plural(batch, "sample")}, ${grouped(all)} tokens`,
    ].join(" · ");
  }
}
