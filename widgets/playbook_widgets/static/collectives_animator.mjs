// The collectives animator. `inputs` is a flat object of what the reader has set, `outputs` what
// playbook.planning.animation.compute makes of it (every message, what it changes, when it is on its way), `constants`
// says what the controls are. Nothing is computed here that Python can: this module draws, plays, and listens.

// --- Numbers in words ------------------------------------------------------------------------------------------------

const NARROW = "\u202f", UNITS = ["B", "kB", "MB", "GB", "TB"], TIMES = [[1e-9, "ns"], [1e-6, "µs"], [1e-3, "ms"], [1, "s"]];

/** `value` with about `digits` significant digits, whole numbers in full, no trailing zeros. */
function rounded(value, digits = 3) {
  if (!value) return "0";
  const text = value.toFixed(Math.min(20, Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))))));
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/** 2000000 is "2 MB"; rounding comes before the choice of the unit. */
export function bytes(size) {
  let power = 0;
  while (power < UNITS.length - 1 && +rounded(size / 1000 ** power) >= 1000) power++;
  return `${rounded(size / 1000 ** power)} ${UNITS[power]}`;
}

/** 0.0000628 is "62.8 µs". */
export function seconds(time) {
  const [size, unit] = TIMES.findLast(([size]) => +rounded(time / size) >= 1) ?? TIMES[0];
  return `${rounded(time / size)} ${unit}`;
}

/** A size to the byte, as short as that goes: 10 MB, 1 MiB, 1 234 567 B. */
export function exactly(size) {
  const units = [...[1e9, 1e6, 1e3].map((n, i) => [n, UNITS[3 - i]]), [2 ** 20, "MiB"], [2 ** 10, "KiB"]];
  const [one, unit] = units.find(([n]) => size >= n && Number.isInteger((size / n) * 100)) ?? [1, "B"];
  return `${grouped(size / one)} ${unit}`;
}

const grouped = (value) => String(value).replace(/\B(?=(\d{3})+(\.|$))(?<!\.\d*)/g, NARROW);
const percent = (share) => `${Math.round(100 * share)}${NARROW}%`;
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
/** [1, 2, 3, 5] is [[1, 3], [5, 5]]. */
const runsOf = (numbers) =>
  numbers.filter((n) => !numbers.includes(n - 1)).map((first) => [first, numbers.find((n) => n >= first && !numbers.includes(n + 1))]);
/** [1, 2, 3, 5] is "1–3 and 5". */
const ranges = (numbers) => listed(runsOf(numbers).flatMap(([a, b]) => (b - a > 1 ? `${a}–${b}` : b > a ? [a, b] : a)));

const listed = (items) => (items.length < 2 ? items.join() : `${items.slice(0, -1).join(", ")} and ${items.at(-1)}`);
const chunksOf = ({ first, last }) => (last - first === 1 ? String(first) : `${first}–${last - 1}`);
const ranksIn = (bits) => [...Array(16).keys()].filter((rank) => (bits >> rank) & 1);

// --- The state in a link: collective=all_gather&ranks=8&step=3 ---------------------------------------------------------

const KEYS = ["collective", "algorithm", "ranks", "bytes", "cluster", "ranks_per_node", "root", "step"];

/** What a reader typed: a whole number where it is one, else the text, so that the refusal can quote it. */
const parse = (text) => (/^\s*-?\d{1,15}\s*$/.test(text) ? Number(text) : text);

export function encode(inputs) {
  return KEYS.filter((key) => inputs[key] != null).map((key) => `${key}=${encodeURIComponent(inputs[key])}`).join("&");
}

export function decode(text) {
  const pairs = text.split("&").map((pair) => pair.split("=", 2)).filter(([key, value]) => KEYS.includes(key) && value !== undefined);
  return { collective: "all_reduce", ...Object.fromEntries(pairs.map(([key, value]) => [key, parse(plain(value))])) };
}

function plain(value) {
  try {
    return decodeURIComponent(value);
  } catch {
    return value; // a stray % is text like any other
  }
}

// --- What the ranks hold, in words and in numbers ----------------------------------------------------------------------

/** What each rank holds before each step and at the end: [place in the plan][rank][chunk], bit r for rank r. */
export function states({ start, steps }) {
  const all = [start];
  for (const { changes } of steps) {
    const next = all.at(-1).map((row) => row.slice());
    for (const [rank, chunk, ranks] of changes) next[rank][chunk] = ranks;
    all.push(next);
  }
  return all;
}

/** One step in words. */
export function sentence({ messages, idle }, collective) {
  const sizes = messages.map((m) => m.bytes), least = Math.min(...sizes), most = Math.max(...sizes);
  const size = bytes(least) === bytes(most) ? bytes(most) : `${bytes(least)} to ${bytes(most)}`;
  const what = collective === "barrier" ? "each says whom its sender has heard of" : messages[0].adds ? "what arrives is added" : "what arrives is kept";
  const waiting = idle.length ? `${idle.length === 1 ? "Rank" : "Ranks"} ${ranges(idle)} ${idle.length === 1 ? "is" : "are"} idle.` : "Nobody is idle.";
  return `${plural(messages.length, "message")} of ${size}; ${what}. ${waiting}`;
}

/** One chunk of a rank in words. */
function contents(bits, wanted, { collective }) {
  const ranks = ranksIn(bits), names = `${ranks.length === 1 ? "rank" : "ranks"} ${listed(ranks)}`, done = bits && bits === wanted ? ", finished" : "";
  if (!ranks.length) return "nothing yet";
  if (collective === "barrier") return `has heard of ${names}${done}`;
  return `${ranks.length > 1 ? `the sum of ${names}` : `that of ${names}`}${done}`;
}

// --- Where the ranks stand ---------------------------------------------------------------------------------------------

const isPower = (n) => (n & (n - 1)) === 0;

/** A tree for trees, a star where all goes through one rank, rows of nodes for two levels, else a circle. */
export function shapeOf({ values: { collective, algorithm, root }, nodes }, narrow = false) {
  const inNode = nodes[0].length, one = nodes.length === 1;
  if (algorithm === "binomial" && (one || (isPower(inNode) && root % inNode === 0))) return "tree";
  if (algorithm === "naive" && collective !== "all_to_all" && one) return "star";
  return algorithm === "two_level" && !one && inNode > 1 && !(narrow && inNode > 4) ? "grid" : "circle";
}

/** The place of each rank in a unit square. */
const PLACES = {
  circle({ values: { ranks: n }, nodes }) {
    const gap = nodes.length > 1 && nodes[0].length > 1 ? (nodes.length > 2 ? 0.3 : 0.6) : 0; // between nodes
    const turn = nodes.flatMap((node, i) => node.map((rank) => rank + i * gap)), all = n + nodes.length * gap;
    return turn.map((at) => onCircle(at / all));
  },
  star({ values: { ranks: n, root } }) {
    const around = (rank) => (rank - root - 1 + n) % n;
    return Array.from({ length: n }, (_, rank) => (rank === root ? { x: 0.5, y: 0.5 } : onCircle(n === 2 ? 0 : (around(rank) + 0.5) / (n - 1))));
  },
  /** Above the middle of what hangs below it: rank p of the tree heads the p & −p ranks from p on. */
  tree({ values: { ranks: n, root } }) {
    const places = Array.from({ length: n }, (_, rank) => (rank - root + n) % n);
    const across = places.map((p) => p + (p ? p & -p : 2 ** (n - 1).toString(2).length) / 2), down = places.map((p) => ranksIn(p).length);
    const [left, right, deepest] = [Math.min(...across), Math.max(...across), Math.max(...down)];
    return across.map((x, i) => ({ x: (x - left) / (right - left), y: down[i] / deepest }));
  },
  grid({ nodes }) {
    const unit = (i, count) => (count > 1 ? i / (count - 1) : 0.5);
    return nodes.flatMap((node, row) => node.map((_, column) => ({ x: unit(column, node.length), y: unit(row, nodes.length) })));
  },
};

