// What a result comes to, in a sentence and a note, and a link to take along. Class names begin with the prefix of `app`.

import { button, make, say } from "./dom.mjs";
import { Announcer, Carrier } from "./parts.mjs";

export class Verdict {
  constructor(app) {
    this.app = app;
    [this.answer, this.machine] = ["answer", "note"].map((name) => make("p", { class: `${app.prefix}-${name}` }));
    this.stale = make("span", { class: `${app.prefix}-stale` }, "last valid");
    this.announcer = new Announcer();
    const carrier = (this.carrier = new Carrier(`${app.prefix}-said`));
    this.link = button("Copy link", () => carrier.copy(app.model.get("link"), "Link copied"), { hidden: "" });
    this.root = make(
      "section",
      { "aria-label": "Result" },
      this.answer,
      this.machine,
      make("div", { class: `${app.prefix}-tools` }, this.stale, this.link, carrier.root),
      this.announcer.root,
    );
  }

  update() {
    const { answer, machine } = this.app.result;
    say(this.answer, answer);
    say(this.machine, machine);
    this.stale.hidden = !this.app.error;
    this.link.hidden = !this.app.model.get("link");
    this.announcer.tell(() => answer);
  }

  close() {
    this.announcer.close();
    this.carrier.close();
  }
}
