// Whether what is drawn is of what is set, and words over it while it is not.

import { button, make, say, set } from "./dom.mjs";

/** Whether two settings are the same, in whatever order their fields stand. */
export function same(a, b) {
  const sorted = (_, value) =>
    value && typeof value === "object" && !Array.isArray(value)
      ? Object.fromEntries(Object.entries(value).sort(([x], [y]) => (x < y ? -1 : 1)))
      : value;
  return JSON.stringify(a, sorted) === JSON.stringify(b, sorted);
}

const PAUSE = 250; // ms: most answers are there before a reader could read that they are not

export class Freshness {
  /** `asked(inputs)` is what of the inputs `outputs.asked` repeats. */
  constructor(model, asked) {
    Object.assign(this, { model, asked });
    this.text = make("p", { role: "status" });
    this.end = button("Stop", () => model.stop(), { hidden: "" }); // a kernel has a button of its own
    this.root = make("div", { class: "pb-computing", hidden: "" }, this.text, this.end);
  }

  /** Whether the outputs are those of the inputs. */
  get fresh() {
    const { asked } = this.model.get("outputs");
    return asked === undefined || same(asked, this.asked(this.model.get("inputs")));
  }

  /** Mark `root` as busy or stale, let nothing stale be taken along by `buttons`, and say so: `shown` tells whether there are
      results at all, `error` why there are none of these settings. */
  update({ root, buttons, shown, error }) {
    const busy = !this.fresh,
      stale = busy || Boolean(error);
    root.toggleAttribute("data-stale", stale && shown);
    set(root, "aria-busy", busy ? "true" : null);
    for (const el of buttons) el.disabled = stale || !shown;
    clearTimeout(this.later);
    if (busy) this.later = setTimeout(() => this.say(this.words(shown)), PAUSE);
    else this.say(error && !shown ? `No result: ${error.message}` : "");
  }

  words(shown) {
    if ((this.model.get("status") ?? "").startsWith("failed"))
      return "Python could not be started: there is no result of these settings.";
    if (this.model.get("status") === "stopped")
      return "Stopped: there is no result of these settings. Change one to go on.";
    return shown ? "Computing … Until then the results are those of the settings before." : "Computing …";
  }

  say(text) {
    say(this.text, text);
    this.root.hidden = !text;
    this.end.hidden = !this.model.stop || !["busy", "starting"].includes(this.model.get("status")) || this.fresh;
  }

  close() {
    clearTimeout(this.later);
  }
}
