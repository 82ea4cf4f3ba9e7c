// Goodput over the interval between checkpoints, with the intervals that the formulas give and the one that is set.

import { Chart } from "../shared/chart.mjs";
import { draw, make } from "../shared/dom.mjs";
import { percent, seconds } from "../shared/numbers.mjs";

const KEY =
  "Filled: the interval that is set. A tick below the line: exact optimum; above it: Daly’s (long) and Young’s (short).";
export class Curve extends Chart {
  static title = "Useful share of the time, by interval";
  static height = 230;

  constructor(app) {
    super(app);
    this.legend.before(make("p", { class: "pb-gp-note" }, KEY));
  }

  plot() {
    const [at, values] = [0, 1].map((i) => this.app.result.curve.map((point) => point[i])),
      look = "stroke: var(--pb-compute); stroke-width: 2.5";
    return {
      x: {
        at,
        log: true,
        ticks: [10, 60, 600, 3600, 36000, 360000],
        text: seconds,
        title: "from one checkpoint to the next",
      },
      y: { ends: [0, 1], ticks: [0, 0.25, 0.5, 0.75, 1], text: percent },
      lines: [{ kind: "useful", name: "useful", look, values }],
    };
  }

  more() {
    const { marks, chosen } = this.app.result,
      { x, y } = this;
    const ticks = marks.map(({ name, interval, useful }) => {
      const [from, to] = { exact: [3, 18], Daly: [-18, -3], Young: [-11, -3] }[name],
        [at, down] = [x.to(interval), y.to(useful)];
      return draw("line", { "data-mark": name, x1: at, x2: at, y1: down + from, y2: down + to });
    });
    const dot = draw("circle", { class: "pb-gp-chosen", r: 5.5, cx: x.to(chosen[0]), cy: y.to(chosen[1]) });
    return [draw("g", { class: "pb-gp-marks" }, ...ticks), dot];
  }

  read(place) {
    const [interval, useful] = this.app.result.curve[place];
    return `${seconds(interval)}: ${percent(useful)} useful.`;
  }

  rest() {
    const { chosen, marks } = this.app.result;
    return `Set: ${percent(chosen[1])} useful; ${marks.map(({ name, text }) => `${name}: ${text}`).join(", ")}.`;
  }
}
