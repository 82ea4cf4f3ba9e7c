// The disagreement that is left after each step, on a logarithmic axis, beside what the spectral gap allows.

import { Chart } from "../shared/chart.mjs";
import { NARROW, plural, rounded, share } from "../shared/numbers.mjs";

const FLOOR = 1e-4; // where the axis ends
const percent = (part) => `${rounded(100 * part, 2)}${NARROW}%`;

export class Curve extends Chart {
  static title = "Disagreement, step by step";
  static height = 300;

  plot() {
    const { left, rate, epsilon } = this.app.result,
      at = left.map((_, step) => step),
      points = [0, at.length - 1].map((step) => [step, epsilon]);
    const measured = { kind: "left", look: "stroke: var(--pb-compute); stroke-width: 2.5" },
      least = { kind: "epsilon", look: "stroke-dasharray: 1.5 3", words: `ε = ${epsilon}`, points };
    const lines = [
      { ...measured, name: "measured", words: "measured", values: left, dot: 5 },
      ...(rate ? [this.bound(at, rate)] : []),
      least,
    ];
    const y = { ends: [FLOOR, 1], log: true, ticks: [1, 0.1, 0.01, 0.001, FLOOR], text: percent };
    return { x: { at, title: "steps" }, y, lines };
  }

  /** To where the axis ends. */
  bound(at, rate) {
    const matching = this.app.result.values.topology === "matching",
      words = `ρᵏ, ${matching ? "on average over matchings" : "the most that the spectral gap leaves"}`;
    const last = Math.min(at.length - 1, Math.log(FLOOR) / Math.log(rate)),
      [values, points] = [at.map((step) => rate ** step), [0, last].map((step) => [step, rate ** step])];
    return { kind: "bound", look: "stroke-dasharray: 6 4", name: "ρᵏ", words, values, points };
  }

  read(step) {
    const { left, rate } = this.app.result,
      bound = rate ? `, ρ to that power is ${share(rate ** step, 1)}` : "";
    return `After ${plural(step, "step")} ${share(left[step], 1)} of the disagreement is left${bound}.`;
  }
}
