// A row for every format: its name, its bits, each a button that is pressed where it is 1, its value, a word, its errors.

import { button, make, say, set } from "../shared/dom.mjs";

const legend = (kind) => make("span", {}, make("i", { class: "pb-nf-bit", "data-kind": kind }), kind);

export class Rows {
  constructor(app) {
    this.app = app;
    this.stale = make("span", { class: "pb-nf-stale" }, "last valid");
    this.rows = app.constants.formats.map((format) => new Row(app, format));
    const list = make("ul", { class: "pb-nf-rows" }, ...this.rows.map((row) => row.root));
    this.root = make(
      "section",
      { class: "pb-nf-formats", "aria-label": "Formats" },
      make(
        "p",
        { class: "pb-nf-legend" },
        ...["sign", "exponent", "mantissa"].map(legend),
        make("span", {}, "Under a value: its error, absolute · relative · in units of the last place (ulp)"),
        this.stale,
      ),
      list,
    );
  }

  update() {
    this.stale.hidden = !this.app.error;
    this.rows.forEach((row, i) => row.update(this.app.result.rows[i]));
  }
}

class Row {
  constructor(app, { name, title, fields }) {
    Object.assign(this, { app, name, at: 0 });
    this.title = button(title, () => app.change("format", name), { class: "pb-nf-name" });
    const places = fields.flatMap(([kind, bits]) =>
      Array.from({ length: bits }, (_, i) => ({ kind, words: said(kind, i, bits), first: i === 0 })),
    );
    this.bits = places.map(({ kind, words, first }, at) => {
      const bit = button("0", () => app.flip(name, at), {
        class: "pb-nf-bit",
        "data-kind": kind,
        title: words,
        tabindex: "-1",
      });
      bit.toggleAttribute("data-first", first && at > 0);
      if (at === 0 && kind !== "sign") bit.style.gridColumnStart = 2; // under the exponents of the others
      return bit;
    });
    this.names = places.map(({ words }) => `${words} of ${title}`);
    this.list = make(
      "div",
      { class: "pb-nf-bits", role: "toolbar", "aria-label": `Bits of ${title}; arrow keys go from bit to bit` },
      ...this.bits,
    );
    this.list.addEventListener("keydown", (e) => this.key(e));
    this.list.addEventListener("focusin", ({ target }) => this.reach(this.bits.indexOf(target)));
    [this.value, this.word] = [make("b"), make("span", { class: "pb-nf-word" })];
    this.errors = make("p", { class: "pb-nf-errors" });
    const result = make("div", { class: "pb-nf-result" }, make("p", {}, this.value, this.word), this.errors);
    this.root = make("li", { class: "pb-nf-format", "data-format": name }, this.title, this.list, result);
    this.reach(0);
  }

  /** One bit of a row is a stop of the tab key: the one that was reached last. */
  reach(at) {
    if (at < 0) return;
    this.bits[this.at].tabIndex = -1;
    this.at = at;
    this.bits[at].tabIndex = 0;
  }

  key(event) {
    const last = this.bits.length - 1,
      to = { ArrowLeft: this.at - 1, ArrowRight: this.at + 1, Home: 0, End: last }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.bits[Math.min(last, Math.max(0, to))].focus();
  }

  update({ bits, value, word, errors }) {
    this.bits.forEach((bit, at) => {
      say(bit, bits[at] ?? "–");
      set(bit, "aria-label", `${bits[at] ?? "–"}, ${this.names[at]}`);
      set(bit, "aria-pressed", String(bits[at] === "1"));
      set(bit, "aria-disabled", bits ? null : "true");
    });
    const chosen = this.app.result.values.format === this.name;
    set(this.title, "aria-pressed", String(chosen));
    this.root.toggleAttribute("data-chosen", chosen);
    say(this.value, value);
    say(this.word, word);
    set(this.word, "data-kind", word.split(/[:,]/)[0]);
    say(this.errors, errors.length ? (word.endsWith("exact") ? "no error" : errors.join(" · ")) : "");
  }
}

/** What a bit is and what it is worth: "exponent bit 3, worth 8". */
function said(kind, at, bits) {
  if (kind === "sign") return "sign bit";
  return kind === "exponent"
    ? `exponent bit ${at + 1}, worth ${2 ** (bits - 1 - at)}`
    : `mantissa bit ${at + 1}, worth 1/${2 ** (at + 1)}`;
}