const onCircle = (turn) => ({ x: 0.5 + Math.sin(2 * Math.PI * turn) / 2, y: 0.5 - Math.cos(2 * Math.PI * turn) / 2 });

/** Sizes of a card with `chunks` cells of `cell` px, in one box or, where there is something to send besides, in two. */
function cardOf(chunks, boxes, cell) {
  const columns = chunks <= 5 ? chunks : chunks === 6 || chunks === 9 ? 3 : chunks === 10 ? 5 : 4, rows = Math.ceil(chunks / columns);
  const high = Math.round(cell * (rows === 1 ? 0.9 : 0.78)), head = cell < 11 ? 14 : 20, pad = cell < 9 ? 3 : 6;
  const second = columns * cell + (cell < 9 ? 4 : 10), whole = second * (boxes - 1) + columns * cell; // from one box to the next; all
  return { columns, wide: cell, high, head, pad, second, whole, width: Math.max(whole + 2 * pad, cell < 9 ? 22 : 30), height: head + rows * high + pad };
}

/** The largest cells with which no two cards come too close; places in px. */
export function arrange(result, width) {
  const narrow = width < 560, shape = shapeOf(result, narrow), chunks = result.start[0].length, boxes = result.values.collective === "all_to_all" ? 2 : 1;
  const units = PLACES[shape](result), gap = narrow ? 12 : 22;
  for (let cell = 26; ; cell -= cell > 12 ? 2 : 1) {
    const card = cardOf(chunks, boxes, cell), height = heightOf(shape, result, card, narrow && width), edge = shape === "grid" ? 26 : 10;
    const span = { x: width - card.width - 2 * edge, y: height - card.height - 2 * edge };
    const places = units.map(({ x, y }) => ({ x: edge + card.width / 2 + x * span.x, y: edge + card.height / 2 + y * span.y }));
    if (cell <= 4 || apart(places, card, cell < 10 ? Math.min(gap, cell) : gap)) return { shape, card, places, width, height, boxes, chunks };
  }
}

function heightOf(shape, { values: { ranks }, nodes }, card, narrow) {
  if (shape === "grid") return nodes.length * (card.height + 52);
  if (shape === "tree") return 20 + card.height + (ranks - 1).toString(2).length * (card.height + 46);
  return narrow ? narrow * (ranks > 10 ? 1.2 : 1.04) : ranks <= 8 ? 380 : 460;
}

function apart(places, card, gap) {
  return places.every((a, i) => places.slice(i + 1).every((b) => Math.abs(a.x - b.x) >= card.width + gap || Math.abs(a.y - b.y) >= card.height + gap));
}

// --- Curves ------------------------------------------------------------------------------------------------------------

const mix = (a, b, t) => ({ x: a.x + (b.x - a.x) * t, y: a.y + (b.y - a.y) * t });
const along = ([a, c, b], t) => mix(mix(a, c, t), mix(c, b, t), t);

/** A quadratic curve from `a` to `b`, to the left of the straight line by `bow` px, then towards `centre` by a share. */
function curve(a, b, bow, centre, share) {
  const length = Math.hypot(b.x - a.x, b.y - a.y) || 1, middle = mix(mix(a, b, 0.5), centre, share);
  return [a, { x: middle.x + ((b.y - a.y) / length) * bow * 2, y: middle.y - ((b.x - a.x) / length) * bow * 2 }, b];
}

/** The piece of a curve from t0 to t1. */
function piece([a, c, b], t0, t1) {
  return [along([a, c, b], t0), mix(mix(a, c, t0), mix(c, b, t0), t1), along([a, c, b], t1)];
}

/** Where a curve leaves the card at its start and where it meets the one at its end. */
function outside(line, from, to, card) {
  const within = (point, centre, by) => Math.abs(point.x - centre.x) < card.width / 2 + by && Math.abs(point.y - centre.y) < card.height / 2 + by;
  const points = Array.from({ length: 61 }, (_, i) => along(line, i / 60));
  const leaves = points.findIndex((point) => !within(point, from, 2)), meets = points.findLastIndex((point) => !within(point, to, 3));
  return leaves < meets && leaves >= 0 ? [leaves / 60, meets / 60] : [0.4, 0.6];
}

const px = (value) => value.toFixed(1);
const pathOf = ([a, c, b]) => `M${px(a.x)},${px(a.y)}Q${px(c.x)},${px(c.y)} ${px(b.x)},${px(b.y)}`;

/** A curve with a head at its end. */
function arrow([a, c, b]) {
  const angle = Math.atan2(b.y - c.y, b.x - c.x), corner = (turn) => `${px(b.x - 8 * Math.cos(angle + turn))},${px(b.y - 8 * Math.sin(angle + turn))}`;
  return { line: pathOf([a, c, { x: b.x - 4 * Math.cos(angle), y: b.y - 4 * Math.sin(angle) }]), head: `M${px(b.x)},${px(b.y)}L${corner(0.45)}L${corner(-0.45)}Z` };
}

/** The outline of a set of points that holds them all. */
function hull(points) {
  const sorted = [...points].sort((a, b) => a.x - b.x || a.y - b.y);
  const half = (all) => all.reduce((kept, p) => {
    while (kept.length > 1 && turn(kept.at(-2), kept.at(-1), p) <= 0) kept.pop();
    return [...kept, p];
  }, []).slice(0, -1);
  return [...half(sorted), ...half(sorted.reverse())];
}
const turn = (a, b, c) => (b.x - a.x) * (c.y - a.y) - (b.y - a.y) * (c.x - a.x);

// --- Small helpers -----------------------------------------------------------------------------------------------------

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

function set(el, key, value) {
  if (value === null || value === false) el.removeAttribute(key);
  else if (el.getAttribute(key) !== String(value)) el.setAttribute(key, value === true ? "" : value);
}

function button(text, action, attributes = {}) {
  const el = make("button", { type: "button", ...attributes }, text);
  el.addEventListener("click", action);
  return el;
}

/** As many children as `length`, made by `create`, the old ones kept. */
function keep(parent, length, create) {
  while (parent.children.length > length) parent.lastElementChild.remove();
  while (parent.children.length < length) parent.append(create(parent.children.length));
  return [...parent.children];
}

function tableOf(head, rows) {
  const row = (tag, texts, attributes) => make("tr", {}, ...texts.map((text) => make(tag, attributes, String(text))));
  return make("table", {}, make("thead", {}, row("th", head, { scope: "col" })), make("tbody", {}, ...rows.map((texts) => row("td", texts))));
}

const section = (title, ...children) => make("section", { "aria-label": title }, make("h3", { class: "pb-ca-heading" }, title), ...children);
const swatch = (kind, words) => make("span", {}, make("i", { class: `pb-ca-swatch pb-ca-is-${kind}` }), words);

let serial = 0;

// --- One control -------------------------------------------------------------------------------------------------------

class Control {
  /** `change(field, value)` tells what the reader did. */
  constructor(spec, id, change) {
    Object.assign(this, { spec, id: `${id}-${spec.field}`, value: undefined, tell: (value) => change(spec.field, value) });
    this.error = make("p", { class: "pb-ca-error", id: `${this.id}-error`, role: "alert", hidden: "" });
    const parts = spec.kind === "select" ? [this.select()] : this.number();
    const label = make("label", { for: this.id }, spec.label);
    this.row = make("div", { class: `pb-ca-row pb-ca-${spec.kind}`, "data-field": spec.field }, label, ...parts, this.error);
  }

  select() {
    this.list = make("select", { id: this.id, "aria-describedby": `${this.id}-error` });
    this.list.addEventListener("change", () => this.tell(this.list.value));
    this.offer(this.spec.choices);
    return this.list;
  }

  offer(choices) {
    const names = choices.map(([value]) => value).join();
    if (this.offered !== names) this.list.replaceChildren(...choices.map(([value, words]) => make("option", { value }, words)));
    this.offered = names;
  }

