// The mesh: ranks in their nodes, and which of them are in a group with the rank that is looked at.

import { keep, make, say, set } from "../shared/dom.mjs";
import { grouped, plural } from "../shared/numbers.mjs";
import { NodeMap } from "./node_map.mjs";
import { section } from "./pieces.mjs";

const FULL = 64; // ranks of a mesh that is drawn rank by rank; of a larger one a node is, and the other nodes as a map

export class Mesh {
  constructor(app) {
    this.app = app;
    this.list = make("div", {
      class: "pb-me-nodes",
      role: "listbox",
      tabindex: "0",
      "aria-label": "Ranks by node; arrow keys go to other ranks",
    });
    this.map = new NodeMap(app);
    this.note = make("p", { class: "pb-me-note" });
    this.root = section("Ranks by node", this.list, this.map.root, this.note);
    this.list.addEventListener("keydown", (e) => this.key(e));
    this.list.addEventListener("click", (e) => this.at(e) !== null && app.change("rank", this.at(e)));
    this.list.addEventListener(
      "pointerover",
      (e) => e.pointerType !== "touch" && this.at(e) !== null && app.point(this.at(e)),
    );
    this.root.addEventListener("pointerleave", () => app.point(null));
  }

  /** The rank that an event is on. */
  at(event) {
    const cell = event.target.closest?.("[data-rank]");
    return cell ? Number(cell.dataset.rank) : null;
  }

  /** Left and right is the next rank, up and down the same place in the next node. */
  key(event) {
    const { ranks, values } = this.app.result,
      last = ranks - 1,
      { rank, per_node: node } = values;
    const to = {
      ArrowRight: rank + 1,
      ArrowLeft: rank - 1,
      ArrowDown: rank + node,
      ArrowUp: rank - node,
      Home: 0,
      End: last,
    }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    if (to >= 0 && to <= last) this.app.change("rank", to);
  }

  update() {
    const { app } = this,
      { ranks, nodes, node, values } = app.result,
      whole = ranks <= FULL;
    const shown = whole ? [...Array(nodes).keys()] : [node];
    this.list.style.setProperty("--columns", Math.min(8, values.per_node));
    keep(this.list, shown.length, () =>
      make(
        "div",
        { class: "pb-me-node", role: "group" },
        make("span", { class: "pb-me-name" }),
        make("div", { class: "pb-me-ranks" }),
      ),
    ).forEach((el, i) => this.node(el, shown[i]));
    set(this.list, "aria-activedescendant", `${app.id}-r${app.result.rank}`);
    this.map.update(!whole);
    say(this.note, this.words(whole));
  }

  node(el, number) {
    const { ranks, values } = this.app.result,
      first = number * values.per_node,
      [name, cells] = el.children;
    say(name, `node ${number}`);
    set(el, "aria-label", `node ${number}`);
    keep(cells, Math.min(values.per_node, ranks - first), cell).forEach((one, i) => this.rank(one, first + i));
  }

  rank(el, rank) {
    const { app } = this,
      { result } = app,
      groups = app.lit.filter(({ ranks }) => ranks.includes(rank)),
      own = rank === result.rank,
      [band, number, words, letters] = el.children;
    if (el.dataset.rank !== String(rank)) {
      el.dataset.rank = rank;
      el.id = `${app.id}-r${rank}`;
      say(number, rank);
    }
    el.toggleAttribute("data-own", own);
    el.toggleAttribute("data-lit", groups.length > 0);
    set(el, "aria-selected", String(rank === result.values.rank));
    say(
      words,
      own
        ? ", the rank shown"
        : groups.length
          ? `, with rank ${result.rank} in ${groups.map(({ name }) => name).join(", ")}`
          : "",
    );
    keep(band, groups.length, () => make("i")).forEach((strip, i) =>
      [
        ["data-axis", groups[i].axis],
        ["data-group", groups[i].name],
      ].forEach((pair) => set(strip, ...pair)),
    );
    say(letters, own ? "" : groups.map(({ letter }) => letter).join(" "));
  }

  words(whole) {
    const { ranks, nodes, values } = this.app.result,
      size = `${plural(ranks, "rank")} in ${plural(nodes, "node")} of ${values.per_node}.`;
    return whole
      ? `${size} Point at a rank, or use the arrow keys.`
      : `${size} The node of rank ${grouped(this.app.result.rank)} is drawn in full; every field of the map is a node${this.map.stages}. Point at one, or use the arrow keys.`;
  }

  close() {
    this.map.close();
  }
}

const cell = () =>
  make(
    "div",
    { class: "pb-me-rank", role: "option" },
    make("span", { class: "pb-me-band" }),
    make("b"),
    make("span", { class: "pb-unseen" }),
    make("span", { class: "pb-me-letters", "aria-hidden": "true" }),
  );
