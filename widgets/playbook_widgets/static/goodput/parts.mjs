// What the time goes to: one bar, and a line for each of its parts.

import { keep, make, say } from "../shared/dom.mjs";
import { share } from "../shared/numbers.mjs";

export class Parts {
  constructor(app) {
    this.app = app;
    this.bar = make("div", { class: "pb-gp-bar", "aria-hidden": "true" });
    this.list = make("ul", { class: "pb-gp-parts" });
    this.root = make(
      "section",
      { "aria-label": "Parts of the time" },
      make("h3", { class: "pb-gp-heading" }, "What the time goes to"),
      this.bar,
      this.list,
    );
  }

  update() {
    const { parts } = this.app.result;
    keep(this.bar, parts.length, (i) => make("i", { "data-part": parts[i].name })).forEach(
      (el, i) => (el.style.width = `${100 * parts[i].share}%`),
    );
    keep(this.list, parts.length, (i) =>
      make("li", {}, make("i", { "data-part": parts[i].name }), make("span", {}, parts[i].text), make("b")),
    ).forEach((el, i) => say(el.lastChild, share(parts[i].share, 1)));
  }
}
