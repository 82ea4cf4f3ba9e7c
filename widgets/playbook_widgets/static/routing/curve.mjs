// How the load evens out, update by update.

import { Chart } from "../shared/chart.mjs";
import { plural } from "../shared/numbers.mjs";

const LINES = [
  { kind: "imbalance", words: "busiest rank", look: "stroke-width: 2.5", dot: 4 },
  { kind: "busiest_expert", words: "busiest expert", look: "stroke-dasharray: 5 3", dot: 4 },
];

export class Curve extends Chart {
  static title = "Busiest over mean, update by update";
  static height = 190;

  plot() {
    const { pictures } = this.app.result;
    this.root.hidden = pictures.length < 2;
    if (this.root.hidden) return null;
    const lines = LINES.map((line) => ({
        ...line,
        name: line.words,
        values: pictures.map((picture) => picture[line.kind]),
      })),
      most = Math.max(2, Math.ceil(Math.max(...lines[1].values)));
    return { x: { at: pictures.map((_, i) => i), title: "updates of the biases" }, y: { ends: [1, most] }, lines };
  }

  read(update) {
    const each = LINES.map(({ kind, words }) => `${words} ${this.app.result.pictures[update][kind].toFixed(2)}`);
    return `After ${plural(update, "update")}, over the mean: ${each.join(", ")}.`;
  }
}
