// Layouts to load, and where they come from.

import { button, make, say, set } from "../shared/dom.mjs";

export class Examples {
  constructor(app) {
    this.app = app;
    this.buttons = app.constants.examples.map(({ name, inputs }) => button(name, () => app.load(inputs)));
    this.note = make("p", { class: "pb-me-note" });
    this.root = make("section", { class: "pb-me-examples", "aria-label": "Layouts to load" }, make("div", { class: "pb-me-tools" }, ...this.buttons), this.note);
  }

  /** The example that stands in the controls, whatever its rank. */
  chosen() {
    const { rank, point, ...own } = this.app.values();
    return this.app.constants.examples.find(({ inputs }) => {
      const { rank: _, point: __, ...wanted } = { ...this.app.constants.defaults, ...inputs };
      return Object.entries(wanted).every(([key, value]) => own[key] === value);
    });
  }

  update() {
    const found = this.chosen();
    this.buttons.forEach((el, i) => set(el, "aria-pressed", String(this.app.constants.examples[i] === found)));
    say(this.note, found?.note ?? "");
    this.note.hidden = !found;
  }
}