  number() {
    const { label, stops } = this.spec, described = { "aria-describedby": `${this.id}-error` };
    this.slider = make("input", { type: "range", min: 0, max: stops.length - 1, step: 1, "aria-label": `${label}, slider`, ...described });
    this.text = make("input", { type: "text", id: this.id, autocomplete: "off", spellcheck: "false", ...described });
    this.slider.addEventListener("input", () => this.tell(stops[this.slider.value]));
    this.text.addEventListener("input", () => this.typed());
    this.text.addEventListener("change", () => this.typed(0));
    this.text.addEventListener("keydown", (e) => this.key(e));
    return [this.slider, make("span", { class: "pb-ca-field" }, this.text)];
  }

  /** A value counts when the typing pauses, so that the 1 of 16 is not refused on the way. */
  typed(wait = 350) {
    clearTimeout(this.later);
    this.typing = wait > 0; // what Python answers meanwhile must not write over it
    if (wait) this.later = setTimeout(() => this.typed(0), wait);
    else if (this.text.value !== this.written(this.value)) this.tell(parse(this.text.value));
  }

  key(event) {
    if (event.key === "Enter") return this.typed(0);
    const by = { ArrowUp: 1, ArrowDown: -1 }[event.key], { stops } = this.spec;
    if (!by) return;
    event.preventDefault();
    this.typing = false;
    this.tell(stops[Math.min(stops.length - 1, Math.max(0, Number(this.slider.value) + by))]);
  }

  written(value) {
    return typeof value === "number" && this.spec.kind === "size" ? exactly(value) : String(value ?? "");
  }

  /** Show a value, `size` being the number that it means, whether it matters here, and why it was refused. */
  show(value, { size = value, error, idle }) {
    this.value = value;
    if (this.list) this.list.value = value;
    else this.showNumber(value, size);
    this.row.toggleAttribute("data-idle", idle);
    for (const el of this.row.querySelectorAll("input, select")) {
      el.disabled = idle;
      set(el, "aria-invalid", error ? "true" : null);
    }
    say(this.error, error ?? "");
    this.error.hidden = !error;
  }

  showNumber(value, size) {
    if (!this.typing && this.text.value !== this.written(value)) this.text.value = this.written(value);
    if (typeof size !== "number") return;
    const { stops } = this.spec, away = stops.map((stop) => Math.abs(Math.log((stop + 1) / (size + 1))));
    const nearest = away.indexOf(Math.min(...away));
    if (this.slider.value !== String(nearest)) this.slider.value = nearest;
    this.slider.style.setProperty("--at", `${(100 * nearest) / (stops.length - 1)}%`);
    set(this.slider, "aria-valuetext", this.written(size));
  }
}

class Settings {
  constructor(app) {
    this.app = app;
    this.all = app.constants.controls.map((spec) => new Control(spec, app.id, (field, value) => app.change(field, value)));
    this.general = make("p", { class: "pb-ca-error", role: "alert", hidden: "" });
    this.about = make("p", { class: "pb-ca-about" });
    const rows = make("div", { class: "pb-ca-controls" }, ...this.all.map((control) => control.row));
    this.root = make("section", { class: "pb-ca-settings", "aria-label": "Settings" }, rows, this.general, this.about);
  }

  update() {
    const { app } = this, { error, inputs, constants } = app, values = app.values();
    const { algorithms, result } = constants.collectives[values.collective] ?? { algorithms: [] };
    const idle = { root: !constants.rooted.includes(values.collective), ranks_per_node: values.cluster === "loopback", bytes: values.collective === "barrier" };
    for (const control of this.all) {
      const { field } = control.spec, size = typeof inputs[field] === "number" ? inputs[field] : app.result.values[field];
      if (field === "algorithm") control.offer(algorithms);
      control.row.hidden = field === "root" && idle.root;
      control.show(values[field], { size, error: error?.field === field ? error.message : null, idle: Boolean(idle[field]) });
    }
    const elsewhere = error && !this.all.some(({ spec }) => spec.field === error.field);
    say(this.general, elsewhere ? error.message : "");
    this.general.hidden = !elsewhere;
    const words = algorithms.find(([name]) => name === values.algorithm)?.[2];
    if (words) say(this.about, `${result} ${words}`);
  }
}

// --- The verdict: how long, how many bytes, how close to what the links can do ------------------------------------------

class Verdict {
  constructor(app) {
    this.app = app;
    this.time = make("span", { class: "pb-ca-time" });
    this.of = make("span", { class: "pb-ca-of" });
    this.stale = make("span", { class: "pb-ca-stale", hidden: "" }, "last valid");
    this.twin = make("p", { class: "pb-ca-twin" });
    this.numbers = make("ul", { class: "pb-ca-facts", "aria-label": "Numbers" });
    this.live = make("div", { class: "pb-unseen", "aria-live": "polite" });
    const line = make("p", { class: "pb-ca-line" }, this.time, this.of, this.stale);
    this.root = make("section", { class: "pb-ca-verdict", "aria-label": "Result" }, line, this.twin, this.live);
  }

  update() {
    const { app } = this, { result } = app, { values } = result;
    say(this.time, seconds(result.seconds));
    say(this.of, `${values.collective === "barrier" ? "" : `for ${exactly(values.bytes)} `}among ${values.ranks} ranks, by the α–β model`);
    this.stale.hidden = !app.error;
    this.root.toggleAttribute("data-stale", Boolean(app.error));
    say(this.twin, this.compared(result));
    this.list();
    clearTimeout(this.later);
    this.later = setTimeout(() => say(this.live, `${this.time.textContent} ${this.of.textContent}. ${this.twin.textContent}`), 600);
  }

  /** Against the naive twin; the naive one against the best. */
  compared({ values, algorithms, seconds: mine }) {
    const [naive] = algorithms, best = algorithms.filter((a) => a.seconds).reduce((a, b) => (b.seconds < a.seconds ? b : a));
    if (values.algorithm !== "naive") return `The naive algorithm takes ${seconds(naive.seconds)}${this.ratio(naive.seconds / mine)}.`;
    if (best === naive) return "This is the naive algorithm; no other is faster here.";
    const [, name] = this.app.constants.collectives[values.collective].algorithms.find(([algorithm]) => algorithm === best.algorithm);
    return `This is the naive algorithm; the fastest here, ${name}, takes ${seconds(best.seconds)}, 1/${rounded(mine / best.seconds)} of that.`;
  }

  ratio(times) {
    if (Math.abs(times - 1) < 0.005) return ", as long";
    return times > 1 ? `, ${rounded(times)} times as long` : `, only ${percent(times)} of that`;
  }

  list() {
    const { result } = this.app, facts = this.facts(result);
    const rows = keep(this.numbers, facts.length, () => make("li", {}, make("span"), make("b"), make("span")));
    rows.forEach((row, i) => facts[i].forEach((text, k) => say(row.children[k], text)));
  }

  /** Name, number, remark. */
  facts({ network: { intra, inter }, busy, sent, steps, closed_form: closed, seconds: time, ...result }) {
    const rate = (size) => `${bytes(size)}/s`, facts = [
      ["Busiest rank sends", bytes(Math.max(...sent)), this.counted(result.formula, Math.max(...sent))],
      ["Steps", String(steps.length), closed ? `time = ${closed}` : "time: message by message"],
      ["Ranks busy", percent(busy.reduce((a, b) => a + b, 0) / busy.length / time), "of the time, on average"],
    ];
    if (result.bus_bandwidth) {
      const factor = `${rounded(result.bus_bandwidth / result.algorithm_bandwidth)} K / time`.replace(/^1 /, "");
      const share = inter ? "hold it against a link's" : `${percent(result.bus_bandwidth / intra.bandwidth)} of a link's ${rate(intra.bandwidth)}`;
      facts.push(["Algorithm bandwidth", rate(result.algorithm_bandwidth), "K / time"], ["Bus bandwidth", rate(result.bus_bandwidth), `${factor}; ${share}`]);
    }
    const between = inter ? `between nodes ${seconds(inter.alpha)}, ${rate(inter.bandwidth)}` : "between any two ranks";
    return [...facts, ["Link: α, 1/β", `${seconds(intra.alpha)}, ${rate(intra.bandwidth)}`, between]];
  }

