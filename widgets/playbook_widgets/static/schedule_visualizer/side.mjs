// One timeline as arrays, and what can be asked of it: which action is where, what it needs, what a rank keeps.

const OPS = { F: "F", B: "B", W: "W", X: "BW" };
const KINDS = { F: 0, B: 1, X: 1, W: 2 }; // a BW stands for its B

export class Side {
  /** `data` is what playbook_widgets/compute/visualizer_drawing.py calls a drawn timeline. */
  constructor(data, causes) {
    Object.assign(this, { ...data, causeNames: causes, op: data.slots.op, count: data.slots.op.length });
    this.stage = Uint16Array.from(data.slots.stage);
    this.microbatch = Uint16Array.from(data.slots.microbatch);
    this.start = Float64Array.from(data.slots.start);
    this.end = Float64Array.from(data.slots.end);
    this.place = new Int32Array(3 * this.depth * this.microbatches).fill(-1);
    this.rankOf = new Uint8Array(this.count);
    this.half = new Uint8Array(this.count); // 1 and 2: the upper and lower of two side by side
    this.chunk = new Uint8Array(this.count);
    const held = this.held();
    for (let rank = 0; rank < this.ranks; rank++) {
      for (let i = this.offsets[rank]; i < this.offsets[rank + 1]; i++) this.index(i, rank, held);
    }
    this.gapsOf = this.gaps();
    this.keeps = Array.from({ length: this.ranks }, (_, rank) => this.kept(rank));
    this.onPath = new Set(this.path);
  }

  index(i, rank, held) {
    this.rankOf[i] = rank;
    this.place[this.key(KINDS[this.op[i]], this.stage[i], this.microbatch[i])] = i;
    if (this.op[i] === "X") this.place[this.key(2, this.stage[i], this.microbatch[i])] = i;
    this.chunk[i] = held[rank].indexOf(this.direction(this.microbatch[i]) * this.depth + this.stage[i]);
    const next = i + 1 < this.offsets[rank + 1] && this.start[i + 1] === this.start[i] && this.end[i] > this.start[i];
    if (next) [this.half[i], this.half[i + 1]] = [1, 2];
  }

  /** The stages of each rank, in order. */
  held() {
    const found = Array.from({ length: this.ranks }, () => []);
    this.placement.forEach((homes, direction) =>
      homes.forEach((rank, stage) => found[rank].push(direction * this.depth + stage)),
    );
    return found;
  }

  get chunks() {
    return Math.round((this.placement.length * this.depth) / this.ranks);
  }

  get makespan() {
    return this.numbers.makespan;
  }

  key(kind, stage, microbatch) {
    return (kind * this.depth + stage) * this.microbatches + microbatch;
  }

  direction(microbatch) {
    return this.directions.length ? this.directions[microbatch] : 0;
  }

  /** The slot of an operation (F, B or W) on a stage, or -1. */
  at(kind, stage, microbatch) {
    return stage < 0 || stage >= this.depth ? -1 : this.place[this.key(kind, stage, microbatch)];
  }

  /** Slots that must be over before slot `i` begins. */
  needs(i) {
    const [stage, m] = [this.stage[i], this.microbatch[i]],
      kind = KINDS[this.op[i]];
    const found = [
      [this.at(0, stage - 1, m)],
      [this.at(0, stage, m), this.at(1, stage + 1, m)],
      [this.at(1, stage, m)],
    ][kind];
    return found.filter((slot) => slot >= 0);
  }

  /** Slots that wait for slot `i`. */
  givesTo(i) {
    const [stage, m] = [this.stage[i], this.microbatch[i]],
      kind = KINDS[this.op[i]];
    const found = [
      [this.at(0, stage + 1, m), this.at(1, stage, m)],
      [this.at(1, stage - 1, m), this.at(2, stage, m)],
      [],
    ][kind];
    return found.filter((slot) => slot >= 0 && slot !== i);
  }

  /** "F3", "BW3": as short as it is drawn. */
  short(i) {
    return `${OPS[this.op[i]]}${this.microbatch[i]}`;
  }

  nameOf(i) {
    return `${OPS[this.op[i]]} of micro-batch ${this.microbatch[i]} on stage ${this.stage[i]}`;
  }

  /** The first slot of a rank that ends after `time`. */
  firstAfter(rank, time) {
    let [low, high] = [this.offsets[rank], this.offsets[rank + 1]];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.end[middle] <= time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Numbers of the gaps of each rank. */
  gaps() {
    const found = Array.from({ length: this.ranks }, () => []);
    this.idle.rank.forEach((rank, g) => found[rank].push(g));
    return found;
  }

  gapAt(rank, time) {
    return this.gapsOf[rank].find((g) => this.idle.start[g] <= time && time < this.idle.end[g]) ?? -1;
  }

  /** Why a rank waits, in a sentence. */
  why(g) {
    if (this.idle.text) return this.idle.text[g];
    const next = this.idle.next[g],
      need = this.idle.waits_for[g],
      cause = this.causeNames[Object.keys(this.causeNames)[this.idle.cause[g]]];
    const waits =
      next < 0
        ? "has nothing more to do"
        : need < 0
          ? `waits with ${this.nameOf(next)}`
          : `waits with ${this.nameOf(next)} for ${this.nameOf(need)} on rank ${this.rankOf[need]}`;
    return `rank ${this.idle.rank[g]} ${waits}: ${cause}`;
  }

  /** What a rank keeps, as [times, amounts]: F saves as it begins, B and W free as they end. */
  kept(rank) {
    const events = [];
    for (let i = this.offsets[rank]; i < this.offsets[rank + 1]; i++) {
      const change = { F: this.full, B: this.rest - this.full, W: -this.rest, X: -this.full }[this.op[i]];
      if (change) events.push([change > 0 ? this.start[i] : this.end[i], change]);
    }
    events.sort((a, b) => a[0] - b[0]);
    const times = new Float64Array(events.length),
      amounts = new Float64Array(events.length);
    let amount = 0;
    events.forEach(([time, change], k) => {
      amount += change;
      times[k] = time;
      amounts[k] = amount < 1e-9 ? 0 : amount;
    });
    return { times, amounts };
  }

  keptAt(rank, time) {
    const { times, amounts } = this.keeps[rank],
      k = lastAtOrBefore(times, time);
    return k < 0 ? 0 : amounts[k];
  }

  get peak() {
    return Math.max(...this.peaks);
  }
}

/** The last place of sorted `times` at or before `time`; -1 if there is none. */
export function lastAtOrBefore(times, time) {
  let [low, high] = [0, times.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] <= time) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
