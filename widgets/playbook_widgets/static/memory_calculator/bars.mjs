// A bar for each pipeline stage, of what fills its GPUs.

import { button, keep, make, say } from "../shared/dom.mjs";
import { share } from "../shared/numbers.mjs";
import { held } from "./breakdown.mjs";

export class Bars {
  constructor(app) {
    this.app = app;
    this.root = make("section", { class: "pb-mc-stages", "aria-label": "Memory of each pipeline stage" });
    this.root.addEventListener("keydown", (e) => this.key(e));
  }

  /** The bytes that the full width stands for: the same for both sides; the line is left out where it is far away. */
  scale() {
    const shown = this.app.shown(),
      peak = Math.max(...shown.map((r) => r.peak)),
      memory = Math.max(...shown.map((r) => r.memory));
    return peak < memory / 25 ? peak * 1.1 : Math.max(peak, memory) * 1.03;
  }

  chart(side) {
    const title = make("b", { class: "pb-mc-name" }, "AB"[side]),
      line = make("span", { class: "pb-mc-capacity" }, make("span"));
    const free = make("span", { class: "pb-mc-free", "aria-hidden": "true" }); // what should stay free, in front of the line
    const rows = make("div", { class: "pb-mc-bars" });
    const el = make(
      "div",
      { class: "pb-mc-chart", role: "group", "aria-label": "Bars; arrow keys move, Enter opens the breakdown" },
      title,
      free,
      line,
      rows,
    );
    return Object.assign(el, { parts: { title, line, rows, side } });
  }

  row(side, index) {
    const name = button("", () => this.app.open(side, index, null), { class: "pb-mc-stage", tabindex: "-1" });
    const track = make("span", { class: "pb-mc-track" }),
      total = make("span", { class: "pb-mc-total" });
    const segments = this.app.constants.categories.map(([category, , , colour]) =>
      button("", () => this.app.open(side, index, category), {
        class: "pb-mc-segment",
        "data-category": category,
        tabindex: "-1",
        style: `--hue:${colour}`,
      }),
    );
    track.append(...segments);
    return Object.assign(make("div", { class: "pb-mc-bar" }, name, track, total), { parts: { name, segments, total } });
  }

  update() {
    const { app } = this,
      charts = keep(this.root, app.inputs.configs.length, (i) => this.chart(i)),
      scale = app.shown().length ? this.scale() : 1;
    charts.forEach((chart, side) => {
      chart.hidden = !app.last[side];
      if (app.last[side]) this.updateChart(chart, app.last[side], scale);
    });
    this.root.dataset.sides = charts.length;
    const focusable = this.root.querySelector('[tabindex="0"]:not([hidden])');
    if (!focusable) this.root.querySelector(".pb-mc-stage")?.setAttribute("tabindex", "0");
  }

  updateChart(chart, result, scale) {
    const { app } = this,
      { title, line, rows, side } = chart.parts,
      count = result.stages.length;
    title.hidden = app.inputs.configs.length === 1;
    chart.toggleAttribute("data-stale", Boolean(app.errors[side]));
    chart.dataset.density = count > 32 ? "hair" : count > 16 ? "thin" : count > 4 ? "close" : "roomy";
    for (const [name, size] of [
      ["capacity", result.memory],
      ["usable", result.usable],
    ])
      chart.style.setProperty(`--${name}`, size / scale);
    const far = result.memory > scale;
    chart.toggleAttribute("data-far", far);
    say(line.firstChild, `${app.bytes(result.memory)}${far ? " →" : ""}`);
    const every = count > 32 ? 8 : count > 16 ? 4 : 1;
    keep(rows, count, (i) => this.row(side, i)).forEach((row, i) =>
      this.updateRow(row, result, i, { scale, side, named: i % every === 0 || i === count - 1 }),
    );
  }

  updateRow(row, result, index, { scale, side, named }) {
    const { app } = this,
      { name, segments, total } = row.parts,
      stage = result.stages[index],
      selected = app.selected(side) === index && result.stages.length > 1;
    const title = result.stages.length === 1 ? "each GPU" : `stage ${index}`;
    say(name, app.inputs.configs.length === 1 ? title : result.stages.length === 1 ? "GPU" : index);
    name.setAttribute("aria-label", `${title}: ${app.bytes(stage.total)}`);
    name.toggleAttribute("data-quiet", !named);
    row.toggleAttribute("data-selected", selected);
    say(total, named || selected ? app.bytes(stage.total) : "");
    row.toggleAttribute("data-tight", stage.total > result.usable);
    row.toggleAttribute("data-over", stage.total > result.memory);
    app.constants.categories.forEach(([category, words], i) => {
      const size = held(stage, category),
        segment = segments[i],
        text = `${title}, ${words}: ${app.bytes(size)}, ${share(size, stage.total)}`;
      segment.hidden = !size;
      segment.style.width = `${(100 * size) / scale}%`;
      segment.setAttribute("aria-expanded", String(app.pinned(side, index) && app.opened.has(category)));
      segment.setAttribute("aria-label", text);
      segment.title = text;
    });
  }

  /** One stop for the tab key; arrows go along a bar and from stage to stage. */
  key(event) {
    const from = event.target.closest(".pb-mc-bar button");
    if (!from) return;
    const row = from.closest(".pb-mc-bar"),
      places = (r) => [r.parts.name, ...r.parts.segments.filter((s) => !s.hidden)],
      here = places(row).indexOf(from);
    const across = (r) => r && places(r)[Math.min(here, places(r).length - 1)];
    const to = {
      ArrowRight: () => places(row)[here + 1],
      ArrowLeft: () => places(row)[here - 1],
      ArrowDown: () => across(row.nextElementSibling),
      ArrowUp: () => across(row.previousElementSibling),
      Home: () => places(row)[0],
      End: () => places(row).at(-1),
    }[event.key];
    if (!to) return;
    event.preventDefault();
    this.focus(to());
  }

  focus(el) {
    if (!el) return;
    for (const old of this.root.querySelectorAll('[tabindex="0"]')) old.tabIndex = -1;
    el.tabIndex = 0;
    el.focus();
  }
}
