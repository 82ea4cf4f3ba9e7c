// Traffic of a step over the number of its micro-batches: a line for each stage, both axes logarithmic.

import { draw, make, say, setAll } from "../shared/dom.mjs";
import { listed, plural, rounded } from "../shared/numbers.mjs";
import { section } from "./pieces.mjs";

const BOX = { left: 44, right: 8, top: 10, bottom: 36, height: 210 },
  LINE = 14;

export class Growth {
  constructor(app) {
    this.app = app;
    [this.grid, this.lines, this.names] = ["grid", "lines", "names"].map((name) =>
      draw("g", { class: `pb-zs-${name}` }),
    );
    this.marker = draw("line", { class: "pb-zs-marker" });
    this.svg = draw("svg", { role: "img" }, this.grid, this.marker, this.lines, this.names);
    this.box = make("div", { class: "pb-zs-growth" }, this.svg);
    this.note = make("p", { class: "pb-zs-note" });
    this.root = section("How the traffic grows with accumulation", this.box, this.note);
    this.svg.addEventListener("click", (e) => this.click(e));
    this.sizes = new ResizeObserver(() => this.box.clientWidth !== this.width && this.update());
    this.sizes.observe(this.box);
  }

  update() {
    const { app } = this,
      { result } = app,
      { growth, values } = result;
    this.width = this.box.clientWidth;
    this.svg.toggleAttribute("hidden", values.replicas === 1);
    say(this.note, this.words(growth, values));
    if (!this.width || values.replicas === 1) return;
    const ends = growth.elements.map((line) => line.at(-1)),
      all = growth.elements.flat();
    this.groups = group(ends);
    this.right = BOX.right + 7.2 * Math.max(...this.groups.map((zeros) => this.named(zeros).length)) + 8;
    this.low = Math.floor(Math.log2(Math.min(...all)) - 1e-9);
    this.high = Math.ceil(Math.log2(Math.max(...all)) + 1e-9);
    setAll(this.svg, {
      viewBox: `0 0 ${this.width} ${BOX.height}`,
      height: BOX.height,
      "aria-label": this.aloud(growth),
    });
    this.drawGrid();
    this.drawLines(growth, values);
  }

  named(zeros) {
    return zeros.map((zero) => this.app.constants.names[zero]).join(", ");
  }

  x(count) {
    return BOX.left + (Math.log2(count) / 6) * (this.width - BOX.left - this.right);
  }

  y(elements) {
    const part = (Math.log2(elements) - this.low) / (this.high - this.low);
    return BOX.height - BOX.bottom - part * (BOX.height - BOX.top - BOX.bottom);
  }

  drawGrid() {
    const every = this.high - this.low > 5 ? 2 : 1,
      rows = [],
      below = BOX.height - BOX.bottom;
    for (let power = this.low; power <= this.high; power += every) rows.push(2 ** power);
    const text = (x, y, anchor, words) =>
      draw("text", { x: x.toFixed(1), y: y.toFixed(1), "text-anchor": anchor }, words);
    this.grid.replaceChildren(
      ...rows.map((n) =>
        draw("line", { x1: BOX.left, x2: this.width - this.right, y1: this.y(n).toFixed(1), y2: this.y(n).toFixed(1) }),
      ),
      ...rows.map((n) => text(BOX.left - 6, this.y(n) + 4, "end", `${rounded(n)} Ψ`)),
      ...[1, 2, 4, 8, 16, 32, 64].map((n) => text(this.x(n), below + 15, "middle", n)),
      text((BOX.left + this.width - this.right) / 2, below + 31, "middle", "micro-batches in a step (G)"),
    );
  }

  drawLines({ grad_acc: counts, elements }, { zero: chosen, grad_acc: now }) {
    const at = counts.indexOf(now),
      point = (line, i) => `${this.x(counts[i]).toFixed(1)},${this.y(line[i]).toFixed(1)}`;
    setAll(this.marker, { x1: this.x(now), x2: this.x(now), y1: BOX.top, y2: BOX.height - BOX.bottom });
    const order = elements.map((_, zero) => zero).sort((a, b) => (a === chosen) - (b === chosen)); // the chosen one on top
    this.lines.replaceChildren(
      ...order.map((zero) => {
        const line = elements[zero],
          path = draw("path", { d: `M${line.map((_, i) => point(line, i)).join("L")}` });
        const el = draw(
          "g",
          { "data-zero": zero },
          path,
          draw("circle", { cx: this.x(now), cy: this.y(line[at]), r: zero === chosen ? 4.5 : 3 }),
        );
        el.toggleAttribute("data-chosen", zero === chosen);
        return el;
      }),
    );
    this.drawNames(elements, chosen);
  }

  /** A name at the end of each line, one for lines that end together; pushed apart where they would touch. */
  drawNames(elements, chosen) {
    const places = this.groups
      .map((zeros) => ({ zeros, y: this.y(elements[zeros[0]].at(-1)) }))
      .sort((a, b) => b.y - a.y);
    places.forEach((place, i) => i && (place.y = Math.min(place.y, places[i - 1].y - LINE)));
    this.names.replaceChildren(
      ...places.map(({ zeros, y }) => {
        const el = draw("text", { x: this.width - this.right + 8, y: (y + 4).toFixed(1) }, this.named(zeros));
        el.toggleAttribute("data-chosen", zeros.includes(chosen));
        return el;
      }),
    );
  }

  words({ grad_acc: counts, elements }, { replicas, grad_acc: now }) {
    if (replicas === 1) return "One replica sends nothing.";
    const at = counts.indexOf(now),
      { names } = this.app.constants;
    const said = group(elements.map((line) => line[at])).map(
      (zeros) =>
        `${listed(zeros.map((zero) => names[zero]))} ${zeros.length > 1 ? "send" : "sends"} ${rounded(elements[zeros[0]][at])} Ψ`,
    );
    return `With ${plural(now, "micro-batch").replace("batchs", "batches")}, ${listed(said)} elements in a step. Whole gradients are added up and sent once; ${names[2]} and ${names[3]} keep no place for them and reduce in every micro-batch.`;
  }

  aloud({ grad_acc: counts, elements }) {
    return this.app.constants.names
      .map(
        (name, zero) =>
          `${name}: from ${rounded(elements[zero][0])} Ψ with 1 micro-batch to ${rounded(elements[zero].at(-1))} Ψ with ${counts.at(-1)}`,
      )
      .join("; ");
  }

  /** A click sets the nearest number of micro-batches. */
  click(event) {
    const x = event.clientX - this.svg.getBoundingClientRect().left,
      { grad_acc: counts } = this.app.result.growth;
    const away = counts.map((count) => Math.abs(this.x(count) - x));
    this.app.change("grad_acc", counts[away.indexOf(Math.min(...away))]);
  }

  close() {
    this.sizes.disconnect();
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
