// The 32 threads of the warp, and the address of one of them.

import { make, say, set } from "../shared/dom.mjs";
import { grouped } from "../shared/numbers.mjs";
import { element, section, where } from "./pieces.mjs";

const WARP = 32,
  ROW = 8;

export class Threads {
  constructor(app) {
    this.app = app;
    this.cells = Array.from({ length: WARP }, (_, i) =>
      make("div", { class: "pb-ma-thread", role: "option", id: `${app.id}-t${i}`, "data-thread": i }, String(i)),
    );
    this.list = make(
      "div",
      {
        class: "pb-ma-threads",
        role: "listbox",
        tabindex: "0",
        "aria-label": "Threads of the warp; arrow keys go to other threads",
      },
      ...this.cells,
    );
    this.said = make("p", { class: "pb-ma-said-thread", "aria-live": "polite" });
    this.root = section("Threads of the warp", this.list, this.said);
    app.pointable(this.list);
    this.list.addEventListener("keydown", (e) => this.key(e));
  }

  /** Left and right is the next thread, up and down the next row of the picture. */
  key(event) {
    const { chosen: thread } = this.app;
    const to = {
      ArrowRight: thread + 1,
      ArrowLeft: thread - 1,
      ArrowDown: thread + ROW,
      ArrowUp: thread - ROW,
      Home: 0,
      End: WARP - 1,
    }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    if (to >= 0 && to < WARP) this.app.choose(to);
  }

  show() {
    const { picture } = this.app;
    this.cells.forEach((el, i) => {
      el.toggleAttribute("data-idle", !picture.threads[i]);
      set(el, "aria-label", picture.threads[i] ? `thread ${i}` : `thread ${i}, inactive`);
    });
    this.mark();
  }

  mark() {
    const { chosen, thread } = this.app;
    this.cells.forEach((el, i) => {
      set(el, "aria-selected", String(i === chosen));
      el.toggleAttribute("data-chosen", i === thread);
    });
    set(this.list, "aria-activedescendant", this.cells[chosen].id);
    say(this.said, this.words(thread));
  }

  /** What a thread does. */
  words(thread) {
    const { picture, result, at } = this.app,
      found = picture.threads[thread],
      { access, block_x: wide, block_y: high } = result.values;
    const number = at * WARP + thread,
      name = `Thread ${thread} (x ${number % wide}, y ${Math.floor(number / wide)})`;
    if (number >= wide * high) return `The block has no thread ${thread} in this warp.`;
    if (!found) return `${name} is outside the ${result.values.memory === "global" ? "matrix" : "tile"} and inactive.`;
    return `${name} ${access}s ${element(result, found)}: byte ${grouped(found[2])}, ${where(result, found[2])}.`;
  }
}
