// The memory calculator. `inputs` is { configs: [config] or [config, config], advice }, a config a flat object of what
// the reader has set; `outputs` is what playbook.planning.calculator.compute makes of it; `constants` says what the
// controls are. Nothing is computed here that Python can: this module draws, and listens.

// --- Numbers in words ------------------------------------------------------------------------------------------------

const SYSTEMS = { GB: [1000, ["B", "kB", "MB", "GB", "TB", "PB"]], GiB: [1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]] };
const MINUS = "−", NARROW = "\u202f";

/** `value` with about `digits` significant digits, whole numbers in full, no trailing zeros. */
function rounded(value, digits = 3) {
  if (!value) return "0";
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  const text = value.toFixed(Math.min(places, 20));
  return (text.includes(".") ? text.replace(/\.?0+$/, "") : text).replace("-", MINUS);
}

/** 63412345856 is "63.4 GB" or "59.1 GiB"; rounding comes before the choice of the unit. */
export function bytes(size, system = "GB", digits = 3) {
  const [base, units] = SYSTEMS[system];
  let power = 0;
  while (power < units.length - 1 && +rounded(Math.abs(size) / base ** power, digits) >= base) power++;
  return `${rounded(size / base ** power, digits)} ${units[power]}`;
}

/** The unit of a column whose largest number is `size`, and how a number is written in it. */
function column(size, system) {
  const unit = bytes(size, system).split(" ")[1], [base, units] = SYSTEMS[system], one = base ** units.indexOf(unit);
  return { unit, text: (value) => grouped((value / one).toFixed(unit === "B" ? 0 : 2)).replace("-", MINUS) };
}

/** 8030261248 is "8.03B". */
function count(value) {
  const names = ["", "k", "M", "B", "T"];
  let power = 0;
  while (power < 4 && +rounded(value / 1000 ** power) >= 1000) power++;
  return rounded(value / 1000 ** power) + names[power];
}

/** Thousands apart: 1 048 576. */
const grouped = (value) => String(value).replace(/\B(?=(\d{3})+(\.|$))(?<!\.\d*)/g, NARROW);

/** 8192 tokens are "8k". */
const tokens = (n) => (n >= 2 ** 20 && n % 2 ** 20 === 0 ? `${n / 2 ** 20}M` : n >= 1024 && n % 1024 === 0 ? `${n / 1024}k` : n >= 1e4 ? count(n) : String(n));

const upper = (text) => text[0].toUpperCase() + text.slice(1);

/** A share in percent, two digits of it; tiny ones are called so. */
function share(part, whole) {
  const percent = whole ? (100 * part) / whole : 0;
  if (percent && Math.abs(percent) < 0.1) return `<0.1${NARROW}%`;
  return `${rounded(percent, Math.abs(percent) < 1 ? 1 : 2)}${NARROW}%`;
}

// --- The state in a link: model=llama3-70b&tp=8;model=llama3-70b&tp=4 --------------------------------------------------

const KEYS = new Set(
  ("model layers hidden heads kv_heads head_dim ffn vocab activation gated norm bias tied dropout moe.experts moe.top_k moe.ffn " +
    "moe.shared_experts moe.dense_layers accelerator gpus dp tp sp cp pp schedule vpp ep zero micro_batch grad_acc seq recompute " +
    "attention offload bucket_mb precision optimizer_bytes").split(" "),
);

/** What a reader typed: a number where it is one, else the text, so that the refusal can quote it. */
function parse(text) {
  const trimmed = text.trim();
  return /^-?\d+(\.\d+)?$/.test(trimmed) && Math.abs(trimmed) <= Number.MAX_SAFE_INTEGER ? Number(trimmed) : text;
}

export function encode(inputs) {
  const part = (config) =>
    Object.entries(config).filter(([, value]) => value != null).map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join("&");
  return inputs.configs.map(part).join(";");
}

export function decode(text) {
  const config = (part) => {
    const pairs = part.split("&").map((pair) => pair.split("=", 2)).filter(([key, value]) => KEYS.has(key) && value !== undefined);
    return Object.fromEntries(pairs.map(([key, value]) => [key, literal(value)]));
  };
  return { configs: text.split(";").slice(0, 2).map(config), advice: false };
}

function literal(value) {
  let plain = value;
  try {
    plain = decodeURIComponent(value);
  } catch {} // a stray % is text like any other
  return plain === "true" ? true : plain === "false" ? false : parse(plain);
}

// --- What one result holds -------------------------------------------------------------------------------------------

/** Bytes of a tenant at the fullest moment of a step. */
const held = (stage, tenant) => stage.at_peak[tenant];

/** The rows of a tenant's breakdown: { name, head?, formula?, bytes }. Those without `head` add up to what is held. */
function breakdown(result, index, tenant) {
  const stage = result.stages[index], per = result.bytes_per_parameter;
  const makers = {
    parameters: () => stateRows(result, stage, per.parameters, stage.params),
    gradients: () => [...stateRows(result, stage, per.gradients, stage.gradients), ...moved(stage, stage.at_peak.gradients - stage.gradients, ["not there yet", "made before they are reduced"])],
    optimizer: () => optimizerRows(result, stage),
    activations: () => [...partRows(result, stage.breakdown.activations), ...moved(stage, stage.at_peak.activations - stage.activations, ["used up by then", "computed again by then"])],
    buffers: () => partRows(result, stage.breakdown.buffers),
    working: () => partRows(result, stage.breakdown.working),
  };
  return makers[tenant]();
}

/** Bytes per parameter times the parameters of each part; one row where ZeRO has left a share of them. */
function stateRows(result, stage, each, size) {
  const { local, shard } = stage;
  if (size !== local * each) return [shareRow(shard, local, each, size)];
  return partRows(result, stage.breakdown.parameters).map((row) => ({ ...row, formula: row.formula && `${each} × ${row.formula}`, bytes: row.bytes * each }));
}

function shareRow(shard, local, each, size, name = "this rank's share") {
  const of = shard === local ? `${grouped(local)} parameters` : `${grouped(shard)} of ${grouped(local)} parameters`;
  return { name, formula: `${each} bytes × ${of}`, bytes: size };
}

function optimizerRows(result, stage) {
  const { master, moments } = result.bytes_per_parameter, { local, shard } = stage;
  const sharded = result.values.zero >= 1 ? shard : local;
  const rows = [["master copy of the weights", master], ["the optimizer's averages", moments]].filter(([, each]) => each)
    .map(([name, each]) => shareRow(sharded, local, each, each * sharded, name));
  return stage.optimizer ? rows : rows.map((row) => ({ ...row, name: `${row.name}: ${bytes(row.bytes)} in CPU memory`, bytes: 0 }));
}

/** Terms, each as often as it is there; where there are many, under the part of the model that they belong to. */
function partRows(result, parts) {
  return parts.flatMap(([name, key, times]) => {
    const terms = result.terms[key], rows = terms.length > 6 ? underParts(terms, times) : terms.map((term) => termRow(term, times, terms.length > 1));
    return terms.length > 1 || times !== 1 ? [{ name, head: true, bytes: sumOf(terms) * times }, ...rows] : rows;
  });
}

