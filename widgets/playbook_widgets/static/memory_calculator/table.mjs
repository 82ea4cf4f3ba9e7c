// What fills a GPU in numbers: a row for each category, which opens into its terms and their formulas.

import { button, make, say } from "../shared/dom.mjs";
import { bytes, grouped, MINUS, rounded, SYSTEMS, share } from "../shared/numbers.mjs";
import { breakdown, held, symbolsIn } from "./breakdown.mjs";

/** The unit of a column whose largest number is `size`, and how a number is written in it. */
function column(size, system) {
  const unit = bytes(size, system).split(" ")[1],
    [base, units] = SYSTEMS[system],
    one = base ** units.indexOf(unit);
  return { unit, text: (value) => grouped((value / one).toFixed(unit === "B" ? 0 : 2)).replace("-", MINUS) };
}

export class Table {
  constructor(app) {
    this.app = app;
    this.caption = make("h3", { class: "pb-mc-heading" });
    this.note = make("p", { class: "pb-mc-note" });
    this.unpin = button("Show the highest peak", () => app.open(app.side, null, null), {
      class: "pb-mc-link",
      hidden: "",
    });
    this.head = make("thead");
    this.bodies = app.constants.categories.map((category) => this.body(category));
    this.foot = make("tfoot");
    this.symbols = make("table", { class: "pb-mc-symbols" });
    this.symbolsBox = make("div", { class: "pb-mc-legend", hidden: "" }, make("h4", {}, "Symbols"), this.symbols);
    const table = make("table", { class: "pb-mc-table" }, this.head, ...this.bodies.map((b) => b.el), this.foot);
    this.root = make(
      "section",
      { class: "pb-mc-breakdown", "aria-label": "Breakdown" },
      make("div", { class: "pb-mc-top" }, this.caption, this.unpin),
      this.note,
      table,
      this.symbolsBox,
    );
  }

  body([category, words, help, colour]) {
    const toggle = button("", () => this.app.toggle(category), {
      class: "pb-mc-category",
      "aria-expanded": "false",
      title: help,
    });
    toggle.append(make("i", { style: `background:${colour}` }), words);
    const head = make("tr", {}, make("th", { scope: "row" }, toggle));
    return { category, toggle, head, el: make("tbody", {}, head) };
  }

  update() {
    const { app } = this,
      sides = app.inputs.configs.map((_, side) => side).filter((side) => app.last[side]);
    this.root.hidden = !sides.length;
    if (!sides.length) return;
    const picked = sides.map((side) => ({ side, result: app.last[side], index: app.selected(side) }));
    this.describe(picked);
    this.column = column(Math.max(...picked.map(({ result, index }) => result.stages[index].total)), app.unit);
    this.columns(picked);
    const rows = this.bodies.flatMap((body) => this.updateBody(body, picked));
    this.total(picked);
    this.explain(rows, app.current().result ?? picked[0].result);
  }

  describe(picked) {
    const { app } = this,
      { result, index } = picked.find((p) => p.side === app.side) ?? picked[0],
      stage = result.stages[index];
    const alone = result.stages.length === 1,
      fullest = index === result.fullest;
    say(
      this.caption,
      picked.length > 1
        ? "On the GPU with the highest peak of each"
        : alone
          ? "On each GPU"
          : `On each GPU of stage ${index}`,
    );
    const flight = stage.in_flight === 1 ? "1 micro-batch" : `${rounded(stage.in_flight)} micro-batches`;
    say(
      this.note,
      `${fullest && !alone ? "The highest peak. " : ""}${stage.layers} layers, ${flight} in flight. Most is alive during the ${stage.moment}.`,
    );
    this.unpin.hidden = fullest;
  }

  columns(picked) {
    const { unit } = this.column,
      names = picked.length > 1 ? [`A, ${unit}`, `B, ${unit}`, `B ${MINUS} A`] : [unit, "share"];
    if (this.names === names.join()) return;
    [this.names, this.compared] = [names.join(), picked.length > 1];
    this.head.replaceChildren(
      make(
        "tr",
        {},
        make("th", { scope: "col" }, make("span", { class: "pb-unseen" }, "what")),
        ...names.map((n) => make("th", { scope: "col", class: "pb-mc-number" }, n)),
      ),
    );
    for (const { head } of this.bodies)
      head.replaceChildren(head.firstChild, ...names.map(() => make("td", { class: "pb-mc-number" })));
    this.foot.replaceChildren(
      make(
        "tr",
        {},
        make("th", { scope: "row" }, "together"),
        ...names.map(() => make("td", { class: "pb-mc-number" })),
      ),
    );
  }

  numbers(sizes, wholes) {
    const { text } = this.column;
    if (sizes.length === 1) return [text(sizes[0]), share(sizes[0], wholes[0])];
    const difference = text(sizes[1] - sizes[0]);
    return [
      ...sizes.map(text),
      /[1-9]/.test(difference) && !difference.startsWith(MINUS)
        ? `+${difference}`
        : difference.replace(/^\u2212(?=[0.]+$)/, ""),
    ];
  }

  updateBody({ category, toggle, head, el }, picked) {
    const { app } = this,
      sizes = picked.map(({ result, index }) => held(result.stages[index], category)),
      wholes = picked.map(({ result, index }) => result.stages[index].total);
    const opened = app.opened.has(category);
    toggle.setAttribute("aria-expanded", String(opened));
    this.numbers(sizes, wholes).forEach((text, i) => say(head.children[i + 1], text));
    head.children[1].title = `${grouped(sizes[0])} bytes`;
    const { result, index } = picked.find((p) => p.side === app.side) ?? picked[0];
    const rows = opened ? breakdown(result, index, category) : [];
    while (head.nextSibling) head.nextSibling.remove(); // the row with the button stays: it may have the focus
    el.append(...rows.map((row) => this.row(row, result.stages[index].total)));
    return rows;
  }

  row({ name, head, inner, formula, bytes: size }, whole) {
    const what = make("td", {}, name);
    if (formula) what.append(make("span", { class: "pb-mc-formula" }, formula));
    const { app } = this,
      text = app.bytes(size);
    const cells = this.compared
      ? [app.side === 0 ? text : "", app.side === 1 ? text : "", ""]
      : [text, share(size, whole)];
    return make(
      "tr",
      {
        class: inner ? "pb-mc-part pb-mc-inner" : head ? "pb-mc-part" : "pb-mc-term",
        "data-bytes": head ? undefined : size,
      },
      what,
      ...cells.map((words) =>
        make("td", { class: "pb-mc-number", title: `${grouped(Math.round(size))} bytes` }, words),
      ),
    );
  }

  total(picked) {
    const totals = picked.map(({ result, index }) => result.stages[index].total);
    this.numbers(totals, totals).forEach((text, i) => say(this.foot.firstChild.children[i + 1], text));
  }

  explain(rows, result) {
    const { symbols } = this.app.constants,
      used = symbolsIn(rows, symbols);
    this.symbolsBox.hidden = !used.length;
    this.symbols.replaceChildren(
      ...used.map((symbol) =>
        make(
          "tr",
          {},
          make("th", { scope: "row" }, symbol),
          make("td", { class: "pb-mc-number" }, grouped(result.symbols[symbol])),
          make("td", {}, symbols[symbol]),
        ),
      ),
    );
  }
}
