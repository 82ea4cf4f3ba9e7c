// Memory against sequence length.

import { Chart } from "../shared/chart.mjs";
import { count, grouped } from "../shared/numbers.mjs";

/** 8192 tokens are "8k". */
function tokens(n) {
  if (n % 1024) return n >= 1e4 ? count(n) : String(n);
  return n % 2 ** 20 ? `${n / 1024}k` : `${n / 2 ** 20}M`;
}

/** The sequence length at which `curve` meets `capacity`: memory is close to linear between two points. */
function crossing({ seq, peak }, capacity) {
  const over = peak.findIndex((size) => size > capacity);
  if (over < 1) return over < 0 ? Infinity : 0;
  const [s0, s1, p0, p1] = [seq[over - 1], seq[over], peak[over - 1], peak[over]];
  return s0 + ((capacity - p0) * (s1 - s0)) / (p1 - p0);
}

export class Curve extends Chart {
  static title = "Against sequence length";
  static height = 206;

  constructor(app) {
    super(app);
    this.stage.before(this.reading);
  }

  plot() {
    const { app } = this,
      { result } = app.current();
    this.root.hidden = !result || result.curve.seq.length < 2;
    if (this.root.hidden) return null;
    const { seq, peak } = result.curve,
      now = Math.max(0, seq.indexOf(result.values.seq));
    const top = Math.min(Math.max(result.memory * 1.4, peak[now] * 1.3), Math.max(...peak) * 1.1),
      size = result.memory <= top ? result.memory : +(0.9 * top).toPrecision(2);
    const y = { ends: [0, top], ticks: size < 0.1 * top ? [size] : [0, size], text: (n) => (n ? app.bytes(n) : "0") };
    return { x: { at: seq, log: true, text: tokens, title: "tokens" }, y, lines: this.lines(result, top), now };
  }

  /** What is kept, one on top of the other, what is above the limit dimmed, and the sum of the other configuration. */
  lines({ curve, memory, usable, reserve }, top) {
    const { seq, peak } = curve,
      points = (sizes) => seq.map((length, i) => [length, sizes[i]]),
      level = (size) => points(seq.map(() => size));
    let sums = seq.map(() => 0);
    const areas = this.app.constants.categories.map(([kind, name, , colour]) => {
      const under = points(sums).reverse(),
        look = `fill: ${colour}; stroke: var(--pb-surface); stroke-width: 0.75`;
      sums = sums.map((sum, i) => sum + curve[kind][i]);
      return { name, look, points: [...points(sums), ...under], values: curve[kind] };
    });
    const limit = (look, points, there = true) => (there && memory <= top ? [{ look, points }] : []),
      veil = [...level(memory), ...level(2 * top).reverse()];
    return [
      ...areas,
      ...limit("fill: var(--pb-surface); stroke: none; opacity: 0.5", veil),
      { name: "together", look: "stroke: none", values: peak, dot: 4 },
      ...this.other(seq),
      ...limit("stroke-width: 2", level(memory)),
      ...limit("stroke-width: 1; stroke-dasharray: 3 3", level(usable), reserve),
    ];
  }

  other([first, ...others]) {
    const { inputs, last, side } = this.app,
      curve = inputs.configs.length === 2 && last[1 - side]?.curve;
    if (!curve) return [];
    const points = curve.seq.map((length, i) => [length, curve.peak[i]]),
      seen = points.filter(([length]) => length >= first && length <= others.at(-1));
    return [{ kind: "other", look: "stroke-width: 1.75; stroke-dasharray: 5 3", points: seen }];
  }

  read(place) {
    const { app } = this,
      { curve, memory } = app.current().result,
      spare = memory - curve.peak[place];
    const verdict = spare < 0 ? `${app.bytes(-spare)} too much` : `${app.bytes(spare)} to spare`;
    return `${tokens(curve.seq[place])} tokens: ${app.bytes(curve.peak[place])}, ${verdict}; activations ${app.bytes(curve.activations[place])}.`;
  }

  /** The longest that fits. */
  rest() {
    const { app } = this,
      { curve, memory, usable, reserve } = app.current().result,
      length = crossing(curve, usable);
    const limit = reserve ? `${app.bytes(usable)}, which leaves ${app.bytes(reserve)} free` : app.bytes(memory);
    if (!length) return `More than ${limit}, at every length shown.`;
    const most =
      length === Infinity ? "at every length shown" : `up to about ${grouped(+length.toPrecision(2))} tokens`;
    return `Within ${limit}, ${most}.`;
  }
}