function underParts(terms, times) {
  const names = [...new Set(terms.map(([part]) => part))];
  return names.flatMap((name) => {
    const own = terms.filter(([part]) => part === name);
    return [{ name, head: true, inner: true, bytes: sumOf(own) * times }, ...own.map((term) => termRow(term, times, false))];
  });
}

function termRow([part, name, formula, value], times, named) {
  const often = times === 1 ? formula : `${rounded(times, 4)} × ${wrapped(formula)}`;
  return { name: named && part ? `${part}: ${name}` : name, formula: often, symbols: formula, bytes: value * times };
}

const sumOf = (terms) => terms.reduce((sum, term) => sum + term[3], 0);
const wrapped = (formula) => (/[+]/.test(formula) ? `(${formula})` : formula);

/** What the fullest moment has less, or more, than the largest amount of a tenant. */
function moved(stage, difference, [less, more]) {
  return difference ? [{ name: `${difference < 0 ? less : more} (${stage.moment})`, bytes: difference }] : [];
}

/** The symbols that formulas use. */
function symbolsIn(rows, known) {
  const used = new Set(rows.flatMap((row) => (row.symbols ?? "").match(/[A-Za-z]+/g) ?? []));
  return Object.keys(known).filter((symbol) => used.has(symbol));
}

/** The largest round number that is at most `value`. */
function round(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [8, 6, 5, 4, 3, 2, 1].find((m) => m * power <= value) * power;
}

/** The sequence length at which `curve` meets `capacity`: memory is close to linear between two points. */
function crossing({ seq, peak }, capacity) {
  const over = peak.findIndex((size) => size > capacity);
  if (over < 1) return over < 0 ? Infinity : 0;
  const [s0, s1, p0, p1] = [seq[over - 1], seq[over], peak[over - 1], peak[over]];
  return s0 + ((capacity - p0) * (s1 - s0)) / (p1 - p0);
}

// --- Small helpers ---------------------------------------------------------------------------------------------------

const SVG = "http" + "://www.w3.org/2000/svg";

function make(tag, attributes = {}, ...children) {
  const el = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) if (value !== undefined) el.setAttribute(key, value);
  el.append(...children);
  return el;
}

function draw(tag, attributes = {}, ...children) {
  const el = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) el.setAttribute(key, value);
  el.append(...children);
  return el;
}

/** A child only when the text changes, so that nothing is laid out again for nothing. */
function say(el, text) {
  if (el.textContent !== String(text)) el.textContent = text;
}

function button(text, action, attributes = {}) {
  const el = make("button", { type: "button", ...attributes }, text);
  el.addEventListener("click", action);
  return el;
}

/** Two to one list of elements: as many as `items`, made by `create`, the old ones kept. */
function keep(parent, length, create) {
  while (parent.children.length > length) parent.lastElementChild.remove();
  while (parent.children.length < length) parent.append(create(parent.children.length));
  return [...parent.children];
}

let serial = 0;

// --- One control -----------------------------------------------------------------------------------------------------

class Control {
  /** `change(field, value)` tells what the reader did; `reset(field)` that the default is wanted. */
  constructor(spec, id, { change, reset, choices }) {
    Object.assign(this, { spec, id: `${id}-${spec.field.replace(".", "-")}`, choices, value: undefined });
    this.tell = (value) => change(spec.field, value);
    this.error = make("p", { class: "pb-mc-error", id: `${this.id}-error`, role: "alert", hidden: "" });
    this.reset = button("↺", () => this.drop(reset), { class: "pb-mc-reset", "aria-label": `Reset ${spec.label}`, hidden: "" });
    this.row = make("div", { class: `pb-mc-row pb-mc-${spec.kind}`, "data-field": spec.field }, ...this[spec.kind](), this.reset,
      make("span", { class: "pb-mc-help", id: `${this.id}-help` }, spec.help), this.error);
  }

  drop(reset) {
    clearTimeout(this.later);
    this.typing = false;
    reset(this.spec.field);
    this.focusable().focus();
  }

  described() {
    return { "aria-describedby": `${this.id}-help ${this.id}-error` };
  }

  label() {
    return make("label", { for: this.id }, this.spec.label);
  }

  focusable() {
    return this.row.querySelector("input:checked, input:not([type=radio]), select");
  }

  number() {
    const { label, stops, unit } = this.spec;
    this.slider = make("input", { type: "range", min: 0, max: stops.length - 1, step: 1, "aria-label": `${label}, slider`, ...this.described() });
    this.text = make("input", { type: "text", id: this.id, inputmode: "decimal", autocomplete: "off", spellcheck: "false", ...this.described() });
    this.slider.addEventListener("input", () => this.tell(stops[this.slider.value]));
    this.text.addEventListener("input", () => this.typed());
    this.text.addEventListener("change", () => this.typed(0));
    this.text.addEventListener("keydown", (e) => this.step(e));
    return [this.label(), this.slider, make("span", { class: "pb-mc-field" }, this.text, ...(unit ? [make("span", { class: "pb-unseen" }, unit)] : []))];
  }

  /** A number counts when the typing pauses, so that the 1 of 128 is not refused on the way. */
  typed(wait = 250) {
    clearTimeout(this.later);
    this.typing = wait > 0; // what Python answers meanwhile must not write over it
    if (wait) this.later = setTimeout(() => this.typed(0), wait);
    else if (parse(this.text.value) !== this.value) this.tell(parse(this.text.value));
  }

  step(event) {
    if (event.key === "Enter") return this.typed(0);
    const by = { ArrowUp: 1, ArrowDown: -1 }[event.key], now = parse(this.text.value);
    if (!by || typeof now !== "number") return;
    event.preventDefault();
    const next = Number.isInteger(now) && this.spec.stops.every(Number.isInteger) ? now + by : Math.round(100 * (now + by * 0.01)) / 100;
    if (next >= 0) this.tell(next);
  }

  choice() {
    const options = this.spec.choices.map(([value, text], i) => {
      const radio = make("input", { type: "radio", name: this.id, value: i, class: "pb-unseen", ...this.described() });
      radio.addEventListener("change", () => this.tell(value));
      return make("label", {}, radio, make("span", {}, text));
    });
    this.radios = options.map((option) => option.firstChild);
    return [make("span", { class: "pb-mc-label", id: `${this.id}-label` }, this.spec.label),
      make("span", { class: "pb-options", role: "radiogroup", "aria-labelledby": `${this.id}-label` }, ...options)];
  }

  select() {
    const groups = new Map();
    for (const [value, text, group = ""] of this.choices) {
      if (!groups.has(group)) groups.set(group, group ? make("optgroup", { label: group }) : make("span"));
      groups.get(group).append(make("option", { value }, text));
    }
    this.list = make("select", { id: this.id, ...this.described() });
    for (const [group, el] of groups) this.list.append(...(group ? [el] : el.children));
    this.list.addEventListener("change", () => this.tell(this.list.value));
    return [this.label(), this.list];
  }

  switch() {
    this.box = make("input", { type: "checkbox", role: "switch", id: this.id, ...this.described() });
    this.box.addEventListener("change", () => this.tell(this.box.checked));
    return [this.label(), this.box];
  }

