// A trace as arrays, and what can be said of it without drawing it. Times are in µs.

export const MIN_WINDOW = 0.02; // µs

/** Columns to arrays in µs; `row` of each event is its lane's row at its nesting depth. */
export function decode(data) {
  const { name, lane, start, duration, category, args } = data.events;
  const n = name.length,
    begin = new Float64Array(n),
    end = new Float64Array(n);
  for (let i = 0, at = 0; i < n; i++) {
    at += start[i];
    begin[i] = at / 1000;
    end[i] = (at + duration[i]) / 1000;
  }
  const trace = { ...data, n, name, lane, begin, end, category, argsOf: args, low: n ? begin[0] : 0 };
  trace.high = n
    ? Math.max(
        trace.low + MIN_WINDOW,
        end.reduce((a, b) => Math.max(a, b), 0),
      )
    : 1;
  trace.lower = data.names.map((text) => text.toLowerCase());
  return Object.assign(trace, arrange(trace), {
    own: selfTimes(trace, trace.low, trace.high),
    ...neighbours(data.links),
  });
}

/** Nested events go one row down. Within a row events do not overlap and are sorted by start. */
function arrange(trace) {
  const open = trace.lanes.map(() => []),
    rowsOf = trace.lanes.map(() => []),
    depth = new Uint16Array(trace.n);
  for (let i = 0; i < trace.n; i++) {
    const stack = open[trace.lane[i]];
    while (stack.length && trace.end[stack.at(-1)] <= trace.begin[i]) stack.pop();
    depth[i] = stack.length;
    stack.push(i);
    (rowsOf[trace.lane[i]][depth[i]] ??= []).push(i);
  }
  return { depth, rowsOf };
}

/** Time of each event within [low, high] that no nested event covers: every moment counts once per lane. */
function selfTimes(trace, low, high) {
  const own = new Float64Array(trace.n),
    open = trace.lanes.map(() => []);
  const clip = (a, b) => Math.max(0, Math.min(b, high) - Math.max(a, low));
  for (let i = 0; i < trace.n; i++) {
    const stack = open[trace.lane[i]];
    while (stack.length && trace.end[stack.at(-1)] <= trace.begin[i]) stack.pop();
    own[i] += clip(trace.begin[i], trace.end[i]);
    if (stack.length) own[stack.at(-1)] -= clip(trace.begin[i], Math.min(trace.end[i], trace.end[stack.at(-1)]));
    stack.push(i);
  }
  return own;
}

function neighbours([from, to]) {
  const links = new Map();
  const add = (a, b) => (links.get(a) ?? links.set(a, []).get(a)).push(b);
  from.forEach((a, i) => (add(a, to[i]), add(to[i], a)));
  return { linked: links, launches: new Set(from) };
}

/** Busy time (anything but idle) of each lane within [low, high]. */
export function busyPerLane(trace, low, high) {
  const busy = trace.lanes.map(() => 0),
    own = selfTimes(trace, low, high);
  const idle = trace.categories.findIndex(([name]) => name === "idle");
  for (let i = 0; i < trace.n; i++) if (trace.category[i] !== idle) busy[trace.lane[i]] += own[i];
  return busy;
}

const UNITS = [
  ["s", 1e6],
  ["ms", 1e3],
  ["µs", 1],
  ["ns", 1e-3],
];

/** 1234.5 µs is "1.23 ms". */
export function formatTime(us) {
  if (Math.abs(us) < 5e-4) return "0 µs";
  const [unit, size] = UNITS.find(([, s]) => Math.abs(us) >= s) ?? UNITS.at(-1);
  return `${+(us / size).toPrecision(Math.abs(us / size) >= 100 ? 4 : 3)} ${unit}`;
}

/** Round times between low and high, about one per `gap` pixels, and a formatter that gives them one unit. */
export function ticks(low, high, width, gap = 90) {
  const rough = ((high - low) * gap) / Math.max(width, 1),
    power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const [unit, size] = UNITS.find(([, s]) => Math.max(Math.abs(high), step) >= s) ?? UNITS.at(-1);
  const digits = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9));
  const values = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high; k++) values.push(k * step);
  return { values, label: (v) => `${(v / size).toFixed(digits)} ${unit}` };
}

/** The `count` names with most summed time. */
export function topNames(trace, count) {
  const rows = new Map();
  for (let i = 0; i < trace.n; i++) {
    const row = rows.get(trace.name[i]) ?? {
      name: trace.names[trace.name[i]],
      category: trace.categories[trace.category[i]][0],
      count: 0,
      total: 0,
    };
    row.count += 1;
    row.total += trace.end[i] - trace.begin[i];
    rows.set(trace.name[i], row);
  }
  return [...rows.values()].sort((a, b) => b.total - a.total).slice(0, count);
}

/** The first place in `row` whose event ends at or after `time` (rows do not overlap, so ends are sorted). */
export function firstEndingAfter(end, row, time) {
  let low = 0,
    high = row.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (end[row[middle]] < time) low = middle + 1;
    else high = middle;
  }
  return low;
}
