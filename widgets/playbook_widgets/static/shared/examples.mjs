// Settings to load by name, and a note on the one that stands in the controls.

import { button, make, say, set } from "./dom.mjs";

export class Examples {
  /** `app` has `prefix`, `constants.examples` (name, inputs, note), `values()` and `load(inputs)`; `apart` are the fields that
      say where a reader looks, and not at what. */
  constructor(app, title, apart) {
    Object.assign(this, { app, apart: new Set(apart) });
    this.buttons = app.constants.examples.map(({ name, inputs }) => button(name, () => app.load(inputs)));
    this.note = make("p", { class: `${app.prefix}-note` });
    this.root = make(
      "section",
      { class: `${app.prefix}-examples`, "aria-label": title },
      make("div", { class: `${app.prefix}-tools` }, ...this.buttons),
      this.note,
    );
  }

  /** The example that stands in the controls, wherever the reader looks. */
  chosen() {
    const { app, apart } = this,
      own = app.values();
    return app.constants.examples.find(({ inputs }) =>
      Object.entries(app.valuesOf(inputs)).every(([key, value]) => apart.has(key) || own[key] === value),
    );
  }

  update() {
    const found = this.chosen();
    this.buttons.forEach((el, i) => set(el, "aria-pressed", String(this.app.constants.examples[i] === found)));
    say(this.note, found?.note ?? "");
    this.note.hidden = !found;
  }
}