  /** Show a value, whether it is the reader's own, and why it was refused. */
  show(value, { own, error, idle }) {
    this.value = value;
    ({ number: () => this.showNumber(value), choice: () => this.radios.forEach((radio, i) => (radio.checked = this.spec.choices[i][0] === value)),
      select: () => this.list.value !== value && (this.list.value = value), switch: () => (this.box.checked = value === true) })[this.spec.kind]();
    this.reset.hidden = !own;
    this.row.toggleAttribute("data-own", own);
    this.row.toggleAttribute("data-idle", idle);
    for (const el of this.row.querySelectorAll("input, select")) {
      el.disabled = idle;
      error ? el.setAttribute("aria-invalid", "true") : el.removeAttribute("aria-invalid");
    }
    say(this.error, error ?? "");
    this.error.hidden = !error;
  }

  showNumber(value) {
    const { stops, unit } = this.spec;
    if (!this.typing && parse(this.text.value) !== value) this.text.value = value ?? "";
    if (typeof value !== "number") return;
    const above = stops.findIndex((stop) => stop >= value), at = above < 0 ? stops.length - 1 : above;
    const nearest = at > 0 && value - stops[at - 1] < stops[at] - value ? at - 1 : at;
    if (this.slider.value !== String(nearest)) this.slider.value = nearest;
    this.slider.style.setProperty("--at", `${(100 * nearest) / (stops.length - 1)}%`);
    this.slider.setAttribute("aria-valuetext", `${value}${unit ? ` ${unit}` : ""}`);
  }
}

// --- All controls ----------------------------------------------------------------------------------------------------

class Controls {
  constructor(app, folded) {
    this.app = app;
    this.all = new Map();
    this.general = make("p", { class: "pb-mc-error", role: "alert", hidden: "" });
    this.groups = app.constants.groups.map((group) => this.group(group, folded));
    this.root = make("section", { class: "pb-mc-controls", "aria-label": "Settings" }, this.head(), this.general, make("div", { class: "pb-mc-groups" }, ...this.groups.map((g) => g.el)));
    // Explanations show on hover and focus (see the style sheet); Escape and typing take the shown one away.
    this.root.addEventListener("keydown", (e) => (e.key === "Escape" || e.target.type === "text") && this.root.setAttribute("data-hush", ""));
    for (const event of ["focusin", "pointerover"]) this.root.addEventListener(event, () => this.root.removeAttribute("data-hush"));
  }

  head() {
    const { app } = this;
    this.tabs = ["A", "B"].map((name, side) => button(name, () => app.choose(side), { "aria-pressed": "false", "aria-label": `Set configuration ${name}` }));
    this.compare = button("Compare", () => app.compare(), { title: "Copy this configuration into B and see both" });
    this.swap = button("Swap", () => app.swap(), { title: "Exchange A and B" });
    this.remove = button("Remove B", () => app.remove());
    this.clear = button("Reset", () => app.clear(), { title: "Everything but the model and the GPU back to its default" });
    this.sides = make("span", { class: "pb-mc-tabs", role: "group", "aria-label": "Configuration that the controls set" }, ...this.tabs);
    return make("div", { class: "pb-mc-head" }, this.sides, this.compare, this.swap, this.remove, this.clear, app.status);
  }

  group(group, folded) {
    const controls = group.controls.map((spec) => this.control(spec));
    const brief = make("span", { class: "pb-mc-brief" });
    if (!group.title) return { ...group, el: make("div", { class: "pb-mc-group" }, ...controls.map((c) => c.row)), brief, controls };
    const el = make("details", { class: "pb-mc-group" }, make("summary", {}, make("span", { class: "pb-mc-title" }, group.title), brief), ...controls.map((c) => c.row));
    el.open = !(group.folded || folded);
    return { ...group, el, brief, controls };
  }

  control(spec) {
    const { app } = this, { presets, recipes } = app.constants;
    const models = () => Object.entries(presets).map(([name, preset]) => [name, `${name}, ${preset.parameters}`, preset.family]);
    const control = new Control(spec, app.id, { change: (field, value) => app.change(field, value), reset: (field) => app.reset(field), choices: spec.field === "model" ? models() : spec.choices });
    this.all.set(spec.field, control);
    return control;
  }

  update() {
    const { app } = this, { config, result, error } = app.current(), values = { ...result?.values, ...config };
    for (const [field, control] of this.all) {
      const refused = error?.field === field ? error.message : undefined;
      control.show(values[field], { own: app.isOwn(field), error: refused, idle: this.isIdle(field, values) });
    }
    const elsewhere = error && !this.all.has(error.field);
    say(this.general, elsewhere ? error.message : "");
    this.general.hidden = !elsewhere;
    for (const group of this.groups) this.updateGroup(group, values, error);
    this.updateHead();
  }

  /** Settings that mean nothing for this model are shown, not offered. */
  isIdle(field, values) {
    if (field.startsWith("moe.") && field !== "moe.experts") return values["moe.experts"] === 0;
    return Boolean(values.latent) && (field === "kv_heads" || field === "head_dim");
  }

  updateGroup({ el, brief, controls, empty }, values, error) {
    const words = controls.filter(({ spec }) => spec.brief && values[spec.field] != null && values[spec.field] !== spec.quiet)
      .map(({ spec }) => spec.brief.replace("{}", spec.choices?.find(([value]) => value === values[spec.field])?.[1] ?? values[spec.field]));
    say(brief, words.join(", ") || empty);
    if (error && controls.some(({ spec }) => spec.field === error.field)) el.open = true;
  }

  updateHead() {
    const { app } = this, two = app.inputs.configs.length === 2;
    for (const el of [this.sides, this.swap, this.remove]) el.hidden = !two;
    this.compare.hidden = two;
    this.tabs.forEach((tab, side) => tab.setAttribute("aria-pressed", String(app.side === side)));
  }
}

// --- The verdict -----------------------------------------------------------------------------------------------------

class Verdict {
  constructor(app) {
    this.app = app;
    this.sides = make("div", { class: "pb-mc-sides" });
    this.difference = make("p", { class: "pb-mc-difference", hidden: "" });
    this.live = make("div", { class: "pb-unseen", "aria-live": "polite" });
    this.facts = make("div", { class: "pb-mc-sides pb-mc-facts" });
    this.root = make("section", { class: "pb-mc-verdict", "aria-label": "Verdict" }, this.sides, this.difference, this.live);
  }

  side(index) {
    const name = make("b", { class: "pb-mc-name" }, "AB"[index]);
    const parts = { name, peak: make("span", { class: "pb-mc-peak" }), of: make("span", { class: "pb-mc-of" }), fits: make("span", { class: "pb-mc-fits" }), stale: make("span", { class: "pb-mc-stale", hidden: "" }, "last valid") };
    const el = make("p", { class: "pb-mc-line" }, parts.name, parts.peak, parts.of, parts.fits, parts.stale);
    return Object.assign(el, { parts });
  }

