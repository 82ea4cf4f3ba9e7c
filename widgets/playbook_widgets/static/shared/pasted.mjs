// A run that was pasted where a model is asked for: its settings take the place of its text, and what it leaves open is said.

import { make, say } from "./dom.mjs";

const pick = (from, keys) => Object.fromEntries(keys.filter((key) => key in from).map((key) => [key, from[key]]));

/** The settings that `config`, whose model is the text of a run, becomes: those of the run, what is `kept`, and, where it
    names no model, `model` as it was `before`. */
export function settings(config, before, { set }, kept, model) {
  return { ...pick(config, kept), ...("model" in set ? {} : pick(before, ["model", "seq", ...model])), ...set };
}

/** What a run was read from, and what it leaves open. */
export class LeftOpen {
  constructor() {
    this.title = make("summary");
    this.list = make("ul");
    this.root = make("details", { class: "pb-mc-pasted", hidden: "" }, this.title, this.list);
  }

  show(pasted) {
    this.root.hidden = !pasted;
    if (!pasted || pasted === this.shown) return;
    this.shown = pasted;
    const { from, unknown } = pasted;
    say(this.title, `Read from ${from}${unknown.length ? `; ${unknown.length} left open` : ""}`);
    this.list.replaceChildren(...unknown.map((what) => make("li", {}, what)));
    this.root.open = unknown.some((what) => !what.startsWith("not read"));
  }
}
