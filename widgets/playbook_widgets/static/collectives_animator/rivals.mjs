// The same with the other algorithms of the collective.

import { button, keep, make, say, set } from "../shared/dom.mjs";
import { bytes, plural, seconds } from "../shared/numbers.mjs";
import { section } from "./pieces.mjs";

export class Rivals {
  constructor(app) {
    this.app = app;
    this.list = make("ul", { class: "pb-ca-rivals" });
    this.root = section("The same with other algorithms", this.list);
  }

  update() {
    const { app } = this,
      { result } = app,
      { algorithms, values } = result,
      names = app.constants.collectives[values.collective].algorithms;
    const longest = Math.max(...algorithms.map((a) => a.seconds ?? 0));
    keep(this.list, algorithms.length, () => this.row()).forEach((row, i) => {
      const { algorithm, seconds: time, steps, sent, error } = algorithms[i],
        [choose, bar, numbers] = row.children;
      row.algorithm = algorithm;
      say(choose, names.find(([name]) => name === algorithm)[1]);
      set(choose, "aria-pressed", String(algorithm === values.algorithm));
      bar.firstChild.style.width = `${(100 * (time ?? 0)) / longest}%`;
      say(numbers, error ?? `${seconds(time)}, ${plural(steps, "step")}, ${bytes(sent)} sent`);
    });
  }

  row() {
    const choose = button("", () => this.app.change("algorithm", row.algorithm));
    const row = make(
      "li",
      {},
      choose,
      make("span", { class: "pb-ca-bar", "aria-hidden": "true" }, make("i")),
      make("span", { class: "pb-ca-numbers" }),
    );
    return row;
  }
}