  update() {
    const { app } = this, sides = keep(this.sides, app.inputs.configs.length, (i) => this.side(i));
    sides.forEach((el, index) => this.updateSide(el, index));
    keep(this.facts, sides.length, () => make("p")).forEach((el, index) => app.last[index] && say(el, this.about(app.last[index])));
    const [a, b] = app.inputs.configs.map((_, i) => app.last[i]);
    this.difference.hidden = !(a && b);
    if (a && b) say(this.difference, app.versus(a.peak, b.peak));
    clearTimeout(this.later);
    this.later = setTimeout(() => say(this.live, sides.map((el) => el.innerText).join("; ")), 600);
  }

  updateSide(el, index) {
    const { app } = this, result = app.last[index], { name, peak, of, fits, stale } = el.parts;
    name.hidden = app.inputs.configs.length === 1;
    el.toggleAttribute("data-stale", Boolean(app.errors[index]));
    stale.hidden = !app.errors[index] || !result;
    if (!result) return;
    say(peak, app.bytes(result.peak));
    say(of, `of ${app.bytes(result.capacity)}`);
    say(fits, result.fits ? `fits, ${app.bytes(result.spare)} to spare` : `does not fit, by ${app.bytes(-result.spare)}`);
    el.dataset.fits = result.fits;
  }

  about({ ranks, parameters, active, global_batch: batch, tokens: all }) {
    const sparse = active === parameters ? "" : ` (${count(active)} active)`;
    return [`per GPU, ${grouped(ranks)} GPU${ranks === 1 ? "" : "s"}`, `${count(parameters)} parameters${sparse}`, `global batch ${grouped(batch)} sample${batch === 1 ? "" : "s"}, ${grouped(all)} tokens`].join(" · ");
  }
}

// --- Bars: one for each pipeline stage -------------------------------------------------------------------------------

class Bars {
  constructor(app) {
    this.app = app;
    this.root = make("section", { class: "pb-mc-stages", "aria-label": "Memory of each pipeline stage" });
    this.root.addEventListener("keydown", (e) => this.key(e));
  }

  /** The bytes that the full width stands for: the same for both sides; the line is left out where it is far away. */
  scale() {
    const shown = this.app.shown(), peak = Math.max(...shown.map((r) => r.peak)), capacity = Math.max(...shown.map((r) => r.capacity));
    return peak < capacity / 25 ? peak * 1.1 : Math.max(peak, capacity) * 1.03;
  }

  chart(side) {
    const title = make("b", { class: "pb-mc-name" }, "AB"[side]), line = make("span", { class: "pb-mc-capacity" }, make("span"));
    const rows = make("div", { class: "pb-mc-bars" });
    const el = make("div", { class: "pb-mc-chart", role: "group", "aria-label": "Bars; arrow keys move, Enter opens the breakdown" }, title, line, rows);
    return Object.assign(el, { parts: { title, line, rows, side } });
  }

  row(side, index) {
    const name = button("", () => this.app.open(side, index, null), { class: "pb-mc-stage", tabindex: "-1" });
    const track = make("span", { class: "pb-mc-track" }), total = make("span", { class: "pb-mc-total" });
    const segments = this.app.constants.tenants.map(([tenant, , , colour]) => button("", () => this.app.open(side, index, tenant), { class: "pb-mc-segment", "data-tenant": tenant, tabindex: "-1", style: `--hue:${colour}` }));
    track.append(...segments);
    return Object.assign(make("div", { class: "pb-mc-bar" }, name, track, total), { parts: { name, segments, total } });
  }

  update() {
    const { app } = this, charts = keep(this.root, app.inputs.configs.length, (i) => this.chart(i)), scale = app.shown().length ? this.scale() : 1;
    charts.forEach((chart, side) => app.last[side] && this.updateChart(chart, app.last[side], scale));
    this.root.dataset.sides = charts.length;
    const focusable = this.root.querySelector('[tabindex="0"]:not([hidden])');
    if (!focusable) this.root.querySelector(".pb-mc-stage")?.setAttribute("tabindex", "0");
  }

  updateChart(chart, result, scale) {
    const { app } = this, { title, line, rows, side } = chart.parts, count = result.stages.length;
    title.hidden = app.inputs.configs.length === 1;
    chart.toggleAttribute("data-stale", Boolean(app.errors[side]));
    chart.dataset.density = count > 32 ? "hair" : count > 16 ? "thin" : count > 4 ? "close" : "roomy";
    chart.style.setProperty("--capacity", result.capacity / scale);
    const far = result.capacity > scale;
    chart.toggleAttribute("data-far", far);
    say(line.firstChild, `${app.bytes(result.capacity)}${far ? " →" : ""}`);
    const every = count > 32 ? 8 : count > 16 ? 4 : 1;
    keep(rows, count, (i) => this.row(side, i)).forEach((row, i) => this.updateRow(row, result, i, { scale, side, named: i % every === 0 || i === count - 1 }));
  }

  updateRow(row, result, index, { scale, side, named }) {
    const { app } = this, { name, segments, total } = row.parts, stage = result.stages[index], selected = app.selected(side) === index && result.stages.length > 1;
    const title = result.stages.length === 1 ? "each GPU" : `stage ${index}`;
    say(name, app.inputs.configs.length === 1 || result.stages.length === 1 ? title : index);
    name.setAttribute("aria-label", `${title}: ${app.bytes(stage.total)}`);
    name.toggleAttribute("data-quiet", !named);
    row.toggleAttribute("data-selected", selected);
    say(total, named || selected ? app.bytes(stage.total) : "");
    row.toggleAttribute("data-over", stage.total > result.capacity);
    app.constants.tenants.forEach(([tenant, words], i) => {
      const size = held(stage, tenant), segment = segments[i], text = `${title}, ${words}: ${app.bytes(size)}, ${share(size, stage.total)}`;
      segment.hidden = !size;
      segment.style.width = `${(100 * size) / scale}%`;
      segment.setAttribute("aria-expanded", String(app.pinned(side, index) && app.opened.has(tenant)));
      segment.setAttribute("aria-label", text);
      segment.title = text;
    });
  }

