// An interactive timeline of a trace. `outputs` holds the trace as columns (see playbook_widgets/trace_viewer.py),
// `inputs` what the reader has set: { search, window: [start, end] in µs or null }.
// This file is what the reader sees and sets; trace.mjs holds what can be said of a trace, timeline.mjs draws it, and
// gestures.mjs listens to pointer and keys.

import { button, make, newId } from "./shared/dom.mjs";
import { entry } from "./shared/form.mjs";
import { Gestures } from "./trace_viewer/gestures.mjs";
import { Timeline } from "./trace_viewer/timeline.mjs";
import { busyPerLane, decode, formatTime, MIN_WINDOW, topNames } from "./trace_viewer/trace.mjs";

class Viewer {
  constructor(model, el) {
    Object.assign(this, { model, el, hover: -1, focus: -1, range: null, hidden: new Set(), measuring: false });
    this.stop = new AbortController();
    this.id = newId("pb-trace");
    this.gestures = new Gestures(this);
    this.load();
    this.build();
    this.listen();
    this.search(this.model.get("inputs")?.search ?? "");
    this.resize();
  }

  load() {
    this.trace = decode(this.model.get("outputs"));
    const shown = this.model.get("inputs")?.window;
    this.view = shown ? [...shown] : [this.trace.low, this.trace.high];
  }

  // --- the page around the canvas

  build() {
    const t = this.trace;
    this.timeline = new Timeline(this);
    this.tip = make("div", { class: "pb-trace-tip", hidden: "" });
    this.stage = make(
      "div",
      {
        class: "pb-trace-stage",
        tabindex: "0",
        role: "application",
        "aria-roledescription": "timeline",
        "aria-label": `${t.title}: timeline of ${t.n} events on ${t.lanes.length} lanes, ${formatTime(t.high - t.low)}`,
        "aria-describedby": `${this.id}-help`,
      },
      this.timeline.canvas,
      this.tip,
    );
    this.live = make("div", { class: "pb-unseen", "aria-live": "polite" });
    this.status = make("span", { class: "pb-quiet" });
    this.rangeBox = make("div", { class: "pb-trace-range", role: "status", hidden: "" });
    const dropped = t.dropped ? `, the longest of ${t.n + t.dropped}` : "";
    const facts = `${t.n} events${dropped} · ${formatTime(t.high - t.low)}`;
    this.root = make(
      "div",
      { class: "pb-w pb-trace", role: "group", "aria-label": t.title },
      make(
        "div",
        { class: "pb-trace-head" },
        make("span", { class: "pb-trace-title" }, t.title),
        make("span", { class: "pb-quiet" }, facts),
        this.status,
      ),
      this.tools(),
      this.legend(),
      this.stage,
      this.live,
      this.rangeBox,
      this.table(),
      this.help(),
    );
    this.el.replaceChildren(this.root);
  }

  tools() {
    this.find = make("input", {
      type: "search",
      placeholder: "part of a name",
      autocomplete: "off",
      spellcheck: "false",
    });
    const tool = (text, label, action, attributes = {}) =>
      button(text, action, { "aria-label": label, title: label, ...attributes });
    const words = "Measure: drag over the timeline to sum up a range";
    this.measure = tool("Measure", words, () => this.setMeasuring(!this.measuring), { "aria-pressed": "false" });
    return make(
      "div",
      { class: "pb-trace-tools" },
      make("label", {}, "Find", this.find),
      tool("−", "Zoom out", () => this.zoom(2)),
      tool("+", "Zoom in", () => this.zoom(0.5)),
      tool("All", "All: show the whole trace", () => this.reset()),
      this.measure,
    );
  }

