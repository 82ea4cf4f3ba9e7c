// A number that a reader sets with a slider over its likely values, or types.

import { parse } from "./address.mjs";
import { make } from "./dom.mjs";

const PAUSE = 300; // ms without a key until what is typed counts

export class NumberField {
  /**
   * `stops` are the likely values; `attributes` go to both inputs; `tell(value)` hears what the reader did; `written(value)`
   * is how a value stands in the field; `next(by)` what an arrow up (1) or down (-1) in the field makes of it, undefined
   * for nothing; `away(stop, value)` how far a stop of the slider is from a value.
   */
  constructor({ id, label, stops, attributes = {}, tell, written = (value) => String(value ?? ""), next, away = (a, b) => Math.abs(a - b) }) {
    Object.assign(this, { stops, tell, written, next, away, value: undefined });
    this.slider = make("input", { type: "range", min: 0, max: stops.length - 1, step: 1, "aria-label": `${label}, slider`, ...attributes });
    this.text = make("input", { type: "text", id, autocomplete: "off", spellcheck: "false", ...attributes });
    this.slider.addEventListener("input", () => tell(stops[this.slider.value]));
    this.text.addEventListener("input", () => this.typed(PAUSE));
    this.text.addEventListener("change", () => this.typed(0));
    this.text.addEventListener("keydown", (e) => this.key(e));
  }

  /** Text counts when the typing pauses, so that the 1 of 128 is not refused on the way. */
  typed(wait) {
    clearTimeout(this.later);
    this.typing = wait > 0; // what Python answers meanwhile must not write over it
    if (wait) this.later = setTimeout(() => this.typed(0), wait);
    else if (this.differs()) this.tell(parse(this.text.value));
  }

  /** Whether the text means another value; there are several ways to write one. */
  differs() {
    return this.text.value !== this.written(this.value) && parse(this.text.value) !== this.value;
  }

  key(event) {
    if (event.key === "Enter") return this.typed(0);
    const by = { ArrowUp: 1, ArrowDown: -1 }[event.key], value = by && this.next(by);
    if (value === undefined) return;
    event.preventDefault();
    this.stop();
    this.tell(value);
  }

  /** Show a value, and on the slider `size`, the number that it means. */
  show(value, size = value) {
    this.value = value;
    if (!this.typing && this.differs()) this.text.value = this.written(value);
    if (typeof size !== "number") return;
    const away = this.stops.map((stop) => this.away(stop, size)), nearest = away.lastIndexOf(Math.min(...away));
    if (this.slider.value !== String(nearest)) this.slider.value = nearest;
    this.slider.style.setProperty("--at", `${(100 * nearest) / (this.stops.length - 1)}%`);
  }

  /** What was typed last is not to count any more. */
  stop() {
    clearTimeout(this.later);
    this.typing = false;
  }
}