  /** The formula against what was counted. */
  counted(formula, most) {
    if (!formula) return "counted; no simple formula";
    const off = Math.abs(formula.bytes - most);
    return off < 0.5 ? `as ${formula.text} says, to the byte` : `${formula.text} is ${rounded(off)} bytes off: N does not divide K`;
  }
}

// --- The ranks and their messages --------------------------------------------------------------------------------------

class Stage {
  constructor(app) {
    this.app = app;
    [this.behind, this.lines, this.cards, this.pills] = ["behind", "lines", "cards", "pills"].map((name) => draw("g", { class: `pb-ca-${name}` }));
    this.svg = draw("svg", { role: "img" }, this.behind, this.lines, this.cards, this.pills);
    this.caption = make("p", { class: "pb-ca-caption", "aria-live": "polite" }, make("b"), " ", make("span"));
    this.reading = make("p", { class: "pb-ca-reading" });
    this.legend = make("p", { class: "pb-ca-legend" });
    const words = "Ranks and messages; arrow keys step, the space bar plays";
    this.box = make("div", { class: "pb-ca-stage", tabindex: "0", role: "group", "aria-label": words }, this.svg);
    this.root = make("section", { class: "pb-ca-scene", "aria-label": "Animation" }, this.caption, this.box);
    for (const type of ["pointermove", "pointerdown"]) this.box.addEventListener(type, (e) => this.point(e));
    this.box.addEventListener("pointerleave", () => (this.where = null, this.read()));
    this.sizes = new ResizeObserver(() => this.box.clientWidth !== this.place?.width && this.update());
    this.sizes.observe(this.box);
  }

  /** New messages, or a new width: cards anew. */
  update() {
    const { app } = this, { result } = app, width = this.box.clientWidth;
    if (!width) return;
    this.place = arrange(result, width);
    const { height, card, places, chunks, boxes } = this.place, small = card.wide < 14;
    set(this.svg, "viewBox", `0 0 ${width} ${px(height)}`);
    set(this.svg, "height", px(height));
    const looks = { font: card.wide < 9 ? "11px" : "13px", outline: small ? 1.5 : 2.5, cell: small ? "color-mix(in srgb, currentColor 30%, transparent)" : "var(--part)" };
    for (const [name, value] of Object.entries(looks)) this.root.style.setProperty(`--${name}`, value);
    this.leaves = new Map(result.steps.flatMap(({ messages }, step) => messages.map((m) => [`${m.from} ${m.first}`, step])));
    this.drawBehind();
    const all = keep(this.cards, places.length, () => draw("g", { class: "pb-ca-card" })), key = JSON.stringify([card, chunks, boxes, all.length]);
    if (this.drawn !== key) this.cells = all.map((el, rank) => this.drawCard(el, rank));
    this.drawn = key;
    all.forEach((el, rank) => (el.style.transform = `translate(${px(places[rank].x)}px, ${px(places[rank].y)}px)`));
    this.explain();
    this.where = null;
    this.show();
  }

  /** What lies behind the cards: the nodes where there are several, and the way of all messages in a tree or a star. */
  drawBehind() {
    const { nodes, links } = this.app.result, { places, shape } = this.place, several = nodes.length > 1 && nodes[0].length > 1;
    const outline = (node) => `M${hull(node.flatMap((rank) => this.corners(rank))).map((p) => `${px(p.x)},${px(p.y)}`).join("L")}Z`;
    const line = ([a, b]) => draw("line", { x1: px(places[a].x), y1: px(places[a].y), x2: px(places[b].x), y2: px(places[b].y) });
    const areas = several ? nodes.map((node) => draw("path", { d: outline(node) })) : [];
    const ways = shape === "tree" || shape === "star" ? links.map(line) : [];
    const names = several ? nodes.map((node, i) => this.nodeName(node, `node ${i}`)) : [];
    this.behind.replaceChildren(...areas, ...ways, ...names);
  }

  corners(rank) {
    const { card: { width, height }, places } = this.place, { x, y } = places[rank];
    return [-1, 1].flatMap((i) => [-1, 1].map((k) => ({ x: x + (i * width) / 2, y: y + (k * height) / 2 })));
  }

  nodeName(node, text) {
    const { places, card, shape } = this.place, { x, y } = places[shape === "grid" ? node.at(-1) : node[0]];
    const [at, anchor] = {
      circle: [mix(this.mean(node), this.centre(), 0.42), "middle"],
      grid: [{ x: x + card.width / 2, y: y - card.height / 2 - 6 }, "end"],
      tree: [{ x: x + card.width / 2 + 8, y: y + 4 }, "start"],
    }[shape];
    return draw("text", { x: px(at.x), y: px(at.y), "text-anchor": anchor }, text);
  }

  mean(ranks) {
    const sum = (axis) => ranks.reduce((all, rank) => all + this.place.places[rank][axis], 0) / ranks.length;
    return { x: sum("x"), y: sum("y") };
  }

  centre() {
    return { x: this.place.width / 2, y: this.place.height / 2 };
  }

  drawCard(el, rank) {
    const { card, boxes, chunks } = this.place, { width, height, head, pad } = card;
    const name = draw("text", { x: px(-width / 2 + pad + 1), y: px(-height / 2 + head - (head > 14 ? 6 : 4)) });
    const cells = Array.from({ length: boxes }, (_, box) => Array.from({ length: chunks }, (_, chunk) => this.drawCell(rank, chunk, box)));
    const back = draw("rect", { class: "pb-ca-back", x: px(-width / 2), y: px(-height / 2), width: px(width), height: px(height), rx: 5 });
    el.replaceChildren(back, name, ...cells.flat().map((cell) => cell.el));
    return { el, name, cells };
  }

  drawCell(rank, chunk, box) {
    const { wide, high } = this.place.card, corner = this.cellAt(chunk, box), [x, y, w, h] = [corner.x + 0.75, corner.y + 0.75, wide - 1.5, high - 1.5];
    const back = draw("rect", { class: "pb-ca-empty", x: px(x), y: px(y), width: px(w), height: px(h), rx: wide < 10 ? 1 : 2 });
    const fill = draw("path"), count = draw("text", { x: px(x + w / 2), "text-anchor": "middle" });
    return { el: draw("g", { class: "pb-ca-cell", "data-rank": rank, "data-chunk": chunk, "data-box": box }, fill, back, count), fill, count, x, y, w, h };
  }

  /** The upper left corner of a cell, from the middle of its card. Results are in the last box. */
  cellAt(chunk, box) {
    const { columns, wide, high, head, height, second, whole } = this.place.card;
    return { x: -whole / 2 + box * second + (chunk % columns) * wide, y: -height / 2 + head + Math.floor(chunk / columns) * high };
  }

  /** What is held at the place where the reader is, and the messages of the step that comes next. */
  show() {
    if (!this.cells) return;
    const { app } = this, { result, at } = app, step = result.steps[at], held = app.states[at];
    this.cells.forEach((card, rank) => {
      const idle = step?.idle.includes(rank) ?? false;
      card.el.toggleAttribute("data-idle", idle);
      say(card.name, this.place.card.width < 56 ? rank : `rank ${rank}${idle && this.place.card.width > 92 ? " · idle" : ""}`);
      card.cells.at(-1).forEach((cell, chunk) => this.fill(cell, held[rank][chunk], result.wanted[rank][chunk]));
      if (card.cells.length > 1) card.cells[0].forEach((cell, chunk) => this.fill(cell, this.toSend(rank, chunk) ? 1 << rank : 0, 0));
    });
    this.drawMessages(step);
    this.say(step);
    this.read();
  }

  /** Whether an all-to-all has still to send this chunk. */
  toSend(rank, chunk) {
    return this.leaves.get(`${rank} ${chunk}`) >= this.app.at;
  }