  /** One stop for the tab key; arrows go along a bar and from stage to stage. */
  key(event) {
    const from = event.target.closest(".pb-mc-bar button");
    if (!from) return;
    const row = from.closest(".pb-mc-bar"), places = (r) => [r.parts.name, ...r.parts.segments.filter((s) => !s.hidden)], here = places(row).indexOf(from);
    const across = (r) => r && places(r)[Math.min(here, places(r).length - 1)];
    const to = { ArrowRight: () => places(row)[here + 1], ArrowLeft: () => places(row)[here - 1], ArrowDown: () => across(row.nextElementSibling), ArrowUp: () => across(row.previousElementSibling), Home: () => places(row)[0], End: () => places(row).at(-1) }[event.key];
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

// --- The breakdown ---------------------------------------------------------------------------------------------------

class Table {
  constructor(app) {
    this.app = app;
    this.caption = make("h3", { class: "pb-mc-heading" });
    this.note = make("p", { class: "pb-mc-note" });
    this.unpin = button("Show the fullest stage", () => app.open(app.side, null, null), { class: "pb-mc-link", hidden: "" });
    const units = Object.keys(SYSTEMS).map((unit) => button(unit, () => app.setUnit(unit), { "aria-pressed": String(unit === app.unit), "data-unit": unit }));
    this.units = make("span", { class: "pb-mc-tabs", role: "group", "aria-label": "Unit" }, ...units);
    this.head = make("thead");
    this.bodies = app.constants.tenants.map((tenant) => this.body(tenant));
    this.foot = make("tfoot");
    this.symbols = make("table", { class: "pb-mc-symbols" });
    this.symbolsBox = make("div", { class: "pb-mc-legend", hidden: "" }, make("h4", {}, "Symbols"), this.symbols);
    const table = make("table", { class: "pb-mc-table" }, this.head, ...this.bodies.map((b) => b.el), this.foot);
    this.root = make("section", { class: "pb-mc-breakdown", "aria-label": "Breakdown" }, make("div", { class: "pb-mc-top" }, this.caption, this.unpin, this.units), this.note, table, this.symbolsBox);
  }

  body([tenant, words, help, colour]) {
    const toggle = button("", () => this.app.toggle(tenant), { class: "pb-mc-tenant", "aria-expanded": "false", title: help });
    toggle.append(make("i", { style: `background:${colour}` }), words);
    const head = make("tr", {}, make("th", { scope: "row" }, toggle));
    return { tenant, toggle, head, el: make("tbody", {}, head) };
  }

  update() {
    const { app } = this, sides = app.inputs.configs.map((_, side) => side).filter((side) => app.last[side]);
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
    const { app } = this, { result, index } = picked.find((p) => p.side === app.side) ?? picked[0], stage = result.stages[index];
    const alone = result.stages.length === 1, fullest = index === result.fullest;
    say(this.caption, picked.length > 1 ? "On the fullest GPU of each" : alone ? "On each GPU" : `On each GPU of stage ${index}`);
    const flight = stage.in_flight === 1 ? "1 micro-batch" : `${rounded(stage.in_flight)} micro-batches`;
    say(this.note, `${fullest && !alone ? "The fullest stage. " : ""}${stage.layers} layers, ${flight} in flight. Most is alive during the ${stage.moment}.`);
    this.unpin.hidden = fullest;
  }

  columns(picked) {
    const { unit } = this.column, names = picked.length > 1 ? [`A, ${unit}`, `B, ${unit}`, `B ${MINUS} A`] : [unit, "share"];
    if (this.names === names.join()) return;
    [this.names, this.compared] = [names.join(), picked.length > 1];
    this.head.replaceChildren(make("tr", {}, make("th", { scope: "col" }, make("span", { class: "pb-unseen" }, "what")), ...names.map((n) => make("th", { scope: "col", class: "pb-mc-number" }, n))));
    for (const { head } of this.bodies) head.replaceChildren(head.firstChild, ...names.map(() => make("td", { class: "pb-mc-number" })));
    this.foot.replaceChildren(make("tr", {}, make("th", { scope: "row" }, "together"), ...names.map(() => make("td", { class: "pb-mc-number" }))));
  }

  numbers(sizes, wholes) {
    const { text } = this.column;
    if (sizes.length === 1) return [text(sizes[0]), share(sizes[0], wholes[0])];
    const difference = text(sizes[1] - sizes[0]);
    return [...sizes.map(text), /[1-9]/.test(difference) && !difference.startsWith(MINUS) ? `+${difference}` : difference.replace(/^\u2212(?=[0.]+$)/, "")];
  }

  updateBody({ tenant, toggle, head, el }, picked) {
    const { app } = this, sizes = picked.map(({ result, index }) => held(result.stages[index], tenant)), wholes = picked.map(({ result, index }) => result.stages[index].total);
    const opened = app.opened.has(tenant);
    toggle.setAttribute("aria-expanded", String(opened));
    this.numbers(sizes, wholes).forEach((text, i) => say(head.children[i + 1], text));
    head.children[1].title = `${grouped(sizes[0])} bytes`;
    const { result, index } = picked.find((p) => p.side === app.side) ?? picked[0];
    const rows = opened ? breakdown(result, index, tenant) : [];
    el.replaceChildren(head, ...rows.map((row) => this.row(row, result.stages[index].total)));
    return rows;
  }

  row({ name, head, inner, formula, bytes: size }, whole) {
    const what = make("td", {}, name);
    if (formula) what.append(make("span", { class: "pb-mc-formula" }, formula));
    const { app } = this, text = app.bytes(size);
    const cells = this.compared ? [app.side === 0 ? text : "", app.side === 1 ? text : "", ""] : [text, share(size, whole)];
    return make("tr", { class: inner ? "pb-mc-part pb-mc-inner" : head ? "pb-mc-part" : "pb-mc-term", "data-bytes": head ? undefined : size }, what, ...cells.map((words) => make("td", { class: "pb-mc-number", title: `${grouped(Math.round(size))} bytes` }, words)));
  }

  total(picked) {
    const totals = picked.map(({ result, index }) => result.stages[index].total);
    this.numbers(totals, totals).forEach((text, i) => say(this.foot.firstChild.children[i + 1], text));
  }

  explain(rows, result) {
    const { symbols } = this.app.constants, used = symbolsIn(rows, symbols);
    this.symbolsBox.hidden = !used.length;
    this.symbols.replaceChildren(...used.map((symbol) => make("tr", {}, make("th", { scope: "row" }, symbol), make("td", { class: "pb-mc-number" }, grouped(result.symbols[symbol])), make("td", {}, symbols[symbol]))));
  }
}

// --- Memory against sequence length ----------------------------------------------------------------------------------

const CURVE = { height: 190, left: 46, right: 10, top: 18, bottom: 22 };

class Curve {
  constructor(app) {
    this.app = app;
    this.areas = app.constants.tenants.map(([, , , colour]) => draw("path", { fill: colour }));
    this.areasOfB = draw("path", { class: "pb-mc-other", fill: "none" });
    this.veil = draw("rect", { class: "pb-mc-veil" }); // dims what is above the limit
    this.line = draw("line", { class: "pb-mc-limit" });
    this.limit = draw("text", { "text-anchor": "end" });
    this.marker = draw("line", { class: "pb-mc-now" });
    this.dot = draw("circle", { r: 4, class: "pb-mc-dot" });
    this.cursor = draw("line", { class: "pb-mc-cursor" });
    this.axis = draw("g");
    this.clip = draw("rect");
    const clip = `${app.id}-clip`;
    this.svg = draw("svg", { "aria-hidden": "true", focusable: "false" }, draw("clipPath", { id: clip }, this.clip), this.axis, draw("g", { "clip-path": `url(#${clip})` }, ...this.areas, this.veil, this.areasOfB), this.line, this.limit, this.marker, this.dot, this.cursor);
    this.stage = make("div", { class: "pb-mc-plot", tabindex: "0", role: "slider", "aria-label": "Memory at a sequence length; arrow keys read other lengths", "aria-readonly": "true" }, this.svg);
    this.reading = make("p", { class: "pb-mc-note" });
    this.root = make("section", { class: "pb-mc-curve", "aria-label": "Memory against sequence length" }, make("h3", { class: "pb-mc-heading" }, "Against sequence length"), this.reading, this.stage);
    this.at = null;
    this.listen();
  }

  listen() {
    const on = (type, handler) => this.stage.addEventListener(type, handler);
    on("pointermove", (e) => this.point(e));
    on("pointerdown", (e) => this.point(e));
    on("pointerleave", () => this.read(null));
    on("blur", () => this.read(null));
    on("keydown", (e) => this.key(e));
    this.sizes = new ResizeObserver(() => this.update());
    this.sizes.observe(this.stage);
  }

  update() {
    const { app } = this, result = app.current().result;
    this.root.hidden = !result || result.curve.seq.length < 2;
    const width = this.stage.clientWidth;
    if (this.root.hidden || !width) return;
    Object.assign(this, { result, curve: result.curve, width });
    const { seq } = this.curve, { height } = CURVE;
    this.low = Math.log2(seq[0]);
    this.span = Math.log2(seq.at(-1)) - this.low;
    const now = this.curve.peak[seq.indexOf(result.values.seq)] ?? result.peak;
    this.top = Math.min(Math.max(result.capacity * 1.4, now * 1.3), Math.max(...this.curve.peak) * 1.1);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("height", height);
    this.areasAndLines(now);
    this.axes();
    this.read(this.at);
  }

  x(seq) {
    return CURVE.left + ((Math.log2(seq) - this.low) / this.span) * (this.width - CURVE.left - CURVE.right);
  }

  y(size) {
    return CURVE.height - CURVE.bottom - (size / this.top) * (CURVE.height - CURVE.top - CURVE.bottom);
  }

  areasAndLines(now) {
    const { app, curve, result } = this, below = curve.seq.map(() => 0), at = curve.seq.map((s) => this.x(s).toFixed(1));
    const edge = (sizes) => sizes.map((size, i) => `${at[i]},${this.y(size).toFixed(1)}`);
    app.constants.tenants.forEach(([tenant], k) => {
      const under = edge(below).reverse();
      curve[tenant].forEach((size, i) => (below[i] += size));
      this.areas[k].setAttribute("d", `M${edge(below).join("L")}L${under.join("L")}Z`);
    });
    const other = app.inputs.configs.length === 2 ? app.last[1 - app.side]?.curve : null;
    this.areasOfB.setAttribute("d", other ? `M${other.seq.map((s, i) => `${this.x(s).toFixed(1)},${this.y(other.peak[i]).toFixed(1)}`).join("L")}` : "");
    const set = (el, attributes) => Object.entries(attributes).forEach(([key, value]) => el.setAttribute(key, value));
    const limit = this.y(result.capacity), x = this.x(result.values.seq), visible = result.capacity <= this.top;
    set(this.clip, { x: CURVE.left, y: CURVE.top - 6, width: this.width - CURVE.left - CURVE.right, height: CURVE.height - CURVE.top - CURVE.bottom + 6 });
    set(this.veil, { x: CURVE.left, y: 0, width: this.width, height: visible ? Math.max(0, limit) : 0 });
    set(this.line, { x1: CURVE.left, x2: this.width - CURVE.right, y1: limit, y2: limit, visibility: visible ? "visible" : "hidden" });
    set(this.limit, { x: CURVE.left - 5, y: limit + 4, visibility: visible ? "visible" : "hidden" });
    say(this.limit, app.bytes(result.capacity));
    set(this.marker, { x1: x, x2: x, y1: this.y(now), y2: CURVE.height - CURVE.bottom });
    set(this.dot, { cx: x, cy: this.y(now) });
  }

  axes() {
    const { seq } = this.curve, room = (this.width - CURVE.left) / Math.max(1, this.span), every = room < 44 ? 2 : 1, y = CURVE.height - CURVE.bottom;
    const powers = [];
    for (let k = Math.ceil(this.low - 1e-9); k <= this.low + this.span + 1e-9; k += every) powers.push(2 ** k);
    const label = (s) => draw("text", { x: this.x(s), y: y + 15, "text-anchor": s === seq.at(-1) ? "end" : "middle" }, tokens(s));
    const tick = this.result.capacity > this.top ? [round(this.top * 0.9)] : []; // the limit is a label of its own
    this.axis.replaceChildren(...tick.map((size) => draw("text", { x: CURVE.left - 5, y: this.y(size) + 4, "text-anchor": "end" }, this.app.bytes(size))), draw("line", { x1: CURVE.left, x2: this.width - CURVE.right, y1: y, y2: y, class: "pb-mc-axis" }), draw("text", { x: CURVE.left - 5, y: y + 4, "text-anchor": "end" }, "0"), ...powers.map(label));
  }

  /** Say the memory at the `index`-th length of the curve, or the length that is set and the longest that fits. */
  read(index) {
    this.at = index;
    const { app, curve, result } = this;
    if (!curve) return;
    const shown = index ?? Math.max(0, curve.seq.indexOf(result.values.seq)), x = this.x(curve.seq[shown]);
    for (const [key, value] of Object.entries({ x1: x, x2: x, y1: CURVE.top - 6, y2: CURVE.height - CURVE.bottom, visibility: index === null ? "hidden" : "visible" })) this.cursor.setAttribute(key, value);
    const spare = result.capacity - curve.peak[shown], verdict = spare < 0 ? `${app.bytes(-spare)} too much` : `${app.bytes(spare)} to spare`;
    const text = `${tokens(curve.seq[shown])} tokens: ${app.bytes(curve.peak[shown])}, ${verdict}`;
    say(this.reading, index === null ? this.longest() : `${text}; activations ${app.bytes(curve.activations[shown])}.`);
    for (const [key, value] of [["valuemin", 0], ["valuemax", curve.seq.length - 1], ["valuenow", shown], ["valuetext", text]]) this.stage.setAttribute(`aria-${key}`, value);
  }

  longest() {
    const length = crossing(this.curve, this.result.capacity), limit = this.app.bytes(this.result.capacity);
    if (length === 0) return `More than ${limit} at every length shown.`;
    return length === Infinity ? `Within ${limit} at every length shown.` : `Within ${limit} up to about ${grouped(+length.toPrecision(2))} tokens.`;
  }

  point(event) {
    if (!this.curve) return;
    const x = event.clientX - this.stage.getBoundingClientRect().left, away = this.curve.seq.map((s) => Math.abs(this.x(s) - x));
    this.read(away.indexOf(Math.min(...away)));
  }

  key(event) {
    const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, Home: -1e3, End: 1e3 }[event.key];
    if (!by || !this.curve) return;
    event.preventDefault();
    const from = this.at ?? this.curve.seq.indexOf(this.result.values.seq);
    this.read(Math.min(this.curve.seq.length - 1, Math.max(0, from + by)));
  }
}

// --- What would make it fit ------------------------------------------------------------------------------------------

class Advice {
  constructor(app) {
    this.app = app;
    this.list = make("ol", { class: "pb-mc-advice" });
    this.note = make("p", { class: "pb-mc-note" });
    this.root = make("section", { "aria-label": "What would make it fit", hidden: "" }, make("h3", { class: "pb-mc-heading" }, "What would make it fit"), this.note, this.list);
  }

