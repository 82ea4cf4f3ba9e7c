// What is pointed at, by a pointer or by keys: an action, a gap, a moment of a rank's memory, or a lane.

export class Pointing {
  constructor(app) {
    Object.assign(this, { app, hovered: null, pinned: null });
  }

  get current() {
    return this.hovered ?? this.pinned;
  }

  /** Other sides: what was held on to is not there any more, but its rank is. */
  reset() {
    const { pinned, app } = this,
      { side = 0, rank = 0 } = pinned ?? {};
    this.hovered = null;
    this.pinned =
      pinned && app.building && app.sides[side]?.ranks > rank
        ? { side, rank, kind: "lane", at: -1, time: app.sides[side].makespan }
        : null;
    app.reading.hide();
  }

  /** The pointer is over something, at `at`, or over nothing. */
  point(found, at) {
    const old = this.hovered,
      same =
        found &&
        old &&
        found.kind !== "strip" &&
        ["kind", "at", "side", "rank"].every((key) => found[key] === old[key]);
    if (same) return this.app.reading.move(at);
    if (!found && !old) return;
    this.hovered = found?.kind === "lane" && !this.app.building ? null : found;
    this.app.reading.show(this.current, this.hovered ? at : this.spot(this.current));
    this.app.scene.over();
  }

  /** Hold on to something, so that keys go on from there. */
  pin(found, at) {
    Object.assign(this, { pinned: found, hovered: null });
    this.app.reading.show(found, at ?? this.spot(found));
    this.app.reading.tell(found);
    this.app.scene.over();
  }

  /** Keys go on from this rank, while a schedule is built by hand. */
  hold(rank) {
    this.pinned = { side: 0, rank, kind: "lane", at: -1, time: this.app.sides[0].makespan };
    this.app.scene.over();
  }

  /** Where the words about something are put. */
  spot(found) {
    const { geometry } = this.app.scene;
    if (!found) return [0, 0];
    if (found.at < 0) return [geometry.x(found.time ?? 0), geometry.laneTop(found.side, found.rank) + geometry.bar];
    const [x, y, wide, high] =
      found.kind === "slot" ? geometry.box(found.side, found.at) : geometry.gapBox(found.side, found.at);
    return [x + Math.min(wide, 40), y + high];
  }

  // --- by keys

  /** Actions and gaps of a rank, in order of time. */
  cells(s, rank) {
    const side = this.app.sides[s],
      found = side.gapsOf[rank].map((g) => ({ side: s, rank, kind: "idle", at: g, time: side.idle.start[g] }));
    for (let i = side.offsets[rank]; i < side.offsets[rank + 1]; i++)
      found.push({ side: s, rank, kind: "slot", at: i, time: side.start[i] });
    return found.sort((a, b) => a.time - b.time || a.at - b.at);
  }

  /** To the next action or gap of the rank, or the one before. */
  walk(by) {
    const held = this.pinned ?? { side: 0, rank: 0, at: -1, time: 0 },
      all = this.cells(held.side, held.rank);
    if (!all.length) return this.settle({ ...held, kind: "lane", at: -1, time: 0 });
    const here = all.findIndex((cell) => cell.kind === held.kind && cell.at === held.at);
    const from = here >= 0 ? here : by > 0 ? all.findLastIndex((cell) => cell.time < held.time) : all.length;
    this.settle(all[Math.min(all.length - 1, Math.max(0, from + by))]);
  }

  /** To the rank above or below, at the same time. */
  climb(by) {
    const held = this.pinned ?? { side: 0, rank: -by, time: this.app.scene.view[0] },
      { sides } = this.app;
    let [s, rank] = [held.side, held.rank + by];
    if (rank < 0) (s -= 1), (rank = (sides[s]?.ranks ?? 1) - 1);
    else if (rank >= sides[s].ranks) (s += 1), (rank = 0);
    if (!sides[s]) return;
    const all = this.cells(s, rank);
    this.settle(
      all.findLast((cell) => cell.time <= held.time + 1e-9) ??
        all[0] ?? { side: s, rank, kind: "lane", at: -1, time: 0 },
    );
  }

  settle(cell) {
    this.app.scene.bring(cell.time);
    this.pin(cell);
  }
}
