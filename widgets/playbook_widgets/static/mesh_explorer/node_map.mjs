// All nodes of a large mesh as small fields, in the order of ranks: a stage of the pipeline begins a new line where it can.

import { draw, keep, make, set, setAll } from "../shared/dom.mjs";

const LEAST = 5.5,
  HEIGHT = [7, 12],
  GAP = 3; // px: width of a field, its height, and what stands between two stages

/** How many nodes stand in a line of `width` px: as many as a stage of the pipeline has, or a part of them. */
export function columns(nodes, pp, width) {
  const each = Number.isInteger(nodes / pp) ? nodes / pp : nodes,
    most = Math.max(1, Math.floor(width / LEAST));
  if (each <= most) return each;
  for (let n = most; n > most / 2; n--) if (each % n === 0) return n;
  return most;
}

export class NodeMap {
  constructor(app) {
    this.app = app;
    this.all = draw("path", { class: "pb-me-fields" });
    this.lit = draw("g");
    this.own = draw("rect", { class: "pb-me-here" });
    this.svg = draw("svg", { role: "img" }, this.all, this.lit, this.own);
    this.root = make("div", { class: "pb-me-map" }, this.svg);
    this.svg.addEventListener(
      "pointermove",
      (e) => e.pointerType !== "touch" && this.pointed(e, (rank) => app.point(rank)),
    );
    this.svg.addEventListener("click", (e) => this.pointed(e, (rank) => app.change("rank", rank)));
    this.sizes = new ResizeObserver(() => this.root.clientWidth !== this.width && this.shown && this.update(true));
    this.sizes.observe(this.root);
  }

  /** What a line of the map is, in words. */
  get stages() {
    const { pp } = this.app.result.values;
    if (pp === 1 || this.lines === Infinity) return "";
    return this.lines === 1
      ? ", every line a stage of the pipeline"
      : `, every ${this.lines} lines a stage of the pipeline`;
  }

  /** The rank at this place of the node under the pointer. */
  pointed(event, then) {
    const box = this.svg.getBoundingClientRect(),
      { nodes, ranks, rank, values } = this.app.result;
    const row = this.row(event.clientY - box.top),
      column = Math.floor((event.clientX - box.left) / this.w),
      node = row * this.columns + column;
    if (column < 0 || column >= this.columns || node < 0 || node >= nodes) return;
    then(Math.min(ranks - 1, node * values.per_node + (rank % values.per_node)));
  }

  row(y) {
    let row = 0;
    while (this.top(row + 1) <= y) row++;
    return row;
  }

  top(row) {
    return row * this.h + GAP * Math.floor(row / this.lines);
  }

  update(shown) {
    this.shown = shown;
    this.root.hidden = !shown;
    if (!shown) return;
    this.width = this.root.clientWidth;
    const { nodes, node, values, groups } = this.app.result,
      width = this.width || 700;
    this.columns = columns(nodes, values.pp, width);
    this.lines = Number.isInteger(nodes / values.pp / this.columns) ? nodes / values.pp / this.columns : Infinity;
    this.w = Math.min(3 * HEIGHT[1], width / this.columns);
    this.h = Math.min(HEIGHT[1], Math.max(HEIGHT[0], this.w));
    this.fields(nodes);
    this.groups(values.per_node);
    const { x, y } = this.place(node);
    setAll(this.own, { x: x - 0.5, y: y - 0.5, width: this.w, height: this.h });
    const reach = groups.map(({ name, nodes: n }) => `${name} ${n}`).join(", ");
    set(
      this.svg,
      "aria-label",
      `Map of ${nodes} nodes. Nodes that a group of rank ${this.app.result.rank} is in: ${reach}`,
    );
  }

  place(node) {
    return { x: (node % this.columns) * this.w, y: this.top(Math.floor(node / this.columns)) };
  }

  /** The fields of all nodes, drawn again when their places change. */
  fields(nodes) {
    const key = [nodes, this.columns, this.lines, this.w].join();
    if (key === this.drawn) return;
    this.drawn = key;
    const height = this.top(Math.ceil(nodes / this.columns) - 1) + this.h,
      width = this.columns * this.w;
    setAll(this.svg, { width, height, viewBox: `0 0 ${width} ${height}` });
    set(this.all, "d", Array.from({ length: nodes }, (_, node) => this.field(this.place(node), 0, 1)).join(""));
  }

  /** A part of a field, from `left` to `right` in shares of it. */
  field({ x, y }, left, right) {
    const w = this.w - 1,
      number = (value) => value.toFixed(2);
    return `M${number(x + w * left)} ${number(y)}h${number(w * (right - left))}v${number(this.h - 1)}h-${number(w * (right - left))}z`;
  }

  /** Each node has a strip for every group that a rank of it is in. */
  groups(perNode) {
    const { lit } = this.app,
      inside = new Map();
    for (const group of lit)
      for (const node of new Set(group.ranks.map((rank) => Math.floor(rank / perNode))))
        inside.set(node, [...(inside.get(node) ?? []), group.name]);
    const paths = Object.fromEntries(lit.map(({ name }) => [name, ""]));
    for (const [node, names] of inside)
      names.forEach(
        (name, i) => (paths[name] += this.field(this.place(node), i / names.length, (i + 1) / names.length)),
      );
    keep(this.lit, lit.length, () => draw("path")).forEach((path, i) =>
      setAll(path, { d: paths[lit[i].name], "data-axis": lit[i].axis, "data-group": lit[i].name }),
    );
  }

  close() {
    this.sizes.disconnect();
  }
}