  update() {
    const { app } = this, { result, error } = app.current();
    this.root.hidden = !result || result.fits || Boolean(error);
    if (this.root.hidden) return;
    const ready = result.advice !== null && result.advice !== undefined;
    this.list.toggleAttribute("data-stale", !ready);
    if (!ready) {
      say(this.note, "Trying changes …");
      for (const el of this.list.querySelectorAll("button")) el.disabled = true;
      return;
    }
    say(this.note, result.advice.length ? "Cheapest first; the costs in time are rough." : "No three changes of the layout do. A smaller model, a shorter sequence or a larger GPU would.");
    if (this.shown === result.advice) return;
    this.shown = result.advice;
    this.list.replaceChildren(...result.advice.map((advice) => this.item(advice)));
  }

  item(advice) {
    const { app } = this, name = upper(advice.changes.map((change) => change.label).join(" + ")), one = advice.changes.length === 1;
    const why = advice.changes.map((change) => (one ? change.why : `${change.label}: ${change.why}`)).join("; ");
    const gpus = advice.gpus > app.current().result.gpus ? `Needs ${advice.gpus} GPUs. ` : "";
    const result = make("p", { class: "pb-mc-then" }, make("b", {}, app.bytes(advice.peak)), make("span", {}, `${app.bytes(advice.spare)} to spare`));
    return make("li", {}, make("div", {}, make("b", {}, name), make("p", {}, `${gpus}Costs ${this.cost(advice.cost)}. ${upper(why)}.`)), result,
      button("Apply", () => app.apply(advice), { "aria-label": `Apply ${name}` }));
  }

