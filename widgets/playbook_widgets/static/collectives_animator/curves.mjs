// The ways of messages and the outlines of nodes, as points in px and as paths of SVG.

export const mix = (a, b, t) => ({ x: a.x + (b.x - a.x) * t, y: a.y + (b.y - a.y) * t });
export const along = ([a, c, b], t) => mix(mix(a, c, t), mix(c, b, t), t);

/** A quadratic curve from `a` to `b`, to the left of the straight line by `bow` px, then towards `centre` by a share. */
export function curve(a, b, bow, centre, share) {
  const length = Math.hypot(b.x - a.x, b.y - a.y) || 1,
    middle = mix(mix(a, b, 0.5), centre, share);
  return [a, { x: middle.x + ((b.y - a.y) / length) * bow * 2, y: middle.y - ((b.x - a.x) / length) * bow * 2 }, b];
}

/** The piece of a curve from t0 to t1. */
export function piece([a, c, b], t0, t1) {
  return [along([a, c, b], t0), mix(mix(a, c, t0), mix(c, b, t0), t1), along([a, c, b], t1)];
}

/** Where a curve leaves the card at its start and where it meets the one at its end. */
export function outside(line, from, to, card) {
  const within = (point, centre, by) =>
    Math.abs(point.x - centre.x) < card.width / 2 + by && Math.abs(point.y - centre.y) < card.height / 2 + by;
  const points = Array.from({ length: 61 }, (_, i) => along(line, i / 60));
  const leaves = points.findIndex((point) => !within(point, from, 2)),
    meets = points.findLastIndex((point) => !within(point, to, 3));
  return leaves < meets && leaves >= 0 ? [leaves / 60, meets / 60] : [0.4, 0.6];
}

export const px = (value) => value.toFixed(1);
const pathOf = ([a, c, b]) => `M${px(a.x)},${px(a.y)}Q${px(c.x)},${px(c.y)} ${px(b.x)},${px(b.y)}`;

/** A curve with a head at its end. */
export function arrow([a, c, b]) {
  const angle = Math.atan2(b.y - c.y, b.x - c.x),
    corner = (turn) => `${px(b.x - 8 * Math.cos(angle + turn))},${px(b.y - 8 * Math.sin(angle + turn))}`;
  return {
    line: pathOf([a, c, { x: b.x - 4 * Math.cos(angle), y: b.y - 4 * Math.sin(angle) }]),
    head: `M${px(b.x)},${px(b.y)}L${corner(0.45)}L${corner(-0.45)}Z`,
  };
}

/** The outline of a set of points that holds them all. */
export function hull(points) {
  const sorted = [...points].sort((a, b) => a.x - b.x || a.y - b.y);
  const half = (all) =>
    all
      .reduce((kept, p) => {
        while (kept.length > 1 && turn(kept.at(-2), kept.at(-1), p) <= 0) kept.pop();
        kept.push(p);
        return kept;
      }, [])
      .slice(0, -1);
  return [...half(sorted), ...half(sorted.reverse())];
}
const turn = (a, b, c) => (b.x - a.x) * (c.y - a.y) - (b.y - a.y) * (c.x - a.x);
