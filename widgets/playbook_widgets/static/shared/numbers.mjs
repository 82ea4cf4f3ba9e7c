// Numbers in words. Thousands stand apart by a narrow space, and a minus is a minus, not a hyphen.

export const NARROW = "\u202f";
export const MINUS = "−";

/** The two systems of units of bytes: their base, and their units. */
export const SYSTEMS = {
  GB: [1000, ["B", "kB", "MB", "GB", "TB", "PB"]],
  GiB: [1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]],
};
const TIMES = [
  [1e-9, "ns"],
  [1e-6, "µs"],
  [1e-3, "ms"],
  [1, "s"],
  [60, "min"],
  [3600, "h"],
];

/** `value` with about `digits` significant digits, whole numbers in full, no trailing zeros. */
export function rounded(value, digits = 3) {
  if (!value) return "0";
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  const text = value.toFixed(Math.min(places, 20));
  return (text.includes(".") ? text.replace(/\.?0+$/, "") : text).replace("-", MINUS);
}

/** 1048576 is "1 048 576". */
export const grouped = (value) => String(value).replace(/\B(?=(\d{3})+(\.|$))(?<!\.\d*)/g, NARROW);

/** 63412345856 is "63.4 GB" or "59.1 GiB"; rounding comes before the choice of the unit. */
export function bytes(size, system = "GB", digits = 3) {
  const [base, units] = SYSTEMS[system];
  let power = 0;
  while (power < units.length - 1 && +rounded(Math.abs(size) / base ** power, digits) >= base) power++;
  return `${rounded(size / base ** power, digits)} ${units[power]}`;
}

/** A size to the byte, as short as that goes: 10 MB, 1 MiB, 1 234 567 B. */
export function exactly(size) {
  const units = [
    [1e9, "GB"],
    [1e6, "MB"],
    [1e3, "kB"],
    [2 ** 20, "MiB"],
    [2 ** 10, "KiB"],
  ];
  const [one, unit] = units.find(([n]) => size >= n && Number.isInteger((size / n) * 100)) ?? [1, "B"];
  return `${grouped(size / one)} ${unit}`;
}

/** 0.0000628 is "62.8 µs", 5793 is "1.61 h". */
export function seconds(time) {
  if (!time) return "0 s";
  const [size, unit] = TIMES.findLast(([size]) => +rounded(Math.abs(time) / size) >= 1) ?? TIMES[0];
  return `${rounded(time / size)} ${unit}`;
}

/** 8030261248 is "8.03B", as the sizes of models are written. */
export function count(value) {
  const names = ["", "k", "M", "B", "T"];
  let power = 0;
  while (power < 4 && +rounded(value / 1000 ** power) >= 1000) power++;
  return rounded(value / 1000 ** power) + names[power];
}

/** 0.084 is "8 %". */
export const percent = (part) => `${Math.round(100 * part)}${NARROW}%`;

/** A share in percent, two digits of it; tiny ones are called so. */
export function share(part, whole) {
  const value = whole ? (100 * part) / whole : 0;
  if (value && Math.abs(value) < 0.1) return `<0.1${NARROW}%`;
  return `${rounded(value, Math.abs(value) < 1 ? 1 : 2)}${NARROW}%`;
}

/** "1 step", "2 steps". */
export const plural = (number, word) => `${grouped(number)} ${word}${number === 1 ? "" : "s"}`;

/** "0, 1 and 2". */
export const listed = (items) =>
  items.length < 2 ? items.join() : `${items.slice(0, -1).join(", ")} and ${items.at(-1)}`;
