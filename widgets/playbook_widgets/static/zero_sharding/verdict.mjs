// What the chosen stage comes to, and what the next one would buy and cost.

import { make, say } from "../shared/dom.mjs";
import { bytes, grouped, rounded, seconds } from "../shared/numbers.mjs";
import { Announcer } from "../shared/parts.mjs";

export class Verdict {
  constructor(app) {
    this.app = app;
    [this.size, this.of, this.fits, this.stale] = ["size", "of", "fits", "stale"].map((name) =>
      make("span", { class: `pb-zs-${name}` }),
    );
    this.stale.textContent = "last valid";
    [this.traffic, this.answer, this.least] = ["traffic", "answer", "least"].map((name) =>
      make("p", { class: `pb-zs-${name}` }),
    );
    this.announcer = new Announcer();
    const line = make("p", { class: "pb-zs-line" }, this.size, this.of, this.fits, this.stale);
    this.root = make(
      "section",
      { class: "pb-zs-verdict", "aria-label": "Result" },
      line,
      this.traffic,
      this.answer,
      this.announcer.root,
    );
  }

  update() {
    const { app } = this,
      { result, stage } = app,
      { values } = result,
      held = stage.total + stage.gathered;
    say(this.size, bytes(held));
    say(
      this.of,
      `of ${bytes(result.capacity)} on ${values.replicas === 1 ? "the one rank" : `each of ${grouped(values.replicas)} ranks`} ${stage.zero ? `with ${app.constants.names[stage.zero]}` : "without ZeRO"}`,
    );
    say(this.fits, stage.fits ? `fits, ${bytes(stage.spare)} to spare` : `does not fit, by ${bytes(-stage.spare)}`);
    this.root.toggleAttribute("data-fits", stage.fits);
    this.root.toggleAttribute("data-stale", Boolean(app.error));
    this.stale.hidden = !app.error;
    say(this.traffic, `${this.sent(stage, values)} ${this.lowest(result)}`);
    say(this.answer, result.answer);
    this.announcer.tell(
      () =>
        `${[this.size, this.of, this.fits].map((el) => el.textContent).join(" ")}. ${this.traffic.textContent} ${result.answer}`,
    );
  }

  sent({ traffic, elements, seconds: time }, { bandwidth }) {
    if (!traffic) return "It sends nothing.";
    return `Each sends ${bytes(traffic)} (${rounded(elements)} Ψ elements) in a step: ${seconds(time)} at ${rounded(bandwidth)} GB/s, as far as computation does not hide it.`;
  }

  lowest({ least, values, stages, capacity }) {
    const { names } = this.app.constants,
      freed = stages[3].gathered && stages[3].total <= capacity;
    if (least === null)
      return freed ? `No stage fits; ${names[3]} would if it freed weights after forward.` : "No stage fits.";
    if (least === 0) return values.zero ? "It would fit without ZeRO, too." : "";
    return least === values.zero ? "" : `${names[least]} is the lowest stage that fits.`;
  }

  close() {
    this.announcer.close();
  }
}