  legend() {
    const totals = this.trace.categories.map(() => 0);
    for (let i = 0; i < this.trace.n; i++) totals[this.trace.category[i]] += this.trace.own[i];
    const order = totals.map((_, c) => c).sort((a, b) => totals[b] - totals[a]);
    const item = (c) => {
      const [name, hex, kind] = this.trace.categories[c],
        swatch = make("i", { class: `pb-${kind}`, style: `--swatch:${hex}` });
      const title = `Show or fade ${name}. Each moment counts once, for the innermost event.`;
      const toggle = button(
        swatch,
        () => {
          this.hidden.has(c) ? this.hidden.delete(c) : this.hidden.add(c);
          toggle.setAttribute("aria-pressed", String(!this.hidden.has(c)));
          this.filter();
        },
        { "aria-pressed": "true", title },
      );
      toggle.append(`${name} ${formatTime(totals[c])}`);
      return make("li", {}, toggle);
    };
    return make(
      "ul",
      { class: "pb-trace-legend", "aria-label": "Categories and their total time over all lanes" },
      ...order.map(item),
    );
  }

  help() {
    const keys = [
      ["← →", "move"],
      ["+ −", "zoom"],
      ["0", "all"],
      [", .", "event before, after"],
      ["↑ ↓", "row"],
      ["Enter", "zoom to event"],
      ["M", "measure it"],
      ["Esc", "clear"],
    ];
    const text = make(
      "p",
      { class: "pb-quiet", id: `${this.id}-help` },
      "Drag to move, pinch or Ctrl + wheel to zoom, Shift + drag to measure. Keys: ",
    );
    keys.forEach(([key, what], i) => text.append(i ? ", " : "", make("kbd", {}, key), ` ${what}`));
    return make("details", { class: "pb-trace-help" }, make("summary", {}, "Keys and gestures"), text);
  }

  table() {
    const cells = (tag, texts) =>
      texts.map((text, i) =>
        make(tag, tag === "th" ? { scope: "col" } : i > 1 ? { class: "pb-number" } : {}, String(text)),
      );
    const body = topNames(this.trace, 20).map((r) =>
      make("tr", {}, ...cells("td", [r.name, r.category, r.count, formatTime(r.total), formatTime(r.total / r.count)])),
    );
    const head = make("thead", {}, make("tr", {}, ...cells("th", ["name", "category", "events", "total", "mean"])));
    const scroll = make(
      "div",
      { class: "pb-scroll", tabindex: "0", role: "region", "aria-label": "Events with most total time" },
      make("table", {}, head, make("tbody", {}, ...body)),
    );
    return make(
      "details",
      {},
      make("summary", {}, "The events with most total time, as a table"),
      scroll,
      make("p", { class: "pb-quiet" }, "Totals add up whole durations: an event nested in another counts in both."),
    );
  }

  // --- what is matched, shown, told

  search(text) {
    this.find.value = text;
    this.query = text.trim().toLowerCase();
    this.filter();
  }

  filter() {
    const t = this.trace,
      named = t.lower.map((name) => name.includes(this.query));
    this.match = Uint8Array.from({ length: t.n }, (_, i) => +(named[t.name[i]] && !this.hidden.has(t.category[i])));
    let count = 0,
      total = 0;
    this.match.forEach((hit, i) => hit && ((count += 1), (total += t.end[i] - t.begin[i])));
    this.status.textContent = this.query ? `${count} found · ${formatTime(total)}` : "";
    this.redraw();
  }

  describe(i) {
    const t = this.trace;
    const facts = [
      ["start", formatTime(t.begin[i] - t.low)],
      ["duration", formatTime(t.end[i] - t.begin[i])],
      ["category", t.categories[t.category[i]][0]],
      ["lane", t.lanes[t.lane[i]][0]],
    ];
    const other = t.linked.get(i)?.[0];
    if (other !== undefined) {
      const launch = t.launches.has(i),
        delay = t.begin[launch ? other : i] - t.begin[launch ? i : other];
      facts.push(
        [launch ? "launches" : "launched by", t.names[t.name[other]]],
        [launch ? "runs" : "waited", `${formatTime(delay)} ${launch ? "later" : "in the queue"}`],
      );
    }
    const args = t.argsOf[i] < 0 ? [] : Object.entries(t.args[t.argsOf[i]]);
    const words = (v) => (typeof v === "string" ? v : JSON.stringify(v)).slice(0, 160);
    return { name: t.names[t.name[i]], facts: [...facts, ...args.map(([k, v]) => [k, words(v)])] };
  }

  get current() {
    return this.hover >= 0 ? this.hover : this.focus;
  }

