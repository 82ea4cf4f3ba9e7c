// One format: what became of the number in it and why, its range, and the same in Python.

import { button, keep, make, say } from "../shared/dom.mjs";
import { Announcer, Carrier } from "../shared/parts.mjs";

export class Explained {
  constructor(app) {
    this.app = app;
    [this.title, this.formula, this.code] = [
      make("h3", { class: "pb-nf-heading" }),
      make("p", { class: "pb-nf-formula" }),
      make("code", { tabindex: "0" }),
    ];
    this.answer = make("p", { class: "pb-nf-answer" });
    this.numbers = make("ul", { class: "pb-nf-facts", "aria-label": "The format in numbers" });
    this.announcer = new Announcer();
    this.carrier = new Carrier("pb-nf-said");
    const copy = button("Copy", () => this.carrier.copy(this.code.textContent, "Python copied"), {
      "aria-label": "Copy Python",
    });
    this.link = button("Copy link", () => this.carrier.copy(app.model.get("link"), "Link copied"), { hidden: "" });
    this.root = make(
      "section",
      { class: "pb-nf-explained", "aria-label": "The format that is chosen" },
      this.title,
      this.formula,
      this.answer,
      this.numbers,
      this.announcer.root,
      make("div", { class: "pb-nf-code" }, this.code, copy),
      make("div", { class: "pb-nf-tools" }, this.link, this.carrier.root),
    );
  }

  update() {
    const { chosen, constants, result, model } = this.app,
      { title, facts } = constants.formats.find(({ name }) => name === chosen.name);
    say(this.title, `${result.number} in ${title}`);
    say(this.formula, chosen.formula ? `${chosen.formula} = ${chosen.value}` : chosen.value);
    say(this.answer, chosen.answer);
    keep(this.numbers, facts.length, () => make("li", {}, make("span"), make("b"), make("span"))).forEach((row, i) =>
      facts[i].forEach((text, k) => say(row.children[k], text)),
    );
    say(this.code, chosen.python);
    this.code.parentNode.hidden = !chosen.python;
    this.link.hidden = !model.get("link");
    this.announcer.tell(() => `${this.title.textContent}: ${chosen.value}, ${chosen.word}. ${chosen.answer}`);
  }

  close() {
    this.announcer.close();
    this.carrier.close();
  }
}
