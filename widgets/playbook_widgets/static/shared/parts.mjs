// Parts that most widgets have: what Python is doing, what a screen reader hears, and what the reader takes along.

import { make, say } from "./dom.mjs";

/** What the model's `status` says, in words: what Python is doing, or why it cannot. */
export class PythonStatus {
  constructor(model, root) {
    Object.assign(this, { model, root });
    this.listener = () => this.update();
    model.on("change:status", this.listener);
    this.update();
  }

  update() {
    const status = this.model.get("status") ?? "";
    clearTimeout(this.later);
    const text = status.startsWith("failed")
      ? `Python could not be started${status.slice(6)}`
      : ({ starting: "starting Python …", busy: "computing …" }[status] ?? "");
    // An answer takes milliseconds: only a wait that a reader would notice is worth a word.
    status === "busy" ? (this.later = setTimeout(() => say(this.root, text), 300)) : say(this.root, text);
  }

  close() {
    clearTimeout(this.later);
    this.model.off("change:status", this.listener);
  }
}

/** Words for screen readers alone, spoken when what they tell of has come to rest. */
export class Announcer {
  constructor() {
    this.root = make("div", { class: "pb-unseen", "aria-live": "polite" });
  }

  /** `words` is asked then, and not before. */
  tell(words) {
    clearTimeout(this.later);
    this.later = setTimeout(() => say(this.root, words()), 600);
  }

  close() {
    clearTimeout(this.later);
  }
}

/** Copies texts and saves files, and says for a moment that it has: in `root`, of class `className`. */
export class Carrier {
  constructor(className) {
    this.root = make("span", { class: className, role: "status" });
  }

  async copy(text, done) {
    try {
      await navigator.clipboard.writeText(text);
      this.tell(done);
    } catch {
      this.tell("The browser does not let a page copy: select the text instead");
    }
  }

  save(name, type, text) {
    const url = URL.createObjectURL(new Blob([text], { type }));
    make("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
    this.tell(`${name} saved`);
  }

  tell(text) {
    say(this.root, text);
    clearTimeout(this.later);
    this.later = setTimeout(() => say(this.root, ""), 2500);
  }

  close() {
    clearTimeout(this.later);
  }
}
