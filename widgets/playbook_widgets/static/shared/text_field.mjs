// A text that a reader types: it counts when the typing pauses, so that the 1 of 128 is not refused on the way.

import { make } from "./dom.mjs";

const PAUSE = 300; // ms without a key until what is typed counts

export class TextField {
  /** `tell(value)` hears what the reader typed, as `read` has it; `written(value)` is how a value stands in the field. A
      `tag` of "textarea" is one of several lines. */
  constructor({
    id,
    tag = "input",
    attributes = {},
    tell,
    written = (value) => String(value ?? ""),
    read = (text) => text,
  }) {
    Object.assign(this, { tell, written, read, value: undefined });
    this.text = make(tag, {
      ...(tag === "input" ? { type: "text" } : {}),
      id,
      autocomplete: "off",
      spellcheck: "false",
      ...attributes,
    });
    this.text.addEventListener("input", () => this.typed(PAUSE));
    this.text.addEventListener("change", () => this.typed(0));
    this.text.addEventListener("keydown", (e) => this.key(e));
  }

  typed(wait) {
    clearTimeout(this.later);
    this.typing = wait > 0; // what Python answers meanwhile must not write over it
    if (wait) this.later = setTimeout(() => this.typed(0), wait);
    else if (this.differs()) this.tell(this.read(this.text.value));
  }

  /** Whether the text means another value; there are several ways to write one. */
  differs() {
    return this.text.value !== this.written(this.value) && this.read(this.text.value) !== this.value;
  }

  key(event) {
    if (event.key === "Enter") this.typed(0);
  }

  show(value) {
    this.value = value;
    if (!this.typing && this.differs()) this.text.value = this.written(value);
  }

  /** What was typed last is not to count any more. */
  stop() {
    clearTimeout(this.later);
    this.typing = false;
  }
}
