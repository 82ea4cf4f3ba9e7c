// Where the ranks stand, and how large their cards are.

import { ranksIn } from "./words.mjs";

const isPower = (n) => (n & (n - 1)) === 0;

/** A tree for trees, a star where all goes through one rank, rows of nodes for two levels, else a circle. */
function shapeOf({ values: { collective, algorithm, root }, nodes }, narrow = false) {
  const inNode = nodes[0].length,
    one = nodes.length === 1;
  if (algorithm === "binomial" && (one || (isPower(inNode) && root % inNode === 0))) return "tree";
  if (algorithm === "naive" && collective !== "all_to_all" && one) return "star";
  return algorithm === "two_level" && !one && inNode > 1 && !(narrow && inNode > 4) ? "grid" : "circle";
}

/** The place of each rank in a unit square. */
const PLACES = {
  circle({ values: { ranks: n }, nodes }) {
    const gap = nodes.length > 1 && nodes[0].length > 1 ? (nodes.length > 2 ? 0.3 : 0.6) : 0; // between nodes
    const turn = nodes.flatMap((node, i) => node.map((rank) => rank + i * gap)),
      all = n + nodes.length * gap;
    return turn.map((at) => onCircle(at / all));
  },
  star({ values: { ranks: n, root } }) {
    const around = (rank) => (rank - root - 1 + n) % n;
    return Array.from({ length: n }, (_, rank) =>
      rank === root ? { x: 0.5, y: 0.5 } : onCircle(n === 2 ? 0 : (around(rank) + 0.5) / (n - 1)),
    );
  },
  /** Above the middle of what hangs below it: rank p of the tree heads the p & −p ranks from p on. */
  tree({ values: { ranks: n, root } }) {
    const places = Array.from({ length: n }, (_, rank) => (rank - root + n) % n);
    const across = places.map((p) => p + (p ? p & -p : 2 ** (n - 1).toString(2).length) / 2),
      down = places.map((p) => ranksIn(p).length);
    const [left, right, deepest] = [Math.min(...across), Math.max(...across), Math.max(...down)];
    return across.map((x, i) => ({ x: (x - left) / (right - left), y: down[i] / deepest }));
  },
  grid({ nodes }) {
    const unit = (i, count) => (count > 1 ? i / (count - 1) : 0.5);
    return nodes.flatMap((node, row) =>
      node.map((_, column) => ({ x: unit(column, node.length), y: unit(row, nodes.length) })),
    );
  },
};

const onCircle = (turn) => ({ x: 0.5 + Math.sin(2 * Math.PI * turn) / 2, y: 0.5 - Math.cos(2 * Math.PI * turn) / 2 });

/** Sizes of a card with `chunks` cells of `cell` px, in one box or, where there is something to send besides, in two. */
function cardOf(chunks, boxes, cell) {
  const columns = chunks <= 5 ? chunks : chunks === 6 || chunks === 9 ? 3 : chunks === 10 ? 5 : 4,
    rows = Math.ceil(chunks / columns);
  const high = Math.round(cell * (rows === 1 ? 0.9 : 0.78)),
    head = cell < 11 ? 14 : 20,
    pad = cell < 9 ? 3 : 6;
  const second = columns * cell + (cell < 9 ? 4 : 10),
    whole = second * (boxes - 1) + columns * cell; // from one box to the next; all
  return {
    columns,
    wide: cell,
    high,
    head,
    pad,
    second,
    whole,
    width: Math.max(whole + 2 * pad, cell < 9 ? 22 : 30),
    height: head + rows * high + pad,
  };
}

/** The largest cells with which no two cards come too close; places in px. */
export function arrange(result, width) {
  const narrow = width < 560,
    shape = shapeOf(result, narrow),
    chunks = result.start[0].length,
    boxes = result.values.collective === "all_to_all" ? 2 : 1;
  const units = PLACES[shape](result),
    gap = narrow ? 12 : 22;
  for (let cell = 26; ; cell -= cell > 12 ? 2 : 1) {
    const card = cardOf(chunks, boxes, cell),
      height = heightOf(shape, result, card, narrow && width),
      edge = shape === "grid" ? 26 : 10;
    const span = { x: width - card.width - 2 * edge, y: height - card.height - 2 * edge };
    const places = units.map(({ x, y }) => ({
      x: edge + card.width / 2 + x * span.x,
      y: edge + card.height / 2 + y * span.y,
    }));
    if (cell <= 4 || apart(places, card, cell < 10 ? Math.min(gap, cell) : gap))
      return { shape, card, places, width, height, boxes, chunks };
  }
}

function heightOf(shape, { values: { ranks }, nodes }, card, narrow) {
  if (shape === "grid") return nodes.length * (card.height + 52);
  if (shape === "tree") return 20 + card.height + (ranks - 1).toString(2).length * (card.height + 46);
  return narrow ? narrow * (ranks > 10 ? 1.2 : 1.04) : ranks <= 8 ? 380 : 460;
}

function apart(places, card, gap) {
  return places.every((a, i) =>
    places
      .slice(i + 1)
      .every((b) => Math.abs(a.x - b.x) >= card.width + gap || Math.abs(a.y - b.y) >= card.height + gap),
  );
}