  showTip() {
    const i = this.current;
    const wanted = this.hover >= 0 || (i >= 0 && document.activeElement === this.stage);
    this.tip.hidden = !wanted || this.end(i) < this.view[0] || this.trace.begin[i] > this.view[1];
    if (this.tip.hidden) return;
    const { name, facts } = this.describe(i);
    const list = make("dl", {});
    for (const [key, value] of facts) list.append(make("dt", {}, key), make("dd", {}, value));
    this.tip.replaceChildren(make("strong", {}, name), list);
    const { timeline } = this,
      at = this.hover >= 0 ? this.pointerX : timeline.x(Math.max(this.trace.begin[i], this.view[0]));
    const left = Math.max(0, Math.min(at + 12, timeline.width - this.tip.offsetWidth));
    this.tip.style.left = `${left}px`;
    // Below the event; above it where the box would end first: JupyterLab cuts outputs off at their edge.
    const below = timeline.rowTop(i) + timeline.rowHeight + 4,
      above = timeline.rowTop(i) - this.tip.offsetHeight - 4;
    const room = this.root.getBoundingClientRect().bottom - this.stage.getBoundingClientRect().top;
    this.tip.style.top = `${below + this.tip.offsetHeight > room && above >= 0 ? above : below}px`;
  }

  end(i) {
    return this.trace.end[i];
  }

  setFocus(i) {
    this.focus = i;
    this.hover = -1;
    if (i < 0) return this.redraw();
    const { begin } = this.trace,
      [low, high] = this.view;
    if (this.end(i) < low || begin[i] > high)
      this.show((begin[i] + this.end(i) - high + low) / 2, (begin[i] + this.end(i) + high - low) / 2);
    const { name, facts } = this.describe(i);
    this.live.textContent = `${name}, ${facts.map(([k, v]) => `${k} ${v}`).join(", ")}`;
    this.redraw();
  }

  // --- moving through time

  show(low, high) {
    const { low: first, high: last } = this.trace,
      all = last - first;
    const span = Math.min(all, Math.max(MIN_WINDOW, high - low));
    const centre = Math.min(Math.max((low + high) / 2, first + span / 2), last - span / 2);
    this.view = [centre - span / 2, centre + span / 2];
    this.redraw();
    this.remember();
  }

  zoom(factor, at = (this.view[0] + this.view[1]) / 2) {
    const [low, high] = this.view,
      span = Math.min(this.trace.high - this.trace.low, Math.max(MIN_WINDOW, (high - low) * factor));
    const start = at - ((at - low) / (high - low)) * span;
    this.show(start, start + span);
  }

  pan(fraction) {
    const step = (this.view[1] - this.view[0]) * fraction;
    this.show(this.view[0] + step, this.view[1] + step);
  }

  reset() {
    this.show(this.trace.low, this.trace.high);
  }

  /** Tell the model, a little later, what the reader looks at. */
  remember() {
    clearTimeout(this.later);
    this.later = setTimeout(() => {
      const whole = this.view[1] - this.view[0] >= this.trace.high - this.trace.low;
      this.model.set("inputs", { search: this.find.value, window: whole ? null : this.view });
      this.model.save_changes();
    }, 300);
  }

  // --- measuring a range

  setMeasuring(on) {
    this.measuring = on;
    this.measure.setAttribute("aria-pressed", String(on));
    this.stage.dataset.mode = on ? "measure" : "move";
  }

  setRange(range) {
    this.range = range && [Math.min(...range), Math.max(...range)];
    this.rangeBox.hidden = !this.range;
    if (this.range) {
      const [low, high] = this.range,
        busy = busyPerLane(this.trace, low, high);
      const rows = busy.map((time, lane) =>
        make(
          "tr",
          {},
          make("td", {}, this.trace.lanes[lane][0]),
          make("td", { class: "pb-number" }, `${Math.round((100 * time) / Math.max(high - low, 1e-9))} % busy`),
          make("td", { class: "pb-number" }, formatTime(time)),
        ),
      );
      const clear = button("Clear", () => this.setRange(null));
      const words = `Selected ${formatTime(high - low)}, from ${formatTime(low - this.trace.low)} to ${formatTime(high - this.trace.low)} `;
      this.rangeBox.replaceChildren(words, clear, make("table", {}, make("tbody", {}, ...rows)));
    }
    this.redraw();
  }

