// The fastest layouts, and the words on the one that is looked at.

import { fit } from "../memory_calculator/fit.mjs";
import { button, keep, make, say, set } from "../shared/dom.mjs";
import { count, grouped, MINUS, percent, plural, rounded, seconds } from "../shared/numbers.mjs";

const AXES = ["tp", "pp", "cp", "ep", "dp"];
/** Columns: the field of a row that they sort by, their heading and what stands in them. Of axes and chunks that no layout
    has, there is no column. The last three say in other words how long a step takes: a narrow page may cut them off. */
const COLUMNS = [
  ["seconds", "step", (row) => seconds(row.seconds)],
  ["needs", "memory", (row, app) => app.bytes(row.needs)],
  ...AXES.map((axis) => [axis, axis, (row) => `${row[axis]}${axis === "ep" && row.etp ? ", etp 1" : ""}`]),
  ["zero", "ZeRO", (row) => String(row.zero)],
  ["replicate", "HSDP", (row) => String(row.replicate)],
  ["vpp", "vpp", (row) => String(row.vpp)],
  ["micro_batch", "batch", (row) => `${row.micro_batch} × ${row.grad_acc}`],
  ["recompute", "recompute", (row) => row.recompute],
  ["mfu", "MFU", (row) => percent(row.mfu)],
  ["rate", "tokens/s/GPU", (row) => grouped(Math.round(row.rate))],
  ["cost", "$ for 10⁹ tokens", (row) => money(row.cost)],
];
const QUIET = ["cp", "ep", "vpp", "replicate"]; // where they are 1 everywhere
const MORE_IS_BETTER = ["mfu", "rate"];
const SHOWN = 20; // families
/** Layouts that differ in no more than micro-batches and chunks. */
const family = (row) => [...AXES, "etp", "zero", "replicate", "recompute"].map((key) => row[key]).join();

/** An amount of money, in the currency of the price. */
export const money = (value) => `$${grouped(value < 100 ? value.toFixed(2) : Math.round(value))}`;

/** What others have measured with this model on such GPUs, and what is predicted for that very run. */
function published(app) {
  const row = app.result.published;
  if (!row) return "";
  const by = row.predicted / row.rate - 1,
    run = `${row.layout}, ${grouped(row.global_batch)} samples of ${grouped(row.seq)} tokens, ${row.precision}`;
  return [
    `Published: ${grouped(Math.round(row.rate))} tokens/s on each of ${grouped(row.gpus)} GPUs (${row.source}; ${run}).`,
    `Predicted for that run: ${grouped(Math.round(row.predicted))}, ${by < 0 ? MINUS : "+"}${percent(Math.abs(by))}.`,
    ...(row.needs ? [`As planned here it needs ${app.bytes(row.needs)}: they keep less.`] : []),
  ].join(" ");
}

export class Ranking {
  constructor(app) {
    this.app = app;
    this.line = make(
      "p",
      { class: "pb-mc-line" },
      make("span", { class: "pb-mc-peak" }),
      make("span", { class: "pb-mc-of" }),
      make("span", { class: "pb-mc-stale", hidden: "" }, "last valid"),
    );
    this.facts = make("p", { class: "pb-mc-facts pb-cl-facts" });
    this.whole = make("p", { class: "pb-mc-facts pb-cl-whole" });
    this.published = make("p", { class: "pb-mc-facts pb-cl-published" });
    this.verdict = make(
      "section",
      { class: "pb-mc-verdict", "aria-label": "The layout that is looked at" },
      this.line,
      this.facts,
      this.whole,
      this.published,
    );
    this.note = make("p", { class: "pb-mc-note" });
    this.body = make("tbody");
    this.sorted = { key: "seconds", down: false };
    this.open = new Set();
    this.heads = COLUMNS.map(([key, words]) =>
      make(
        "th",
        { scope: "col", class: "pb-mc-number", "data-column": key },
        button(words, () => this.sort(key), { title: `Sort by ${words}` }),
      ),
    );
    const head = make(
      "tr",
      {},
      make("th", { scope: "col" }, make("span", { class: "pb-unseen" }, "rank")),
      ...this.heads,
    );
    const table = make("table", { class: "pb-mc-table pb-cl-table" }, make("thead", {}, head), this.body);
    this.scroll = make(
      "div",
      { class: "pb-scroll", tabindex: "0", role: "region", "aria-label": "Ranking of layouts" },
      table,
    );
    this.root = make(
      "section",
      { "aria-label": "Layouts" },
      make("h3", { class: "pb-mc-heading" }, "Every layout that fits, fastest first"),
      this.note,
      this.scroll,
    );
  }