  cost(part) {
    return part < 0.0005 ? "no time" : part < 0.01 ? "hardly any time" : `about ${Math.round(100 * part)}${NARROW}% of a step's time`;
  }
}

// --- Command, link, files --------------------------------------------------------------------------------------------

class Actions {
  constructor(app) {
    this.app = app;
    this.command = make("code", { tabindex: "0" });
    this.said = make("span", { class: "pb-mc-said", role: "status" });
    this.copy = button("Copy", () => this.clip(this.command.textContent, "Command copied"), { "aria-label": "Copy command" });
    this.link = button("Copy link", () => this.clip(app.model.get("link"), "Link copied"), { hidden: "" });
    const json = button("Save JSON", () => this.save("memory.json", "application/json", JSON.stringify({ inputs: app.inputs, outputs: app.model.get("outputs") }, null, 1)), { title: "Inputs and outputs" });
    const picture = button("Save picture", () => this.save("memory.svg", "image/svg+xml", pictureOf(app)), { title: "Verdict, bars and legend as SVG" });
    this.root = make("section", { class: "pb-mc-actions", "aria-label": "Take it with you" }, make("h3", { class: "pb-mc-heading" }, "The same on the command line"),
      make("div", { class: "pb-mc-command" }, this.command, this.copy), make("div", { class: "pb-mc-tools" }, this.link, json, picture, this.said));
  }

  update() {
    const { app } = this, { result } = app.current();
    this.root.hidden = !result;
    if (result && this.command.textContent !== result.command) this.command.replaceChildren(...words(result.command));
    this.link.hidden = !app.model.get("link");
  }

  async clip(text, done) {
    try {
      await navigator.clipboard.writeText(text);
      this.tell(done);
    } catch {
      this.tell("The browser does not let a page copy: select the text instead");
    }
  }

  tell(text) {
    say(this.said, text);
    clearTimeout(this.later);
    this.later = setTimeout(() => say(this.said, ""), 2500);
  }

