// The fastest layout for each number of tensor-parallel ranks and pipeline stages.

import { button, make, say } from "../shared/dom.mjs";
import { rounded } from "../shared/numbers.mjs";

export class Heat {
  constructor(app) {
    this.app = app;
    this.note = make("p", { class: "pb-mc-note" });
    this.table = make("table", { class: "pb-cl-heat" });
    this.root = make(
      "section",
      { "aria-label": "Map of layouts" },
      make("h3", { class: "pb-mc-heading" }, "Tensor-parallel ranks and pipeline stages"),
      this.note,
      make("div", { class: "pb-scroll" }, this.table),
    );
    this.table.addEventListener("keydown", (e) => this.key(e));
  }

  update() {
    const { map } = this.app.result;
    say(
      this.note,
      map
        ? "Seconds of a step with the best of all other settings; the stronger the colour, the faster. A dash: nothing fits."
        : "Searching each cell …",
    );
    if (!map || this.shown === map) return this.mark();
    this.shown = map;
    const best = Math.min(
      ...map.cells
        .flat()
        .filter(Boolean)
        .map((cell) => cell.seconds),
    );
    const head = make(
      "tr",
      {},
      make("th", {}, "tp \\ pp"),
      ...map.pp.map((pp) => make("th", { scope: "col" }, String(pp))),
    );
    const rows = map.cells.map((cells, i) =>
      make(
        "tr",
        {},
        make("th", { scope: "row" }, String(map.tp[i])),
        ...cells.map((cell, j) => make("td", {}, this.cell(cell, map.tp[i], map.pp[j], best))),
      ),
    );
    this.table.replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows));
    this.mark();
  }

  cell(cell, tp, pp, best) {
    if (!cell) return make("span", { class: "pb-unseen" }, "nothing fits");
    const label = `tp ${tp}, pp ${pp}: ${rounded(cell.seconds)} s, ${cell.layout || "one device"}`;
    return button(rounded(cell.seconds), () => this.app.look(cell.layout), {
      "aria-label": label,
      title: label,
      "data-layout": cell.layout,
      style: `--heat:${Math.round(38 * (best / cell.seconds) ** 3)}%`,
    });
  }

  /** Press the cell whose layout is looked at. */
  mark() {
    for (const el of this.table.querySelectorAll("button"))
      el.setAttribute("aria-pressed", String(el.dataset.layout === this.app.result.chosen.layout));
  }

  /** Arrows go from cell to cell. */
  key(event) {
    const by = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key],
      from = event.target.closest("td");
    if (!by || !from) return;
    event.preventDefault();
    const row = from.parentElement.parentElement.children[from.parentElement.rowIndex - 1 + by[0]];
    row?.children[from.cellIndex + by[1]]?.querySelector("button")?.focus();
  }
}
