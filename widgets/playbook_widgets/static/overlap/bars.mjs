// A bar for each technique on a logarithmic axis, with a line where sending takes as long as computing.

import { keep, make, say, set } from "../shared/dom.mjs";
import { rounded } from "../shared/numbers.mjs";

// The axis reaches over four powers of ten; what is beyond ends at its border.
const TICKS = [0.001, 0.01, 0.1, 1, 10];
const place = (ratio) => Math.min(1, Math.max(0, (Math.log10(ratio) + 3) / 4));
const percent = (part) => `${100 * part}%`;

export class Bars {
  constructor(app) {
    this.app = app;
    this.rows = make("ul", { class: "pb-ov-bars" });
    const ticks = TICKS.map((tick) => make("span", { style: `left: ${percent(place(tick))}` }, String(tick)));
    this.axis = make(
      "div",
      { class: "pb-ov-axis", "aria-hidden": "true" },
      make("span", { class: "pb-ov-ticks" }, ...ticks),
    );
    const title = make("h3", { class: "pb-ov-heading" }, "Time to send over time to compute");
    this.root = make("section", { "aria-label": "Ratios" }, title, this.rows, this.axis);
  }

  update() {
    const { rows } = this.app.result;
    keep(this.rows, rows.length, row).forEach((el, i) => this.show(el, rows[i]));
  }

  show(el, { name, axis, ratio, phase, link, text }) {
    const [title, track, number, words] = el.children,
      used = ratio !== null,
      over = used && ratio > 1;
    set(el, "data-axis", axis);
    el.toggleAttribute("data-over", over);
    el.toggleAttribute("data-unused", !used);
    say(title.children[0], name);
    say(title.children[1], link);
    track.children[0].style.width = percent(used ? place(Math.min(1, ratio)) : 0);
    track.children[1].style.width = percent(over ? place(ratio) - place(1) : 0);
    say(number, used ? `${rounded(ratio)} ${over ? "exposed" : "hidden"}` : "–");
    set(track, "aria-label", used ? `${name}: ${rounded(ratio)}, in ${phase}` : `${name}: not used`);
    say(words, used && phase ? `${text} (${phase})` : text);
  }
}

const row = () =>
  make(
    "li",
    { class: "pb-ov-bar" },
    make("span", { class: "pb-ov-name" }, make("b"), make("span")),
    make("span", { class: "pb-ov-track", role: "img" }, make("i"), make("i", { class: "pb-ov-exposed" })),
    make("b", { class: "pb-ov-ratio" }),
    make("span", { class: "pb-ov-words" }),
  );