  save(name, type, text) {
    const url = URL.createObjectURL(new Blob([text], { type })), link = make("a", { href: url, download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
    this.tell(`${name} saved`);
  }
}

/** A command in pieces that lines break between: a flag stays with its value, and no hyphen ends a line. */
function words(command) {
  return command.split(/(?= --)/).map((piece) => make("span", {}, piece));
}

/** The bars, their line and their legend as an SVG file that needs nothing else. */
function pictureOf(app) {
  const shown = app.shown(), scale = Math.max(...shown.map((r) => Math.max(r.peak, r.capacity))) * 1.03, width = 760, left = 80, track = 560;
  const escape = (text) => text.replace(/[&<>]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[c]);
  const text = (x, y, words, more = "") => `<text x="${x}" y="${y}" ${more}>${escape(words)}</text>`, out = [];
  let y = 30;
  for (const result of shown) {
    const verdict = result.fits ? `fits, ${app.bytes(result.spare)} to spare` : `does not fit, by ${app.bytes(-result.spare)}`, x = left + (result.capacity / scale) * track;
    out.push(text(16, y, `${app.bytes(result.peak)} of ${app.bytes(result.capacity)}: ${verdict}`, 'font-size="18" font-weight="600"'), text(16, y + 20, result.command, 'font-size="11"'));
    y += 50;
    out.push(text(x, y - 6, app.bytes(result.capacity), 'font-size="11" text-anchor="middle"'));
    const first = y;
    result.stages.forEach((stage, index) => {
      let at = left;
      out.push(text(left - 8, y + 13, result.stages.length === 1 ? "each GPU" : `stage ${index}`, 'font-size="11" text-anchor="end"'));
      for (const [tenant, , , colour] of app.constants.tenants) {
        const wide = (held(stage, tenant) / scale) * track;
        if (wide) out.push(`<rect x="${at.toFixed(2)}" y="${y}" width="${wide.toFixed(2)}" height="17" fill="${colour}"/>`);
        at += wide;
      }
      out.push(text(left + track + 10, y + 13, app.bytes(stage.total), 'font-size="11"'));
      y += 21;
    });
    out.push(`<line x1="${x}" x2="${x}" y1="${first - 2}" y2="${y}" stroke="#1f2328" stroke-width="1.5"/>`);
    y += 30;
  }
  let at = 16;
  for (const [, words, , colour] of app.constants.tenants) {
    out.push(`<rect x="${at}" y="${y - 10}" width="11" height="11" fill="${colour}"/>`, text(at + 16, y, words, 'font-size="12"'));
    at += 34 + 6.6 * words.length;
  }
  return `<svg xmlns="${SVG}" viewBox="0 0 ${width} ${y + 16}" width="${width}" height="${y + 16}" font-family="system-ui, sans-serif" fill="#1f2328"><rect width="100%" height="100%" fill="#ffffff"/>${out.join("")}</svg>`;
}

// --- The calculator --------------------------------------------------------------------------------------------------

class Calculator {
  constructor(model, el) {
    Object.assign(this, { model, id: `pb-mc-${++serial}`, constants: model.get("constants"), side: 0, unit: "GB", stage: [null, null], opened: new Set(), last: [], errors: [] });
    this.take();
    const narrow = el.clientWidth < 640;
    this.status = make("span", { class: "pb-mc-status", role: "status" });
    this.controls = new Controls(this, narrow);
    this.verdict = new Verdict(this);
    this.bars = new Bars(this);
    this.table = new Table(this);
    this.curve = new Curve(this);
    this.advice = new Advice(this);
    this.actions = new Actions(this);
    this.build(el);
    this.refresh();
    this.handlers = [["change:outputs", () => this.arrived()], ["change:inputs", () => this.controls.update()], ["change:status", () => this.updateStatus()], ["change:link", () => this.actions.update()]];
    for (const [event, handler] of this.handlers) model.on(event, handler);
    this.rest();
  }

  build(el) {
    const answer = make("div", { class: "pb-mc-answer" }, this.verdict.root, this.verdict.facts, this.bars.root);
    const detail = make("div", { class: "pb-mc-detail" }, this.advice.root, this.table.root, this.curve.root, this.actions.root);
    this.results = make("div", { class: "pb-mc-results" }, answer, detail);
    this.root = make("div", { class: "pb-w pb-form pb-mc", role: "group", "aria-label": "Memory calculator" }, make("div", { class: "pb-mc-grid" }, this.controls.root, this.results));
    el.replaceChildren(this.root);
    this.updateStatus();
  }

  // --- what is known

  get inputs() {
    return this.model.get("inputs");
  }

  /** The configuration that the controls set, its last valid result and, if the newest was refused, why. */
  current() {
    return { config: this.inputs.configs[this.side], result: this.last[this.side], error: this.errors[this.side] };
  }

  /** The results that are drawn. */
  shown() {
    return this.inputs.configs.map((_, side) => this.last[side]).filter(Boolean);
  }

  bytes(size) {
    return bytes(size, this.unit);
  }

  versus(a, b) {
    return a === b ? "B needs as much as A." : `B needs ${this.bytes(Math.abs(b - a))} ${b < a ? "less" : "more"} than A (${b < a ? MINUS : "+"}${share(Math.abs(b - a), a)}).`;
  }

  /** The stage whose breakdown is shown: the reader's choice while it is there, else the fullest. */
  selected(side) {
    const result = this.last[side], chosen = this.stage[side];
    return chosen !== null && chosen < result.stages.length ? chosen : result.fullest;
  }

  /** What a control shows when the reader has set nothing. */
  base(field, config = this.current().config) {
    const { presets, defaults, recipes } = this.constants, sizes = presets[config.model ?? defaults.model]?.sizes ?? {};
    if (field === "optimizer_bytes") return recipes[config.precision ?? defaults.precision];
    return field in sizes ? sizes[field] : defaults[field];
  }

  isOwn(field) {
    const { config } = this.current();
    return field !== "model" && field in config && config[field] !== this.base(field);
  }

  take() {
    const { results } = this.model.get("outputs");
    this.errors = results.map((result) => result.error);
    results.forEach((result, side) => !result.error && (this.last[side] = result));
  }

  // --- what the reader does

  /** Set one field of the current configuration; what equals the preset is left out, so that links stay short. */
  change(field, value) {
    const config = { ...this.current().config }, { sizes } = Object.values(this.constants.presets)[0];
    if (field === "model") for (const key of Object.keys(sizes)) if (key !== "seq") delete config[key];
    if (field === "gpus") delete config.dp;
    if (field === "dp") delete config.gpus;
    if (field === "moe.experts" && value === 0) for (const key of Object.keys(config)) if (key.startsWith("moe.")) delete config[key];
    delete config[field];
    const follows = this.controls.all.get(field).spec.follows && Object.keys(sizes).some((key) => key in config);
    if (follows || field === "model" || field === "gpus" || value !== this.base(field, config)) config[field] = value;
    this.send(this.inputs.configs.map((old, side) => (side === this.side ? config : old)));
  }

  reset(field) {
    const { [field]: _, ...config } = this.current().config;
    this.send(this.inputs.configs.map((old, side) => (side === this.side ? config : old)));
  }

  clear() {
    const { model, accelerator } = this.current().config, config = { ...(model && { model }), ...(accelerator && { accelerator }) };
    this.send(this.inputs.configs.map((old, side) => (side === this.side ? config : old)));
  }

  /** Advice as the reader's own settings. Where a number of GPUs was given, it stays that which is given. */
  apply({ set }) {
    const { config, result } = this.current(), next = { ...config, ...set }, size = (axis) => set[axis] ?? result.values[axis];
    if (config.gpus != null) {
      delete next.dp;
      next.gpus = size("dp") * size("tp") * size("cp") * size("pp");
    }
    const known = Object.fromEntries(Object.entries(next).filter(([, value]) => value !== null));
    this.send(this.inputs.configs.map((old, side) => (side === this.side ? known : old)));
  }

  compare() {
    const [config] = this.inputs.configs;
    [this.last[1], this.errors[1], this.stage[1], this.side] = [this.last[0], this.errors[0], this.stage[0], 1];
    this.send([config, { ...config }]);
  }

  swap() {
    for (const list of [this.last, this.errors, this.stage]) list.reverse();
    this.send([...this.inputs.configs].reverse());
  }

  remove() {
    this.side = 0;
    this.last.length = this.errors.length = 1;
    this.send([this.inputs.configs[0]]);
  }

  choose(side) {
    this.side = side;
    this.refresh();
    this.rest();
  }

  open(side, stage, tenant) {
    if (this.inputs.configs.length > 1) this.side = side;
    this.stage[side] = stage;
    if (tenant) this.opened = new Set([tenant]);
    else if (stage !== null && !this.opened.size) this.opened = new Set(this.constants.tenants.map(([name]) => name));
    this.refresh();
  }

  /** Whether the reader has opened this very stage. */
  pinned(side, stage) {
    return this.stage[side] === stage && this.selected(side) === stage;
  }

  toggle(tenant) {
    this.opened.has(tenant) ? this.opened.delete(tenant) : this.opened.add(tenant);
    this.bars.update();
    this.table.update();
  }

  setUnit(unit) {
    this.unit = unit;
    for (const el of this.root.querySelectorAll("[data-unit]")) el.setAttribute("aria-pressed", String(el.dataset.unit === unit));
    this.advice.shown = null;
    this.refresh();
  }

  // --- there and back

  send(configs) {
    this.model.set("inputs", { configs, advice: false });
    this.model.save_changes();
    this.refresh();
  }

  arrived() {
    this.take();
    this.refresh();
    this.rest();
  }

  /** Advice is asked for when the reader rests on something that does not fit. */
  rest() {
    clearTimeout(this.resting);
    const { result, error } = this.current();
    if (!result || result.fits || error || this.inputs.advice) return;
    this.resting = setTimeout(() => {
      this.model.set("inputs", { ...this.inputs, advice: true });
      this.model.save_changes();
    }, 250);
  }

  refresh() {
    if (this.side >= this.inputs.configs.length) this.side = 0;
    this.controls.update();
    for (const part of [this.verdict, this.bars, this.advice, this.table, this.curve, this.actions]) part.update();
    this.root.dataset.sides = this.inputs.configs.length;
  }

  updateStatus() {
    const status = this.model.get("status") ?? "";
    clearTimeout(this.waiting);
    const text = status.startsWith("failed") ? `Python could not be started${status.slice(6)}` : { starting: "starting Python …", busy: "computing …" }[status] ?? "";
    // An answer takes milliseconds: only a wait that a reader would notice is worth a word.
    status === "busy" ? (this.waiting = setTimeout(() => say(this.status, text), 300)) : say(this.status, text);
  }

  close() {
    for (const [event, handler] of this.handlers) this.model.off(event, handler);
    for (const timer of [this.resting, this.waiting, this.verdict.later, this.actions.later]) clearTimeout(timer);
    this.curve.sizes.disconnect();
  }
}

export default {
  render({ model, el }) {
    const calculator = new Calculator(model, el);
    return () => calculator.close();
  },
};
