// What is drawn as a table, and what the reader takes along: the command, a link, the numbers, a picture.

import { button, make } from "../shared/dom.mjs";
import { Carrier } from "../shared/parts.mjs";
import { pictureOf } from "./picture.mjs";
import { transcript } from "./reading.mjs";

export class Details {
  constructor(app) {
    this.app = app;
    this.table = make("div", { class: "pb-scroll", tabindex: "0", role: "group", "aria-label": "All actions" });
    this.fold = make("details", { class: "pb-sv-fold" }, make("summary", {}, "All actions as a table"), this.table);
    this.fold.addEventListener("toggle", () => this.update());
    const carrier = (this.carrier = new Carrier("pb-sv-said"));
    this.code = make("code", { tabindex: "0" });
    const copy = button("Copy", () => carrier.copy(this.code.textContent, "Command copied"), {
      "aria-label": "Copy command",
    });
    this.command = make("div", { class: "pb-sv-code" }, this.code, copy);
    this.link = button("Copy link", () => carrier.copy(app.model.get("link"), "Link copied"), { hidden: "" });
    const json = button(
      "Save JSON",
      () =>
        carrier.save(
          `${this.name()}.json`,
          "application/json",
          JSON.stringify(scheduleOf(app.sides[0], app.result.unit)),
        ),
      { title: "The first schedule, as playbook schedule reads it" },
    );
    const picture = button("Save picture", () => carrier.save(`${this.name()}.svg`, "image/svg+xml", pictureOf(app)), {
      title: "What is in view, as SVG",
    });
    this.tools = make("div", { class: "pb-sv-tools" }, this.link, json, picture, carrier.root);
    this.root = make("div", { class: "pb-sv-details" }, this.command, this.tools, this.fold);
  }

  name() {
    const { result } = this.app;
    return result.board ? "own-schedule" : result.values.schedule;
  }

  update() {
    const { result, model } = this.app;
    this.command.hidden = !result.command;
    if (this.code.textContent !== result.command)
      this.code.replaceChildren(...result.command.split(/(?= --)/).map((piece) => make("span", {}, piece)));
    this.link.hidden = !model.get("link") || this.app.inputs.trace != null; // no link holds a trace
    if (this.fold.open) this.table.replaceChildren(transcript(this.app));
  }

  close() {
    this.carrier.close();
  }
}

/** A timeline in the form of `playbook schedule --json`, which reads it, too. */
function scheduleOf(side, unit) {
  const action = (i) => ({
    op: side.op[i] === "X" ? "BW" : side.op[i],
    stage: side.stage[i],
    microbatch: side.microbatch[i],
    start: side.start[i],
    end: side.end[i],
  });
  const ranks = Array.from({ length: side.ranks }, (_, rank) =>
    Array.from({ length: side.offsets[rank + 1] - side.offsets[rank] }, (_, k) => action(side.offsets[rank] + k)),
  );
  return {
    name: side.name || side.label,
    unit,
    microbatches: side.microbatches,
    placement: side.placement,
    ...(side.directions.length && { directions: side.directions }),
    ...side.numbers,
    peak_in_flight: side.peaks,
    ranks,
  };
}