  // --- drawing

  resize() {
    this.timeline.resize();
    this.redraw();
  }

  redraw() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.draw());
  }

  draw(ink) {
    if (!this.timeline.width) return;
    this.timeline.draw(ink);
    this.showTip();
  }

  // --- listening

  listen() {
    const on = (target, type, handler, options = {}) =>
      target.addEventListener(type, handler, { signal: this.stop.signal, ...options });
    on(this.find, "input", () => (this.search(this.find.value), this.remember()));
    on(this.find, "keydown", (e) => e.key === "Enter" && this.step(1));
    this.gestures.listen(on);
    on(this.stage, "focus", () => this.redraw());
    on(this.stage, "blur", () => this.redraw());
    on(window, "beforeprint", () => ((this.printing = true), this.draw("#000")));
    on(window, "afterprint", () => ((this.printing = false), this.redraw()));
    on(matchMedia("(prefers-color-scheme: dark)"), "change", () => this.redraw());
    this.sizes = new ResizeObserver(() => this.resize());
    this.sizes.observe(this.stage);
    this.theme = new MutationObserver(() => this.redraw());
    for (const el of [document.documentElement, document.body])
      this.theme.observe(el, {
        attributes: true,
        attributeFilter: ["data-theme", "data-mode", "class", "data-jp-theme-light"],
      });
    this.reload = () => (this.load(), this.build(), this.listenAgain());
    this.model.on("change:outputs", this.reload);
  }

  /** New outputs bring new elements: start over on them. */
  listenAgain() {
    this.close();
    this.stop = new AbortController();
    Object.assign(this, { hover: -1, focus: -1, range: null, hidden: new Set() });
    this.listen();
    this.search("");
    this.resize();
  }

  close() {
    this.stop.abort();
    this.sizes.disconnect();
    this.theme.disconnect();
    this.model.off("change:outputs", this.reload);
    cancelAnimationFrame(this.frame);
    clearTimeout(this.later);
  }

  // --- what is pointed at, and what has the focus

  setHover(i) {
    if (i === this.hover && i < 0) return;
    this.hover = i;
    this.redraw();
  }

  measureFocus() {
    this.setRange(this.focus < 0 ? [...this.view] : [this.trace.begin[this.focus], this.end(this.focus)]);
  }

  zoomTo(i) {
    if (i < 0) return;
    const pad = Math.max((this.end(i) - this.trace.begin[i]) * 0.1, MIN_WINDOW / 4);
    this.show(this.trace.begin[i] - pad, this.end(i) + pad);
  }

  /** Focus the next (or previous) matching event of the row; with a search, of the whole trace. */
  step(direction) {
    const row =
      this.query || this.focus < 0 ? Array.from({ length: this.trace.n }, (_, i) => i) : this.rowOf(this.focus);
    const seen = this.focus < 0 ? (direction > 0 ? -1 : row.length) : row.indexOf(this.focus);
    for (let k = seen + direction; k >= 0 && k < row.length; k += direction) {
      const visible = this.focus >= 0 || this.query || this.end(row[k]) >= this.view[0];
      if (this.match[row[k]] && visible) return this.setFocus(row[k]);
    }
  }

  rowOf(i) {
    return this.trace.rowsOf[this.trace.lane[i]][this.trace.depth[i]];
  }

  /** Focus the event nearest in time on the row above or below, across lanes. */
  climb(direction) {
    if (this.focus < 0) return this.step(1);
    const rows = this.trace.rowsOf.flat(),
      middle = (this.trace.begin[this.focus] + this.end(this.focus)) / 2;
    for (let k = rows.indexOf(this.rowOf(this.focus)) + direction; k >= 0 && k < rows.length; k += direction) {
      const away = (i) => Math.max(this.trace.begin[i] - middle, middle - this.end(i), 0);
      const near = rows[k]
        .filter((i) => this.match[i])
        .reduce((best, i) => (best < 0 || away(i) < away(best) ? i : best), -1);
      if (near >= 0) return this.setFocus(near);
    }
  }
}

export default entry(Viewer);
