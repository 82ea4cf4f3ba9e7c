// Where the time of a step goes: its parts one after the other, as long as they take.

import { keep, make, say } from "../shared/dom.mjs";
import { seconds, share } from "../shared/numbers.mjs";

export class Timeline {
  constructor(app) {
    this.app = app;
    this.track = make("div", { class: "pb-cl-track", "aria-hidden": "true" });
    this.end = make("span", {});
    this.rows = make("tbody");
    this.why = make("p", { class: "pb-mc-note pb-cl-why" });
    const parts = make("table", { class: "pb-mc-table" }, make("tbody"));
    this.rows = parts.firstChild;
    this.root = make(
      "section",
      { "aria-label": "Time of a step" },
      make("h3", { class: "pb-mc-heading" }, "Where its time goes"),
      this.track,
      make("div", { class: "pb-cl-axis", "aria-hidden": "true" }, make("span", {}, "0"), this.end),
      parts,
      this.why,
    );
  }

  update() {
    const { app } = this,
      { breakdown, chosen, why } = app.result,
      parts = breakdown.filter(([, , time]) => time > 0);
    const look = new Map(app.constants.parts.map(([part, , colour, hatched]) => [part, { colour, hatched }]));
    keep(this.track, parts.length, () => make("i")).forEach((el, i) =>
      this.paint(el, look.get(parts[i][0]), `${parts[i][1]}: ${seconds(parts[i][2])}`, parts[i][2] / chosen.seconds),
    );
    say(this.end, seconds(chosen.seconds));
    keep(this.rows, parts.length, () => this.row()).forEach((el, i) => {
      const [part, words, time] = parts[i],
        [name, number, of] = el.children;
      this.paint(name.firstChild, look.get(part), "", null);
      say(name.lastChild, words);
      say(number, seconds(time));
      say(of, share(time, chosen.seconds));
    });
    say(this.why, why);
  }

  row() {
    return make(
      "tr",
      {},
      make("th", { scope: "row" }, make("i", { class: "pb-cl-swatch" }), make("span")),
      make("td", { class: "pb-mc-number" }),
      make("td", { class: "pb-mc-number" }),
    );
  }

  paint(el, { colour, hatched }, title, part) {
    el.style.setProperty("--hue", colour);
    el.toggleAttribute("data-hatched", hatched);
    if (title) el.title = title;
    if (part !== null) el.style.width = `${100 * part}%`;
  }
}
