// A number that a reader sets with a slider over its likely values, or types.

import { parse } from "./address.mjs";
import { make } from "./dom.mjs";
import { TextField } from "./text_field.mjs";

export class NumberField extends TextField {
  /**
   * `stops` are the likely values; `attributes` go to both inputs; `tell(value)` hears what the reader did; `written(value)`
   * is how a value stands in the field; `next(by)` what an arrow up (1) or down (-1) in the field makes of it, undefined
   * for nothing; `away(stop, value)` how far a stop of the slider is from a value.
   */
  constructor({ id, label, stops, attributes = {}, tell, written, next, away = (a, b) => Math.abs(a - b) }) {
    super({ id, attributes, tell, written, read: parse });
    Object.assign(this, { stops, next, away });
    this.slider = make("input", {
      type: "range",
      min: 0,
      max: stops.length - 1,
      step: 1,
      "aria-label": `${label}, slider`,
      ...attributes,
    });
    this.slider.addEventListener("input", () => tell(stops[this.slider.value]));
  }

  key(event) {
    super.key(event);
    const by = { ArrowUp: 1, ArrowDown: -1 }[event.key],
      value = by && this.next(by);
    if (value === undefined) return;
    event.preventDefault();
    this.stop();
    this.tell(value);
  }

  /** Show a value, and on the slider `size`, the number that it means. */
  show(value, size = value) {
    super.show(value);
    if (typeof size !== "number") return;
    const away = this.stops.map((stop) => this.away(stop, size)),
      nearest = away.lastIndexOf(Math.min(...away));
    if (this.slider.value !== String(nearest)) this.slider.value = nearest;
    this.slider.style.setProperty("--at", `${(100 * nearest) / (this.stops.length - 1)}%`);
  }
}
