// The same with every other way: time, balance, bytes.

import { button, keep, make, say, set } from "../shared/dom.mjs";
import { bytes, seconds } from "../shared/numbers.mjs";
import { section } from "./pieces.mjs";

export class Rivals {
  constructor(app) {
    this.app = app;
    this.list = make("ul", { class: "pb-ra-rivals" });
    this.root = section("The same another way", this.list);
  }

  update() {
    const { rivals, values } = this.app.result,
      { names, places } = this.app.constants,
      longest = Math.max(...rivals.map((r) => r.seconds ?? 0));
    keep(this.list, rivals.length, () => this.row()).forEach((row, i) => {
      const { context, placement, seconds: time, balance, sent, held, error } = rivals[i],
        [choose, bar, numbers] = row.children;
      Object.assign(row, { context, placement });
      say(choose, context === "ulysses" ? names[context] : `${names[context]}, ${places[placement]}`);
      set(choose, "aria-pressed", String(context === values.context && placement === values.placement));
      choose.disabled = Boolean(error);
      bar.firstChild.hidden = Boolean(error);
      bar.firstChild.style.width = `${(100 * (time ?? 0)) / longest}%`;
      say(
        numbers,
        error ??
          `${seconds(time)}, busiest / mean ${balance.toFixed(2)}, ${bytes(sent)} sent, ${bytes(held)} of K and V at once`,
      );
    });
  }

  row() {
    const choose = button("", () => this.app.change("context", row.context, { placement: row.placement }));
    const row = make(
      "li",
      {},
      choose,
      make("span", { class: "pb-ra-bar", "aria-hidden": "true" }, make("i")),
      make("span", { class: "pb-ra-numbers" }),
    );
    return row;
  }
}