  sort(key) {
    const again = this.sorted.key === key;
    this.sorted = { key, down: again ? !this.sorted.down : MORE_IS_BETTER.includes(key) };
    this.update();
  }

  /** What the table shows: of each family its first, and the others where the reader wants them or looks at one. */
  lines() {
    const { rows, at } = this.app.result,
      { key, down } = this.sorted;
    const order = rows.map((row, i) => ({ row, i }));
    order.sort((a, b) => ((a.row[key] > b.row[key]) - (a.row[key] < b.row[key])) * (down ? -1 : 1) || a.i - b.i);
    const families = Map.groupBy(order, ({ row }) => family(row));
    return [...families].slice(0, SHOWN).flatMap(([name, members]) => {
      const open = this.open.has(name) || members.slice(1).some(({ i }) => i === at);
      return (open ? members : members.slice(0, 1)).map((one, k) => ({
        ...one,
        name,
        open,
        more: k ? 0 : members.length - 1,
      }));
    });
  }

  update() {
    const { app } = this,
      { rows, chosen, training, candidates, evaluated, values, parameters, memory, reserve } = app.result,
      [peak, of, stale] = this.line.children;
    say(peak, seconds(chosen.seconds));
    say(of, `a step with ${chosen.layout || "one device"}`);
    stale.hidden = !app.error;
    const share = `MFU ${percent(chosen.mfu)}, ${grouped(Math.round(chosen.rate))} tokens/s on each GPU`;
    say(
      this.facts,
      [
        `${plural(values.gpus, "GPU")}`,
        `${rounded(parameters / 1e9)}B parameters`,
        share,
        `${app.bytes(chosen.needs)} of ${app.bytes(memory)} on the fullest GPU: ${fit(app, { ...chosen, reserve, spare: memory - chosen.needs })}`,
        `10⁹ tokens cost ${money(chosen.cost)}`,
      ].join(" · "),
    );
    say(
      this.whole,
      `${count(training.tokens)} tokens take ${rounded(training.days)} days and ${grouped(Math.round(training.gpu_hours))} GPU-hours, ${money(training.cost)}.`,
    );
    say(this.published, published(app));
    this.published.hidden = !app.result.published;
    say(
      this.note,
      `${grouped(candidates)} can run; ${grouped(evaluated)} had to be simulated to know the ${rows.length} fastest that fit${reserve ? ` and leave ${app.bytes(reserve)} of each GPU free` : ""}. Press one to look at it, a heading to sort; +3 are three more of the same axes. A batch is samples × passes that are accumulated.`,
    );
    this.heads.forEach((el, i) => {
      const [key] = COLUMNS[i],
        { down } = this.sorted;
      set(el, "aria-sort", key === this.sorted.key ? (down ? "descending" : "ascending") : null);
      el.hidden = this.quiet(key);
    });
    const lines = this.lines();
    keep(this.body, lines.length, () => this.row()).forEach((el, i) => this.show(el, lines[i]));
  }

  quiet(key) {
    return QUIET.includes(key) && this.app.result.rows.every((row) => row[key] === 1);
  }

  row() {
    const name = button("", () => this.app.look(el.layout), { class: "pb-cl-layout", "aria-pressed": "false" });
    const more = button("", () => this.unfold(el.family), { class: "pb-cl-more" });
    const el = make(
      "tr",
      {},
      make("th", { scope: "row" }, name, more),
      ...COLUMNS.map(([key]) => make("td", { class: "pb-mc-number", "data-column": key })),
    );
    el.addEventListener("click", ({ target }) => !target.closest("button") && this.app.look(el.layout));
    return el;
  }

  unfold(name) {
    if (!this.open.delete(name)) this.open.add(name);
    this.update();
  }

  show(el, { row, i, name, open, more }) {
    const { app } = this,
      [look, others] = el.firstChild.children,
      layout = row.layout || "one device",
      chosen = i === app.result.at;
    Object.assign(el, { layout: row.layout, family: name });
    el.toggleAttribute("data-chosen", chosen);
    say(look, String(i + 1));
    for (const [key, value] of Object.entries({
      title: layout,
      "aria-label": `${i + 1}: ${layout}`,
      "aria-pressed": chosen,
    }))
      set(look, key, String(value));
    others.hidden = !more;
    say(others, `${open ? "−" : "+"}${more}`);
    set(others, "aria-expanded", String(open));
    set(others, "aria-label", `${more} more with these axes`);
    COLUMNS.forEach(([key, , words], k) => {
      const cell = el.children[k + 1];
      say(cell, words(row, app));
      cell.hidden = this.quiet(key);
    });
  }
}
