// Traffic of a step over the number of its micro-batches: a line for each stage, both axes logarithmic.

import { Chart } from "../shared/chart.mjs";
import { draw } from "../shared/dom.mjs";
import { listed, plural, rounded } from "../shared/numbers.mjs";

const LINE = 14; // px from one name to the next
const DASHES = ["", "stroke-dasharray: 2 3;", "stroke-dasharray: 7 3;", ""];
const psi = (elements) => `${rounded(elements)} Ψ`;

export class Growth extends Chart {
  static title = "How the traffic grows with accumulation";
  static height = 210;
  empty = "One replica sends nothing.";

  plot() {
    const { growth, values } = this.app.result,
      { grad_acc: at, elements } = growth;
    if (values.replicas === 1) return null;
    const all = elements.flat(),
      [low, high] = [Math.floor(Math.log2(Math.min(...all)) - 1e-9), Math.ceil(Math.log2(Math.max(...all)) + 1e-9)];
    this.groups = group(elements.map((line) => line.at(-1)));
    return {
      x: { at, log: true, title: "micro-batches in a step (G)" },
      y: { ends: [2 ** low, 2 ** high], log: true, text: psi },
      lines: this.lines(elements, values.zero),
      right: 16 + 7.2 * Math.max(...this.groups.map((zeros) => this.named(zeros).length)),
      now: at.indexOf(values.grad_acc),
    };
  }

  /** All of them thin, and the chosen one on top. */
  lines(elements, chosen) {
    const line = (zero, look, more) => ({ kind: zero, look: DASHES[zero] + look, values: elements[zero], ...more }),
      dot = (zero) => (zero === chosen ? 0 : 3);
    const thin = this.app.constants.names.map((name, zero) => line(zero, "opacity: 0.65", { name, dot: dot(zero) }));
    return [...thin, line(chosen, "stroke-width: 3", { dot: 4.5 })];
  }

  named(zeros) {
    return zeros.map((zero) => this.app.constants.names[zero]).join(", ");
  }

  /** A name at the end of each line, one for lines that end together; pushed apart where they would touch. */
  more() {
    const { growth, values } = this.app.result,
      ends = this.groups.map((zeros) => [this.y.to(growth.elements[zeros[0]].at(-1)), zeros]);
    let free = Infinity;
    const names = ends
      .sort(([a], [b]) => b - a)
      .map(([y, zeros]) => {
        free = Math.min(y, free - LINE);
        const weight = zeros.includes(values.zero) ? 650 : 400;
        return draw("text", { x: this.end + 8, y: free + 4, "font-weight": weight }, this.named(zeros));
      });
    return [draw("g", { class: "pb-zs-names" }, ...names)];
  }

  read(place) {
    const { names } = this.app.constants,
      { grad_acc: counts, elements } = this.app.result.growth,
      sent = elements.map((line) => line[place]);
    const said = group(sent).map((zeros) => {
      const who = listed(zeros.map((zero) => names[zero]));
      return `${who} ${zeros.length > 1 ? "send" : "sends"} ${psi(sent[zeros[0]])}`;
    });
    return `With ${plural(counts[place], "micro-batch").replace("batchs", "batches")}, ${listed(said)} elements in a step. Whole gradients are added up and sent once; ${names[2]} and ${names[3]} keep no place for them and reduce in every micro-batch.`;
  }

  pick(place) {
    this.app.change("grad_acc", this.app.result.growth.grad_acc[place]);
  }
}

/** The places of numbers that are as good as equal, together. */
export function group(numbers) {
  const groups = [];
  numbers.forEach((number, place) => {
    const same = groups.find(([first]) => Math.abs(numbers[first] - number) <= 0.005 * number);
    same ? same.push(place) : groups.push([place]);
  });
  return groups;
}
