// What one result holds: the rows of its breakdown, with their formulas.

import { bytes, grouped, rounded } from "../shared/numbers.mjs";

/** Bytes of a category at the fullest moment of a step. */
export const held = (stage, category) => stage.at_peak[category];

/** The rows of a category's breakdown: { name, head?, formula?, bytes }. Those without `head` add up to what is held. */
export function breakdown(result, index, category) {
  const stage = result.stages[index],
    per = result.bytes_per_parameter;
  const makers = {
    parameters: () => stateRows(result, stage, per.parameters, stage.params),
    gradients: () => [
      ...stateRows(result, stage, per.gradients, stage.gradients),
      ...moved(stage, stage.at_peak.gradients - stage.gradients, ["not there yet", "made before they are reduced"]),
    ],
    optimizer: () => optimizerRows(result, stage),
    activations: () => [
      ...partRows(result, stage.breakdown.activations),
      ...moved(stage, stage.at_peak.activations - stage.activations, ["used up by then", "computed again by then"]),
    ],
    buffers: () => partRows(result, stage.breakdown.buffers),
    working: () => partRows(result, stage.breakdown.working),
  };
  return makers[category]();
}

/** Bytes per parameter times the parameters of each part; one row where ZeRO has left a share of them. */
function stateRows(result, stage, each, size) {
  const { local, shard } = stage;
  if (size !== local * each) return [shareRow(shard, local, each, size)];
  return partRows(result, stage.breakdown.parameters).map((row) => ({
    ...row,
    formula: row.formula && `${each} × ${row.formula}`,
    bytes: row.bytes * each,
  }));
}

function shareRow(shard, local, each, size, name = "this rank's share") {
  const of = shard === local ? `${grouped(local)} parameters` : `${grouped(shard)} of ${grouped(local)} parameters`;
  return { name, formula: `${each} bytes × ${of}`, bytes: size };
}

function optimizerRows(result, stage) {
  const { master, moments } = result.bytes_per_parameter,
    { local, shard } = stage;
  const sharded = result.values.zero >= 1 ? shard : local;
  const rows = [
    ["master copy of the weights", master],
    ["the optimizer's averages", moments],
  ]
    .filter(([, each]) => each)
    .map(([name, each]) => shareRow(sharded, local, each, each * sharded, name));
  return stage.optimizer
    ? rows
    : rows.map((row) => ({ ...row, name: `${row.name}: ${bytes(row.bytes)} in CPU memory`, bytes: 0 }));
}

/** Terms, each as often as it is there; where there are many, under the part of the model that they belong to. */
function partRows(result, parts) {
  return parts.flatMap(([name, key, times]) => {
    const terms = result.terms[key],
      rows = terms.length > 6 ? underParts(terms, times) : terms.map((term) => termRow(term, times, terms.length > 1));
    return terms.length > 1 || times !== 1 ? [{ name, head: true, bytes: sumOf(terms) * times }, ...rows] : rows;
  });
}

function underParts(terms, times) {
  const names = [...new Set(terms.map(([part]) => part))];
  return names.flatMap((name) => {
    const own = terms.filter(([part]) => part === name);
    return [
      { name, head: true, inner: true, bytes: sumOf(own) * times },
      ...own.map((term) => termRow(term, times, false)),
    ];
  });
}

function termRow([part, name, formula, value], times, named) {
  const often = times === 1 ? formula : `${rounded(times, 4)} × ${wrapped(formula)}`;
  return { name: named && part ? `${part}: ${name}` : name, formula: often, symbols: formula, bytes: value * times };
}

const sumOf = (terms) => terms.reduce((sum, term) => sum + term[3], 0);
const wrapped = (formula) => (/[+]/.test(formula) ? `(${formula})` : formula);

/** What the fullest moment has less, or more, than the largest amount of a category. */
function moved(stage, difference, [less, more]) {
  return difference ? [{ name: `${difference < 0 ? less : more} (${stage.moment})`, bytes: difference }] : [];
}

/** The symbols that formulas use. */
export function symbolsIn(rows, known) {
  const used = new Set(rows.flatMap((row) => (row.symbols ?? "").match(/[A-Za-z]+/g) ?? []));
  return Object.keys(known).filter((symbol) => used.has(symbol));
}
