// The part of the matrix that the warp is in: what its threads want, and what comes with it.

import { make, say, set } from "../shared/dom.mjs";
import { grouped } from "../shared/numbers.mjs";
import { mark, section } from "./pieces.mjs";

const GRID = 64; // rows and columns up to which each is ruled off
const SHAPES = [0.4, 6]; // width to height: what is longer is drawn shorter

export class Matrix {
  constructor(app) {
    this.app = app;
    this.box = make("div", { class: "pb-ma-matrix", role: "img" });
    this.note = make("p", { class: "pb-ma-note" });
    this.root = section("Matrix", this.box, this.note);
    this.heading = this.root.firstChild;
    app.pointable(this.box);
  }

  update() {
    say(this.heading, this.app.result.values.memory === "global" ? "Matrix" : "Tile");
  }

  show() {
    const { picture, result } = this.app,
      { values } = result,
      [, , rows, columns] = picture.window;
    const shape = Math.min(SHAPES[1], Math.max(SHAPES[0], columns / rows));
    this.box.style.setProperty("--shape", shape);
    this.box.style.setProperty("--rows", rows);
    this.box.style.setProperty("--columns", columns);
    this.box.toggleAttribute("data-ruled", Math.max(rows, columns) <= GRID);
    const [down, across] = values.layout === "row-major" ? [1, values.vector] : [values.vector, 1];
    const runs = (picture.runs ?? []).map((run) => this.place("sector", ...run)).filter(Boolean);
    const cells = picture.threads.map((found, i) => {
      if (!found) return null;
      const el = this.place("cell", found[0], found[1], down, across);
      el.dataset.thread = i;
      return el;
    });
    this.box.replaceChildren(...runs, ...cells.filter(Boolean));
    this.mark();
    say(this.note, this.words(picture.window, values));
    set(this.box, "aria-label", this.words(picture.window, values));
  }

  mark() {
    for (const el of this.box.querySelectorAll("[data-thread]"))
      el.toggleAttribute("data-chosen", el.dataset.thread === String(this.app.thread));
  }

  /** A rectangle of elements; null outside of what is drawn. */
  place(kind, row, column, down, across) {
    const [top, left, rows, columns] = this.app.picture.window;
    const [from, to] = [Math.max(row, top), Math.min(row + down, top + rows)],
      [begin, end] = [Math.max(column, left), Math.min(column + across, left + columns)];
    return from < to && begin < end
      ? mark(kind, (begin - left) / columns, (end - begin) / columns, (from - top) / rows, (to - from) / rows)
      : null;
  }

  words([row, column, rows, columns], { rows: all, columns: wide, layout }) {
    const order = layout === "row-major" ? "rows are contiguous" : "columns are contiguous",
      size = `${grouped(all)} × ${grouped(wide)} elements, ${order}`;
    return rows === all && columns === wide
      ? `All ${size}.`
      : `Rows ${grouped(row)} to ${grouped(row + rows - 1)}, columns ${grouped(column)} to ${grouped(column + columns - 1)} of ${size}.`;
  }
}
