// What a step is, in words.

import { bytes, grouped, listed, plural, seconds } from "../shared/numbers.mjs";

const MOVES = { kv: "K and V", dkv: "dK and dV", q: "q", o: "outputs", do: "the outputs' gradients", dq: "dq" };

/** 8390656 is "8.39M", as Python has it. */
export const pairs = (value) => {
  const power = value >= 999.5e9 ? 4 : value >= 999.5e6 ? 3 : value >= 999.5e3 ? 2 : value >= 999.5 ? 1 : 0;
  return `${Number((value / 1000 ** power).toPrecision(3))}${["", "k", "M", "B", "T"][power]}`;
};

/** "K and V (8.39 MB)", of all that a rank sends in a step. */
export const sent = ({ moves }) => listed(moves.map(([what, size]) => `${MOVES[what]} (${bytes(size)})`));

/** Head and text for the place where the reader is. */
export function sentence({ result, at, step }) {
  const count = result.steps.length;
  if (!step)
    return [
      "Done.",
      `After ${plural(count, "step")} and ${seconds(result.seconds)} every query has met every key that it may see; each rank has sent ${bytes(result.sent)}.`,
    ];
  return [`Step ${at + 1} of ${count}.`, `${does(result, step, at)} ${waits(step)}`];
}

function does({ values }, step, at) {
  const { context, backward } = values,
    sends = step.moves.length ? `, while it sends ${sent(step)} to the next` : "";
  if (step.does === "home")
    return `All is computed. The last gradients go one rank on and are home: each sends ${sent(step)}.`;
  if (step.does === "all-gather")
    return `Nobody computes: each rank gets K and V of all others, and sends ${sent(step)}.`;
  if (step.does === "reduce-scatter")
    return `Gradients of each rank's K and V are added up where they belong: each sends ${sent(step)}.`;
  if (step.does === "all-to-all")
    return `${at === 0 ? "Tokens for heads" : "Heads for tokens"}: each rank sends ${sent(step)}.`;
  if (context === "ulysses") return "Each rank computes the whole mask for its own heads.";
  if (context === "gather") return "Each rank computes with the keys of all ranks.";
  const whose = at === 0 ? "its own keys" : `the keys of the rank ${at === 1 ? "before it" : `${at} places before it`}`;
  return `Each rank computes${backward ? " gradients" : ""} with ${whose}${sends}.`;
}

function waits({ does, idle, compute, message, exposed }) {
  if (does !== "attend") return `${seconds(message)}.`;
  const who = idle.length
    ? `${idle.length === 1 ? "Rank" : "Ranks"} ${listed(idle)} ${idle.length === 1 ? "has" : "have"} nothing to compute.`
    : "";
  if (!message) return `${who} ${seconds(compute)} for the busiest.`.trim();
  const how = exposed
    ? `the message takes ${seconds(message)}, longer than the busiest rank's ${seconds(compute)}: it shows.`
    : `the message's ${seconds(message)} hide behind the busiest rank's ${seconds(compute)}.`;
  return `${who} ${how[0].toUpperCase()}${how.slice(1)}`.trim();
}

/** "0–1023 and 7168–8191": which tokens a rank has. */
export const tokens = (ranges) => ranges.map(([first, end]) => `${grouped(first)}–${grouped(end - 1)}`).join(" and ");
