// Where everything is: lanes from top to bottom, time from left to right.

export const AXIS = 22; // px
const SIZES = [
  [4, 30, 18, 9],
  [8, 24, 14, 7],
  [16, 18, 9, 5],
  [32, 12, 6, 3],
  [64, 7, 3, 1],
]; // up to so many ranks: bar, strip of memory, gap

export class Geometry {
  constructor(app, scene) {
    Object.assign(this, { app, scene });
  }

  /** Anew for other sides, or another width. */
  fit(width) {
    const { sides } = this.app,
      most = Math.max(...sides.map((side) => side.ranks)),
      lanes = sides.reduce((sum, side) => sum + side.ranks, 0);
    const size = SIZES.find(([upTo]) => Math.max(most, lanes / 1.6) <= upTo) ?? SIZES.at(-1);
    [, this.bar, this.strip, this.gap] = size;
    this.width = Math.max(120, width);
    this.long = this.width > 560;
    this.left = this.long ? 50 : 26;
    this.right = this.width - 10;
    this.lane = this.bar + 1 + this.strip + this.gap;
    this.title = 24;
    let top = AXIS;
    this.tops = sides.map((side) => {
      const own = top + this.title;
      top = own + side.ranks * this.lane + 8;
      return own;
    });
    this.height = top;
  }

  get view() {
    return this.scene.view;
  }

  x(time) {
    const [low, high] = this.view;
    return this.left + ((time - low) / (high - low)) * (this.right - this.left);
  }

  time(x) {
    const [low, high] = this.view;
    return low + ((x - this.left) / (this.right - this.left)) * (high - low);
  }

  laneTop(side, rank) {
    return this.tops[side] + rank * this.lane;
  }

  /** The box of a slot: left, top, width, height. */
  box(side, i) {
    const data = this.app.sides[side],
      half = data.half[i],
      x = this.x(data.start[i]);
    const high = half ? (this.bar - 1) / 2 : this.bar,
      top = this.laneTop(side, data.rankOf[i]) + (half === 2 ? high + 1 : 0);
    return [x, top, Math.max(this.x(data.end[i]) - x, 1), high];
  }

  gapBox(side, g) {
    const { idle } = this.app.sides[side],
      x = this.x(idle.start[g]);
    return [x, this.laneTop(side, idle.rank[g]), Math.max(this.x(idle.end[g]) - x, 1), this.bar];
  }

  /** What is at a point: { side, rank, kind: slot, idle, strip or lane, at, time }; null outside of all lanes. */
  at(x, y) {
    const side = this.tops.findLastIndex((top) => top <= y),
      data = this.app.sides[side];
    const rank = side < 0 ? -1 : Math.floor((y - this.tops[side]) / this.lane);
    if (!data || rank >= data.ranks) return null;
    const time = this.time(x),
      down = y - this.laneTop(side, rank),
      found = { side, rank, time, at: -1, kind: "lane" };
    if (x < this.left - 2) return found;
    if (down > this.bar + 1) return { ...found, kind: "strip" };
    const slack = Math.min(3, this.bar) * Math.abs(this.time(1) - this.time(0));
    let i = data.firstAfter(rank, time);
    if (i < data.offsets[rank + 1] && data.start[i] <= time) {
      if (data.half[i] === 1 && down > this.bar / 2) i += 1;
      return { ...found, kind: "slot", at: i };
    }
    const g = data.gapAt(rank, time);
    if (g >= 0 && data.idle.end[g] - data.idle.start[g] > slack / 3) return { ...found, kind: "idle", at: g };
    if (i < data.offsets[rank + 1] && data.start[i] - time < slack) return { ...found, kind: "slot", at: i };
    return found;
  }
}

/** Round times between low and high, one per `gap` pixels at most. */
export function ticks(low, high, width, gap = 70) {
  const rough = ((high - low) * gap) / Math.max(width, 1),
    power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough) ?? 10 * power,
    found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-9); k++) found.push(k * step);
  return { values: found, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
}
