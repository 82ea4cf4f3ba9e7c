// What the rank sends in a step: a bar for each axis, the part that stays in its node and the part that leaves it.

import { keep, make, say, set } from "../shared/dom.mjs";
import { bytes, share } from "../shared/numbers.mjs";
import { section } from "./pieces.mjs";

export class Sent {
  constructor(app) {
    this.app = app;
    this.answer = make("p", { class: "pb-me-answer" });
    this.rows = make("div", { class: "pb-me-bars" });
    this.note = make("p", { class: "pb-me-note" });
    const key = ([level, words]) => make("span", {}, make("i", { class: "pb-me-swatch", "data-level": level }), words);
    this.legend = make(
      "p",
      { class: "pb-me-legend" },
      ...[
        ["within", "inside the node"],
        ["across", "to other nodes"],
      ].map(key),
    );
    this.root = section("What it sends in a step", this.answer, this.rows, this.legend, this.note);
  }

  update() {
    const { sent, answer } = this.app.result,
      axes = sent.filter(({ axis }) => axis !== "world"),
      world = sent.find(({ axis }) => axis === "world");
    const most = Math.max(1, ...axes.map(({ within, across }) => within + across));
    say(this.answer, answer);
    keep(this.rows, axes.length, row).forEach((el, i) => this.show(el, axes[i], most));
    this.legend.hidden = !axes.length;
    say(
      this.note,
      world
        ? `A ring sends to the next rank of its group, an all-to-all the same to every other rank. Beside these, ${bytes(world.within + world.across)} go over several axes: the norm of the gradients, the loss.`
        : "",
    );
    this.note.hidden = !world;
  }

  show(el, { axis, within, across }, most) {
    const [name, track, numbers] = el.children,
      total = within + across;
    const where = !across
      ? "all in the node"
      : !within
        ? "all to other nodes"
        : `${share(across, total)} to other nodes`;
    set(el, "data-axis", axis);
    say(name, axis);
    [within, across].forEach((size, i) => {
      track.children[i].hidden = !size;
      track.children[i].style.width = `max(${(100 * size) / most}%, 2px)`;
    });
    set(track, "aria-label", `${axis}: ${bytes(total)}, ${where}`);
    [bytes(total), where].forEach((text, i) => say(numbers.children[i], text));
  }
}

const row = () =>
  make(
    "div",
    { class: "pb-me-bar" },
    make("b"),
    make(
      "span",
      { class: "pb-me-track", role: "img" },
      make("i", { "data-level": "within" }),
      make("i", { "data-level": "across" }),
    ),
    make("span", { class: "pb-me-numbers" }, make("b"), make("span")),
  );
