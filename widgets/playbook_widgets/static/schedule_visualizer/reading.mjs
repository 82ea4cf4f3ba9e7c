// What is pointed at, in words: beside the pointer, and for screen readers.

import { make, tableOf } from "../shared/dom.mjs";
import { rounded } from "../shared/numbers.mjs";

export class Reading {
  constructor(app) {
    this.app = app;
    this.root = make("div", { class: "pb-sv-tip", hidden: "" });
    this.live = make("div", { class: "pb-unseen", "aria-live": "polite" });
  }

  time(value) {
    return this.app.time(value, 5);
  }

  /** [title, [[term, words], …]] of what is pointed at; null for nothing. */
  words(current) {
    if (!current) return null;
    const side = this.app.sides[current.side];
    return {
      slot: () => this.slot(side, current.at),
      idle: () => this.idle(side, current.at),
      strip: () => this.strip(side, current),
      lane: () => this.lane(side, current),
    }[current.kind]();
  }

  slot(side, i) {
    const rows = [
      [
        "on",
        `rank ${side.rankOf[i]}, ${this.time(side.start[i])} to ${this.time(side.end[i])}, takes ${this.time(side.end[i] - side.start[i])}`,
      ],
    ];
    const needs = side.needs(i),
      gives = side.givesTo(i);
    if (needs.length)
      rows.push(["needs", needs.map((n) => this.other(side, n, i, `over at ${this.time(side.end[n])}`)).join("; ")]);
    else rows.push(["needs", "nothing: a new micro-batch"]);
    rows.push([
      "for",
      gives.map((n) => this.other(side, n, i, `begins at ${this.time(side.start[n])}`)).join("; ") ||
        "nobody: nothing waits for it",
    ]);
    const after = side.keptAt(side.rankOf[i], side.op[i] === "F" ? side.start[i] : side.end[i]);
    rows.push(["then keeps", this.amount(after)]);
    if (side.half[i]) rows.push(["beside", side.nameOf(side.half[i] === 1 ? i + 1 : i - 1)]);
    if (this.app.inputs.path && side.onPath.has(i)) rows.push(["", "on the critical path"]);
    return [side.nameOf(i), rows];
  }

  other(side, n, i, when) {
    return `${side.nameOf(n)}${side.rankOf[n] === side.rankOf[i] ? "" : `, rank ${side.rankOf[n]}`}, ${when}`;
  }

  amount(amount) {
    return `${rounded(amount, 4)} micro-batch${amount === 1 ? "" : "es"}`;
  }

  idle(side, g) {
    const { idle } = side,
      cause = Object.values(side.causeNames)[idle.cause[g]],
      text = side.why(g);
    return [
      `Rank ${idle.rank[g]} waits ${this.time(idle.end[g] - idle.start[g])}: ${cause}`,
      [
        ["why", text],
        ["when", `${this.time(idle.start[g])} to ${this.time(idle.end[g])}`],
      ],
    ];
  }

  strip(side, { rank, time }) {
    const { cap } = this.app,
      inside = Math.min(Math.max(time, 0), side.makespan),
      now = side.keptAt(rank, inside);
    const rows = [
      ["at", this.time(inside)],
      ["at most", this.amount(side.peaks[rank])],
    ];
    if (cap !== null) rows.push(["fit", rounded(cap, 4) + (now > cap + 1e-9 ? ": too much" : "")]);
    return [`Rank ${rank} keeps the activations of ${this.amount(now)}`, rows];
  }

  lane(_side, { rank }) {
    const next = this.app.builder.next(rank);
    if (!this.app.building) return [`Rank ${rank}`, []];
    return [`Rank ${rank}`, [["a click adds", next ?? "nothing: a click says why"]]];
  }

  /** Near `point`, or at what is focused. */
  show(current, point) {
    const words = this.words(current);
    this.root.hidden = !words;
    if (!words) return;
    const [title, rows] = words;
    const list = make("dl", {}, ...rows.flatMap(([term, text]) => [make("dt", {}, term), make("dd", {}, text)]));
    this.root.replaceChildren(make("strong", {}, title), list);
    this.move(point);
  }

  /** Below or above the lane and its neighbours, where what it needs and gives to is drawn. */
  move([x]) {
    const { scene, pointing } = this.app,
      { geometry } = scene,
      { side, rank } = pointing.current ?? { side: 0, rank: 0 };
    const { offsetWidth: wide, offsetHeight: high } = this.root,
      left = Math.max(0, Math.min(x + 14, geometry.width - wide));
    const last = Math.min(rank + 2, this.app.sides[side].ranks),
      below = geometry.laneTop(side, last) + 2,
      above = geometry.laneTop(side, Math.max(0, rank - 1)) - high - 6;
    this.root.style.transform = `translate(${Math.round(left)}px, ${Math.round(below + high <= geometry.height + 120 || above < -60 ? below : above)}px)`;
  }

  hide() {
    this.root.hidden = true;
  }

  /** For screen readers: what the focus is on. */
  tell(current) {
    const words = this.words(current);
    this.live.textContent = words
      ? `${this.app.sides.length > 1 ? `${this.app.sides[current.side].label}. ` : ""}${words[0]}. ${words[1].map(([term, text]) => `${term} ${text}`).join(". ")}`
      : "";
  }
}

/** Everything in a table, a row for each rank. */
export function transcript(app) {
  const row = (side, rank) => {
    const all = [];
    for (let i = side.offsets[rank]; i < side.offsets[rank + 1]; i++)
      all.push(
        `${side.short(i)}${side.depth > side.ranks ? ` on stage ${side.stage[i]}` : ""} ${rounded(side.start[i], 6)}–${rounded(side.end[i], 6)}`,
      );
    return [side.label, rank, all.join(", "), rounded(side.peaks[rank], 4)];
  };
  return tableOf(
    ["schedule", "rank", "actions and when", "keeps up to"],
    app.sides.flatMap((side) => Array.from({ length: side.ranks }, (_, rank) => row(side, rank))),
  );
}