  /** One strip for each contribution that is summed in the chunk; the whole cell where nothing is summed, or all is. */
  fill(cell, bits, wanted) {
    const { sums, result } = this.app, state = !bits ? "none" : bits === wanted ? "done" : "part", look = `${bits} ${state} ${sums}`;
    if (cell.look === look) return;
    cell.look = look;
    const ones = ranksIn(bits), strips = sums && state === "part", numbered = sums && cell.w >= 17;
    const runs = strips ? runsOf(ones) : bits ? [[0, result.values.ranks - 1]] : [], one = cell.w / result.values.ranks;
    const [y, h] = strips && numbered ? [cell.y + 0.62 * cell.h, 0.38 * cell.h] : [cell.y, cell.h]; // below the number
    const strip = ([first, last]) => `M${px(cell.x + first * one)},${px(y)}h${px((last + 1 - first) * one)}v${px(h)}h${px((first - last - 1) * one)}z`;
    cell.fill.setAttribute("d", runs.map(strip).join(""));
    set(cell.el, "data-state", state);
    say(cell.count, numbered && bits ? ones.length : "");
    cell.count.setAttribute("y", px(cell.y + cell.h * (strips ? 0.31 : 0.5) + 4));
  }

  drawMessages(step) {
    const messages = step?.messages ?? [], pairs = new Map();
    for (const { el } of this.cells.flatMap((card) => card.cells.flat())) set(el, "data-moves", null);
    this.moving = messages.map((message) => {
      const pair = `${message.from} ${message.to}`, nth = pairs.get(pair) ?? 0;
      pairs.set(pair, nth + 1);
      this.mark(message);
      return { message, ...this.route(message, nth) };
    });
    const far = ({ from, to }) => (this.app.together(from, to) ? {} : { "data-far": "" });
    this.lines.replaceChildren(...this.moving.flatMap(({ message, arrow: { line, head } }) => [
      draw("path", { class: "pb-ca-arrow", d: line, ...far(message) }), draw("path", { class: "pb-ca-head", d: head })]));
    this.pills.replaceChildren(...this.moving.map((m) => (m.pill = this.pill(m))));
    this.frame();
  }

  /** Outline the chunks that a message takes, and the places where they land. */
  mark({ from, to, first, last, into }) {
    for (let i = 0; i < last - first; i++) {
      this.cells[from].cells[0][first + i].el.setAttribute("data-moves", "out");
      this.cells[to].cells.at(-1)[into + i].el.setAttribute("data-moves", "in");
    }
  }

  /** The way from cell to cell, and the arrow from card to card. */
  route({ from, to, first, last, into }, nth) {
    const { places, card, boxes } = this.place, middle = (rank, one, box) => {
      const [a, b] = [this.cellAt(one, box), this.cellAt(one + last - first - 1, box)];
      return { x: places[rank].x + (a.x + b.x + card.wide) / 2, y: places[rank].y + (a.y + b.y + card.high) / 2 };
    };
    const { bow, share } = this.bend(from, to), line = curve(places[from], places[to], bow + 8 * nth, this.centre(), share);
    const seen = piece(line, ...outside(line, places[from], places[to], card)), box = boxes - 1, flight = [middle(from, first, 0), line[1], middle(to, into, box)];
    const room = Math.hypot(seen[2].x - seen[0].x, seen[2].y - seen[0].y);
    return { arrow: arrow(seen), room, rest: along(seen, share ? 0.3 : 0.48), flight };
  }

  /** How far a message's way keeps to the left of the straight line, in px, and by what share it tends to the middle. */
  bend(from, to) {
    const { places, shape, card } = this.place, a = places[from], b = places[to], length = Math.hypot(b.x - a.x, b.y - a.y);
    const beside = [1, places.length - 1].includes(Math.abs(from - to)), around = (a.y === b.y ? card.height : card.width) / 2 + 14;
    if (shape === "grid") return { bow: length > 1.6 * this.nearest(from, to) ? around : 4, share: 0 };
    if (shape === "circle" && !beside) return { bow: Math.min(10, length * 0.03), share: 0.22 };
    return { bow: { circle: Math.min(22, length * 0.1), tree: 5, star: 0 }[shape], share: 0 };
  }

  /** From one rank of a grid to the next, in the direction of a message. */
  nearest(from, to) {
    const { places } = this.place, inNode = this.app.result.nodes[0].length;
    return places[from].y === places[to].y ? places[1].x - places[0].x : places[inNode].y - places[0].y;
  }

  /** The chunks that are on their way; a mere mark where the arrow is too short for their numbers. */
  pill({ message, room }) {
    const small = this.place.card.wide < 11, text = this.app.result.values.collective === "barrier" ? "" : chunksOf(message);
    const wide = text.length * (small ? 6 : 7.5) + (small ? 7 : 11), [width, height] = !text || wide > room + 6 ? [9, 9] : [wide, small ? 14 : 19];
    const back = draw("rect", { x: px(-width / 2), y: -height / 2, width: px(width), height, rx: small ? 3 : 4 });
    return draw("g", { class: "pb-ca-pill" }, back, draw("text", { y: small ? 4 : 5, "text-anchor": "middle" }, width === 9 ? "" : text));
  }

  /** Messages on their way: each as far as the model has it at this moment of the step. */
  frame() {
    const { app } = this, step = app.result.steps[app.at];
    if (!step || !this.moving) return;
    const now = step.start + app.progress * (step.end - step.start);
    for (const { message: m, pill, rest, flight } of this.moving) {
      const at = app.moving ? along(flight, Math.min(1, Math.max(0, (now - m.start) / (m.end - m.start)))) : rest;
      pill.setAttribute("transform", `translate(${px(at.x)},${px(at.y)})`);
    }
  }

  say(step) {
    const { app } = this, { result, at } = app, { collective } = result.values, [title, words] = this.caption.children;
    const text = step ? sentence(step, collective) : `${app.constants.collectives[collective].result} ${seconds(result.seconds)} have passed.`;
    set(this.caption, "aria-live", app.playing ? "off" : "polite");
    say(title, step ? `Step ${at + 1} of ${result.steps.length}:` : "Done:");
    say(words, text);
    set(this.svg, "aria-label", `${title.textContent} ${text}`);
  }

  explain() {
    const two = this.place.boxes > 1, part = this.app.sums ? "number and strips: the ranks whose parts are summed" : two ? "left: still to be sent" : "held on the way";
    const items = [["part", part], ["done", two ? "right: arrived" : "finished"], ["wire", "on its way: number of the chunk"]];
    if (this.app.result.network.inter) items.push(["far", "between nodes"]);
    this.legend.replaceChildren(...items.map(([kind, words]) => swatch(kind, words)));
  }

  point(event) {
    this.where = event.target.closest?.(".pb-ca-cell")?.dataset;
    this.read();
  }

  /** Say what is in the cell under the pointer. */
  read() {
    const { app, where } = this, { values, wanted } = app.result;
    if (!where) return say(this.reading, "Point at a chunk to read what is in it.");
    const { rank, chunk, box } = where, two = this.place.boxes > 1;
    const waits = rank === chunk ? "its own, in place" : this.toSend(+rank, +chunk) ? "still to be sent" : "sent";
    if (two && box === "0") return say(this.reading, `Rank ${rank}, chunk for rank ${chunk}: ${waits}.`);
    const name = values.collective === "barrier" ? "" : two ? `, chunk from rank ${chunk}:` : `, chunk ${chunk}:`;
    say(this.reading, `Rank ${rank}${name} ${contents(app.states[app.at][rank][chunk], wanted[rank][chunk], values)}.`);
  }
}

// --- Playing -------------------------------------------------------------------------------------------------------------

const STEP = 1200, SPEEDS = [[0.5, "½×"], [1, "1×"], [2, "2×"], [4, "4×"]]; // ms
const ICONS = {
  back: "M11,3L5,8L11,13Z M3,3h1.8v10h-1.8z",
  forward: "M5,3L11,8L5,13Z M11.2,3h1.8v10h-1.8z",
  play: "M4,2.5L13,8L4,13.5Z",
  pause: "M4,3h3v10h-3z M9,3h3v10h-3z",
};

