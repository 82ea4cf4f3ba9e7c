// What the ranks hold and what a step does, in words. A set of ranks is a number, of which bit r stands for rank r.

import { bytes, listed, plural } from "../shared/numbers.mjs";

/** What each rank holds before each step and at the end: [place in the plan][rank][chunk], bit r for rank r. */
export function states({ start, steps }) {
  const all = [start];
  for (const { changes } of steps) {
    const next = all.at(-1).map((row) => row.slice());
    for (const [rank, chunk, ranks] of changes) next[rank][chunk] = ranks;
    all.push(next);
  }
  return all;
}

/** One step in words. */
export function sentence({ messages, idle }, collective) {
  const sizes = messages.map((m) => m.bytes),
    least = Math.min(...sizes),
    most = Math.max(...sizes);
  const size = bytes(least) === bytes(most) ? bytes(most) : `${bytes(least)} to ${bytes(most)}`;
  const what =
    collective === "barrier"
      ? "each says whom its sender has heard of"
      : messages[0].adds
        ? "what arrives is added"
        : "what arrives is kept";
  const waiting = idle.length
    ? `${idle.length === 1 ? "Rank" : "Ranks"} ${ranges(idle)} ${idle.length === 1 ? "is" : "are"} idle.`
    : "Nobody is idle.";
  return `${plural(messages.length, "message")} of ${size}; ${what}. ${waiting}`;
}

/** One chunk of a rank in words. */
export function contents(bits, wanted, { collective }) {
  const ranks = ranksIn(bits),
    names = `${ranks.length === 1 ? "rank" : "ranks"} ${listed(ranks)}`,
    done = bits && bits === wanted ? ", finished" : "";
  if (!ranks.length) return "nothing yet";
  if (collective === "barrier") return `has heard of ${names}${done}`;
  return `${ranks.length > 1 ? `the sum of ${names}` : `that of ${names}`}${done}`;
}

export const chunksOf = ({ first, last }) => (last - first === 1 ? String(first) : `${first}–${last - 1}`);
export const ranksIn = (bits) => [...Array(16).keys()].filter((rank) => (bits >> rank) & 1);

/** [1, 2, 3, 5] is [[1, 3], [5, 5]]. */
export const runsOf = (numbers) =>
  numbers
    .filter((n) => !numbers.includes(n - 1))
    .map((first) => [first, numbers.find((n) => n >= first && !numbers.includes(n + 1))]);
/** [1, 2, 3, 5] is "1–3 and 5". */
const ranges = (numbers) => listed(runsOf(numbers).flatMap(([a, b]) => (b - a > 1 ? `${a}–${b}` : b > a ? [a, b] : a)));
