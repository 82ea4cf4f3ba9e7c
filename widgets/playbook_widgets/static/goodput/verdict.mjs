// What the ratios come to, in a sentence, and a link to take along.

import { button, make, say } from "../shared/dom.mjs";
import { Announcer, Carrier } from "../shared/parts.mjs";

export class Verdict {
  constructor(app) {
    this.app = app;
    [this.answer, this.machine] = ["answer", "note"].map((name) => make("p", { class: `pb-gp-${name}` }));
    this.stale = make("span", { class: "pb-gp-stale" }, "last valid");
    this.announcer = new Announcer();
    const carrier = (this.carrier = new Carrier("pb-gp-said"));
    this.link = button("Copy link", () => carrier.copy(app.model.get("link"), "Link copied"), { hidden: "" });
    this.root = make("section", { "aria-label": "Result" }, this.answer, this.machine, make("div", { class: "pb-gp-tools" }, this.stale, this.link, carrier.root), this.announcer.root);
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