class Player {
  constructor(app) {
    this.app = app;
    this.back = this.icon("back", "Step back", () => app.back());
    this.forward = this.icon("forward", "Step forward", () => app.forward());
    this.toggle = this.icon("play", "Play", () => app.toggle());
    this.slider = make("input", { type: "range", min: 0, step: 1, "aria-label": "Step", class: "pb-ca-scrub" });
    this.slider.addEventListener("input", () => app.jump(Number(this.slider.value)));
    const speeds = make("span", { class: "pb-options pb-ca-speed", role: "radiogroup", "aria-label": "Speed" }, ...SPEEDS.map((s) => this.speed(...s)));
    this.root = make("div", { class: "pb-ca-player" }, this.back, this.toggle, this.forward, this.slider, speeds);
  }

  icon(name, label, action) {
    const el = button("", action, { "aria-label": label, title: label, class: `pb-ca-key pb-ca-${name}` });
    el.append(draw("svg", { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" }, draw("path", { d: ICONS[name] })));
    return el;
  }

  speed(speed, words) {
    const radio = make("input", { type: "radio", name: `${this.app.id}-speed`, value: speed, class: "pb-unseen", ...(speed === 1 ? { checked: "" } : {}) });
    radio.addEventListener("change", () => (this.app.speed = speed));
    return make("label", {}, radio, make("span", {}, words));
  }

  show() {
    const { app } = this, steps = app.result.steps.length, name = app.playing ? "Pause" : "Play";
    set(this.slider, "max", steps);
    if (this.slider.value !== String(app.at)) this.slider.value = app.at;
    set(this.slider, "aria-valuetext", app.at < steps ? `step ${app.at + 1} of ${steps}` : "done");
    this.slider.style.setProperty("--at", `${(100 * (app.at + app.progress)) / steps}%`);
    set(this.toggle, "aria-label", name);
    set(this.toggle, "title", name);
    set(this.toggle.querySelector("path"), "d", ICONS[app.playing ? "pause" : "play"]);
    this.back.disabled = app.at === 0 && !app.moving;
    this.forward.disabled = app.at === steps;
  }
}

// --- Time: who sends and who receives when --------------------------------------------------------------------------------

const STRIP = { left: 30, right: 46, top: 20, bottom: 20 };

class Strip {
  constructor(app) {
    this.app = app;
    this.band = draw("rect", { class: "pb-ca-band" });
    this.cursor = draw("line", { class: "pb-ca-cursor" });
    [this.rows, this.bars, this.axis] = ["rows", "bars", "axis"].map((name) => draw("g", { class: `pb-ca-${name}` }));
    this.svg = draw("svg", { role: "img" }, this.band, this.rows, this.bars, this.axis, this.cursor);
    this.box = make("div", { class: "pb-ca-strip" }, this.svg);
    const items = [["wire", "sends"], ["part", "receives"], ["wait", "latency α before the bytes flow"], ["idle", "idle"]];
    const legend = make("p", { class: "pb-ca-legend" }, ...items.map((item) => swatch(...item)));
    this.root = section("Who is busy, who waits", this.box, legend);
    this.svg.addEventListener("click", (e) => this.click(e));
    this.sizes = new ResizeObserver(() => this.box.clientWidth !== this.width && this.update());
    this.sizes.observe(this.box);
  }

  update() {
    const { app } = this, { result } = app, { ranks } = result.values;
    this.width = this.box.clientWidth;
    if (!this.width) return;
    this.high = ranks > 8 ? 14 : 20;
    this.height = STRIP.top + ranks * this.high + STRIP.bottom;
    this.scale = (this.width - STRIP.left - STRIP.right) / result.seconds;
    set(this.svg, "viewBox", `0 0 ${this.width} ${this.height}`);
    set(this.svg, "height", this.height);
    set(this.svg, "aria-label", result.busy.map((busy, rank) => `Rank ${rank} is busy ${percent(busy / result.seconds)} of the time`).join(". "));
    this.drawRows();
    this.bars.replaceChildren(...result.steps.map((step) => this.step(step)));
    this.drawAxis();
    this.show();
  }

  x(time) {
    return STRIP.left + time * this.scale;
  }

  drawRows() {
    const { result } = this.app, middle = (rank) => STRIP.top + (rank + 0.5) * this.high + 4, width = this.width - STRIP.left - STRIP.right;
    this.rows.replaceChildren(...result.busy.flatMap((busy, rank) => [
      draw("rect", { class: "pb-ca-track", x: STRIP.left, y: STRIP.top + rank * this.high + 1, width: px(width), height: this.high - 2 }),
      draw("text", { x: STRIP.left - 6, y: middle(rank), "text-anchor": "end" }, rank),
      draw("text", { x: this.width, y: middle(rank), "text-anchor": "end" }, percent(busy / result.seconds))]));
  }

  /** The messages of one step: sent in the upper half of a rank's row, received in the lower; a thin line while α passes. */
  step({ messages }) {
    const { intra, inter } = this.app.result.network;
    const half = (this.high - 4) / 2, paths = { sends: "", receives: "", sendsWait: "", receivesWait: "" };
    const box = (x0, x1, y, height) => `M${x0.toFixed(2)},${px(y)}H${Math.max(x1, x0 + 0.2).toFixed(2)}v${px(height)}H${x0.toFixed(2)}z`;
    for (const m of messages) {
      const { alpha } = this.app.together(m.from, m.to) ? intra : inter;
      const [x0, x1, x2] = [m.start, Math.min(m.end, m.start + alpha), m.end].map((time) => this.x(time));
      const cut = Math.min(0.75, (x2 - x0) / 4); // so that one message does not run into the next
      for (const [rank, kind, shift] of [[m.from, "sends", 0], [m.to, "receives", half]]) {
        const y = STRIP.top + rank * this.high + 2 + shift;
        paths[kind] += box(x1, x2 - cut, y + 0.5, half - 1);
        paths[`${kind}Wait`] += box(x0 + cut, x1, y + half / 2 - 1, 2);
      }
    }
    return draw("g", {}, ...Object.entries(paths).map(([kind, d]) => draw("path", { class: `pb-ca-${kind}`, d })));
  }

  drawAxis() {
    const { result } = this.app, text = (x, y, anchor, words) => draw("text", { x: px(x), y, "text-anchor": anchor }, words), above = STRIP.top - 7, below = this.height - 5;
    const rough = result.seconds / Math.max(2, (this.width - STRIP.left - STRIP.right) / 90), power = 10 ** Math.floor(Math.log10(rough));
    const every = [1, 2, 5, 10].find((m) => m * power >= rough) * power, ticks = Math.floor(result.seconds / every - 0.35); // the last leaves room for the end
    const numbers = []; // of the steps, as far as there is room for them
    result.steps.forEach((step, i) => {
      const x = this.x((step.start + step.end) / 2);
      if (x - (numbers.at(-1)?.x ?? 0) >= 20) numbers.push({ x, i });
    });
    this.axis.replaceChildren(text(STRIP.left, below, "start", "0"), text(this.x(result.seconds), below, "end", seconds(result.seconds)), text(this.width, above, "end", "busy"),
      ...Array.from({ length: Math.max(0, ticks) }, (_, i) => text(this.x((i + 1) * every), below, "middle", seconds((i + 1) * every))),
      ...numbers.map(({ x, i }) => text(x, above, "middle", i + 1)));
  }

  show() {
    const { app } = this, { result, at } = app, step = result.steps[at];
    if (!this.width) return;
    [...this.bars.children].forEach((el, i) => set(el, "data-when", i < at ? "past" : i === at ? "now" : "next"));
    set(this.band, "visibility", step ? "visible" : "hidden");
    const { start, end } = step ?? { start: 0, end: 0 }, box = { x: this.x(start), y: STRIP.top - 1, width: (end - start) * this.scale, height: this.height - STRIP.top - STRIP.bottom + 2 };
    for (const [key, value] of Object.entries(box)) this.band.setAttribute(key, px(value));
    this.frame();
  }

  frame() {
    const { app } = this, { result } = app, step = result.steps[app.at];
    const x = px(this.x(step ? step.start + app.progress * (step.end - step.start) : result.seconds));
    for (const [key, value] of [["x1", x], ["x2", x], ["y1", STRIP.top - 3], ["y2", this.height - STRIP.bottom + 3]]) this.cursor.setAttribute(key, value);
  }

  click(event) {
    const { result } = this.app, time = (event.clientX - this.svg.getBoundingClientRect().left - STRIP.left) / this.scale;
    const found = result.steps.findIndex((step) => time >= step.start && time < step.end);
    if (found >= 0) this.app.jump(found);
  }
}

// --- The other algorithms ---------------------------------------------------------------------------------------------------

class Rivals {
  constructor(app) {
    this.app = app;
    this.list = make("ul", { class: "pb-ca-rivals" });
    this.root = section("The same with other algorithms", this.list);
  }

  update() {
    const { app } = this, { result } = app, { algorithms, values } = result, names = app.constants.collectives[values.collective].algorithms;
    const longest = Math.max(...algorithms.map((a) => a.seconds ?? 0));
    keep(this.list, algorithms.length, () => this.row()).forEach((row, i) => {
      const { algorithm, seconds: time, steps, sent, error } = algorithms[i], [choose, bar, numbers] = row.children;
      row.algorithm = algorithm;
      say(choose, names.find(([name]) => name === algorithm)[1]);
      set(choose, "aria-pressed", String(algorithm === values.algorithm));
      bar.firstChild.style.width = `${(100 * (time ?? 0)) / longest}%`;
      say(numbers, error ?? `${seconds(time)}, ${plural(steps, "step")}, ${bytes(sent)} sent`);
    });
  }

  row() {
    const choose = button("", () => this.app.change("algorithm", row.algorithm));
    const row = make("li", {}, choose, make("span", { class: "pb-ca-bar", "aria-hidden": "true" }, make("i")), make("span", { class: "pb-ca-numbers" }));
    return row;
  }
}

// --- Bytes of every link --------------------------------------------------------------------------------------------------

class Traffic {
  constructor(app) {
    this.app = app;
    this.table = make("table", { class: "pb-ca-traffic" });
    this.note = make("p", { class: "pb-ca-words" });
    this.root = section("Bytes from each rank to each other", make("div", { class: "pb-ca-links" }, make("div", { class: "pb-ca-wide" }, this.table), this.note));
  }

  update() {
    const { result } = this.app, { links, nodes } = result, { ranks } = result.values, key = `${ranks} ${nodes[0].length}`;
    if (this.key !== key) this.build(ranks, new Set(nodes.slice(1).map((node) => node[0])));
    this.key = key;
    const most = Math.max(...links.map(([, , size]) => size)), sizes = new Map(links.map(([from, to, size]) => [`${from} ${to}`, size]));
    for (const [link, el] of this.cells) {
      const size = sizes.get(link) ?? 0, text = bytes(size), [from, to] = link.split(" ");
      say(el.firstChild, text);
      set(el, "title", `rank ${from} to rank ${to}: ${text}`);
      set(el, "data-kind", size ? "some" : "none");
      el.style.setProperty("--share", Math.sqrt(size / most).toFixed(3));
    }
    this.sums.forEach((el, rank) => say(el, bytes(result.sent[rank])));
    this.describe(result);
    this.show();
  }

  /** An empty table: a row for each sender, a column for each receiver, a gap where a node ends. */
  build(ranks, edge) {
    const roomy = ranks <= (this.root.clientWidth < 560 ? 4 : 6), all = [...Array(ranks).keys()], gap = (rank) => (edge.has(rank) ? { class: "pb-ca-edge" } : {});
    this.cells = new Map();
    this.sums = all.map(() => make("td", { class: "pb-ca-sum" }));
    const cell = (from, to) => {
      if (from === to) return make("td", gap(to));
      const el = make("td", { "data-link": `${from} ${to}`, ...gap(to) }, make("span", { class: roomy ? "" : "pb-unseen" }));
      this.cells.set(el.dataset.link, el);
      return el;
    };
    const head = (text, scope) => make("th", { scope }, text), corner = make("td", {}, make("span", { class: "pb-ca-corner" }, roomy ? "from ↓ to →" : "↓ →"));
    const rows = all.map((from) => make("tr", gap(from), head(String(from), "row"), ...all.map((to) => cell(from, to)), this.sums[from]));
    set(this.table, "data-roomy", String(roomy));
    this.table.replaceChildren(make("thead", {}, make("tr", {}, corner, ...all.map((to) => head(String(to), "col")), head("sent", "col"))), make("tbody", {}, ...rows));
  }

  describe({ links, sent, received, network, values: { ranks } }) {
    const total = (some) => bytes(some.reduce((sum, [, , size]) => sum + size, 0)), far = links.filter(([a, b]) => !this.app.together(a, b));
    const all = `${links.length} of ${ranks * (ranks - 1)} links carry ${total(links)} in all${network.inter ? `, ${total(far)} of it between nodes` : ""}.`;
    say(this.note, `${all} The busiest rank sends ${bytes(Math.max(...sent))} and receives ${bytes(Math.max(...received))}.`);
  }

  show() {
    const { result, at } = this.app, now = new Set((result.steps[at]?.messages ?? []).map((m) => `${m.from} ${m.to}`));
    for (const [link, el] of this.cells) el.toggleAttribute("data-now", now.has(link));
  }
}

// --- The same in tables, and what to take along ------------------------------------------------------------------------------

class Details {
  constructor(app) {
    this.app = app;
    [this.messages, this.holdings] = [this.fold("Messages of this step"), this.fold("What every rank holds now")];
    this.code = make("code", { tabindex: "0" });
    this.said = make("span", { class: "pb-ca-said", role: "status" });
    const copy = button("Copy", () => this.clip(this.code.textContent, "Code copied"), { "aria-label": "Copy code" });
    this.link = button("Copy link", () => this.clip(app.model.get("link"), "Link copied"), { hidden: "" });
    const save = button("Save JSON", () => this.save(), { title: "Inputs and outputs, every message with its times" });
    const tools = make("div", { class: "pb-ca-tools" }, this.link, save, this.said);
    this.root = make("div", { class: "pb-ca-details" }, this.messages.el, this.holdings.el, section("The same messages in Python", make("div", { class: "pb-ca-code" }, this.code, copy), tools));
  }

  fold(title) {
    const box = make("div", { class: "pb-scroll", tabindex: "0", role: "group", "aria-label": title });
    const el = make("details", { class: "pb-ca-fold" }, make("summary", {}, title), box);
    el.addEventListener("toggle", () => this.show());
    return { el, box };
  }

  update() {
    say(this.code, this.app.result.code);
    this.link.hidden = !this.app.model.get("link");
    this.show();
  }

  show() {
    const { app } = this, { result, at } = app, step = result.steps[at];
    if (this.messages.el.open) {
      const rows = (step?.messages ?? []).map((m) => [m.from, m.to, chunksOf(m), exactly(m.bytes), m.adds ? "added" : "kept", `${seconds(m.start)} to ${seconds(m.end)}`]);
      this.messages.box.replaceChildren(rows.length ? tableOf(["from", "to", "chunks", "bytes", "there", "time"], rows) : make("p", {}, "All messages have arrived."));
    }
    if (this.holdings.el.open) {
      const held = app.states[at], names = held[0].map((_, chunk) => (result.values.collective === "barrier" ? "heard of" : `chunk ${chunk}`));
      this.holdings.box.replaceChildren(tableOf(["rank", ...names], held.map((row, rank) => [rank, ...row.map((bits) => ranksIn(bits).join("+") || "–")])));
    }
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

  save() {
    const { inputs, result } = this.app, text = JSON.stringify({ inputs, outputs: result }, null, 1);
    const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    make("a", { href: url, download: "collective.json" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
    this.tell("collective.json saved");
  }
}

// --- The animator ------------------------------------------------------------------------------------------------------------

/** Collectives of which a chunk holds the parts of several ranks. */
const SUMS = new Set(["reduce", "reduce_scatter", "all_reduce", "barrier"]);

class Animator {
  constructor(model, el) {
    Object.assign(this, { model, id: `pb-ca-${++serial}`, constants: model.get("constants"), at: 0, progress: 0, speed: 1, moving: false, playing: false });
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    this.status = make("p", { class: "pb-ca-status", role: "status" });
    this.take();
    this.settings = new Settings(this);
    [this.verdict, this.stage, this.player, this.strip] = [new Verdict(this), new Stage(this), new Player(this), new Strip(this)];
    [this.rivals, this.traffic, this.details] = [new Rivals(this), new Traffic(this), new Details(this)];
    this.build(el);
    this.refresh();
    this.handlers = { outputs: () => this.arrived(), inputs: () => this.told(), status: () => this.updateStatus(), link: () => this.details.update() };
    for (const [trait, handler] of Object.entries(this.handlers)) model.on(`change:${trait}`, handler);
  }

  build(el) {
    const { verdict, stage, player } = this;
    stage.root.append(player.root, stage.legend, stage.reading);
    const pair = make("div", { class: "pb-ca-pair" }, this.rivals.root, this.traffic.root);
    this.root = make("div", { class: "pb-w pb-form pb-ca", role: "group", "aria-label": "Collectives animator" },
      this.settings.root, this.status, verdict.root, stage.root, verdict.numbers, this.strip.root, pair, this.details.root);
    this.root.addEventListener("keydown", (e) => this.key(e));
    el.replaceChildren(this.root);
    this.updateStatus();
  }

  // --- what is known

  get inputs() {
    return this.model.get("inputs");
  }

  /** What the controls show: what the reader has set over what follows from it. */
  values() {
    const { defaults } = this.constants, { inputs } = this, cluster = inputs.cluster ?? defaults.cluster;
    const base = { ...defaults, algorithm: defaults.algorithm[inputs.collective], ranks_per_node: Math.min(16, defaults.ranks_per_node[cluster] ?? 16) };
    return { ...base, ...inputs };
  }

  /** Whether two ranks are in one node. */
  together(a, b) {
    const inNode = this.result.nodes[0].length;
    return Math.floor(a / inNode) === Math.floor(b / inNode);
  }

  take() {
    const outputs = this.model.get("outputs");
    this.error = outputs.error;
    if (outputs.error) return;
    const { values, steps } = outputs, plan = [values.collective, values.algorithm, values.ranks, values.root, steps.length].join();
    Object.assign(this, { result: outputs, states: states(outputs), sums: SUMS.has(values.collective) });
    if (this.plan === plan) return;
    this.plan = plan;
    this.stop();
    this.at = this.asked();
  }

  /** Where the inputs say that the reader is. */
  asked() {
    const step = Number(this.inputs.step ?? 0);
    return Math.min(this.result.steps.length, Math.max(0, Number.isInteger(step) ? step : 0));
  }

  // --- what the reader sets

  /** Set one field; what equals the default is left out, so that links stay short. Another plan starts at its beginning. */
  change(field, value) {
    const { [field]: _, ...inputs } = this.inputs, { defaults, collectives } = this.constants;
    if (field === "collective" && !collectives[value].algorithms.some(([name]) => name === inputs.algorithm)) delete inputs.algorithm;
    if (!["bytes", "cluster", "ranks_per_node"].includes(field)) delete inputs.step;
    const base = { ...defaults, algorithm: defaults.algorithm[inputs.collective], ranks_per_node: defaults.ranks_per_node[inputs.cluster ?? defaults.cluster] }[field];
    if (field === "collective" || value !== base) inputs[field] = value;
    this.send(inputs);
    this.model.save_changes();
  }

  send(inputs) {
    this.own = true;
    this.model.set("inputs", inputs);
    this.own = false;
    this.settings.update();
  }

  /** Inputs that come from elsewhere, the address or another view, may say another step. */
  told() {
    this.settings.update();
    if (this.own || this.moving || this.asked() === this.at) return;
    this.at = this.asked();
    this.show();
  }

  arrived() {
    this.take();
    this.at = Math.min(this.at, this.result.steps.length);
    this.refresh();
  }

  refresh() {
    for (const part of [this.settings, this.verdict, this.stage, this.strip, this.rivals, this.traffic, this.details]) part.update();
    this.player.show();
    this.root.toggleAttribute("data-stale", Boolean(this.error));
  }

  // --- where the reader is

  show() {
    for (const part of [this.stage, this.player, this.strip, this.traffic, this.details]) part.show();
  }

  jump(at) {
    this.stop();
    this.at = at;
    this.rest();
  }

  back() {
    this.jump(Math.max(0, this.moving ? this.at : this.at - 1));
  }

  forward() {
    if (this.at >= this.result.steps.length) return;
    if (this.still.matches) return this.jump(this.at + 1);
    const next = this.moving ? this.at + 1 : this.at; // a step that is under way is finished at once
    if (next >= this.result.steps.length) return this.jump(next);
    this.stop();
    this.at = next;
    this.run(next + 1);
  }

  toggle() {
    if (this.playing) return this.pause();
    if (this.at >= this.result.steps.length) this.at = 0;
    this.playing = true;
    if (this.still.matches) this.tickStill();
    else this.run(this.result.steps.length);
  }

  pause() {
    this.stop();
    this.rest();
  }

  /** Let messages move until the reader is at `until`. */
  run(until) {
    Object.assign(this, { until, moving: true, then: performance.now() });
    cancelAnimationFrame(this.next);
    this.show();
    this.next = requestAnimationFrame((now) => this.tick(now));
  }

  tick(now) {
    this.progress += (Math.max(0, now - this.then) / STEP) * this.speed;
    this.then = now;
    if (this.progress >= 1) {
      Object.assign(this, { at: this.at + 1, progress: 0 });
      if (this.at >= Math.min(this.until, this.result.steps.length)) return this.pause();
      this.show();
    } else this.frame();
    this.next = requestAnimationFrame((later) => this.tick(later));
  }

  frame() {
    this.stage.frame();
    this.strip.frame();
    this.player.show();
  }

  /** Without motion, playing goes from one picture to the next. */
  tickStill() {
    this.show();
    this.later = setTimeout(() => {
      this.at = Math.min(this.at + 1, this.result.steps.length);
      this.at === this.result.steps.length ? this.pause() : this.tickStill();
    }, STEP / this.speed);
  }

  stop() {
    cancelAnimationFrame(this.next);
    clearTimeout(this.later);
    Object.assign(this, { moving: false, playing: false, progress: 0 });
  }

  /** Draw what is at rest, and remember the place for the link; Python need not hear of it. */
  rest() {
    const { step, ...others } = this.inputs;
    this.send(this.at ? { ...others, step: this.at } : others);
    this.show();
  }

  key(event) {
    const { target, key } = event, typing = target.matches("select, input:not(.pb-ca-scrub)") || (target.matches("input") && key !== " ");
    const pressing = target.matches("button, summary");
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || typing) return;
    const end = () => this.jump(this.result.steps.length), start = () => this.jump(0);
    const action = { ArrowRight: () => this.forward(), ArrowLeft: () => this.back(), Home: start, End: end, " ": () => this.toggle() }[key];
    if (!action || (key === " " && pressing) || target.closest(".pb-scroll")) return;
    event.preventDefault();
    action();
  }

  updateStatus() {
    const status = this.model.get("status") ?? "";
    clearTimeout(this.waiting);
    const text = status.startsWith("failed") ? `Python could not be started${status.slice(6)}` : { starting: "starting Python …", busy: "computing …" }[status] ?? "";
    // An answer takes milliseconds: only a wait that a reader would notice is worth a word.
    status === "busy" ? (this.waiting = setTimeout(() => say(this.status, text), 300)) : say(this.status, text);
  }

  close() {
    this.stop();
    for (const [trait, handler] of Object.entries(this.handlers)) this.model.off(`change:${trait}`, handler);
    for (const timer of [this.waiting, this.verdict.later, this.details.later, ...this.settings.all.map((c) => c.later)]) clearTimeout(timer);
    this.stage.sizes.disconnect();
    this.strip.sizes.disconnect();
  }
}

export default {
  render({ model, el }) {
    const animator = new Animator(model, el);
    return () => animator.close();
  },
};
