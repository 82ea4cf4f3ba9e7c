// Elements that several parts of the widget have, and places in them.

import { make } from "../shared/dom.mjs";
import { grouped } from "../shared/numbers.mjs";

/** Bytes of a line, a sector and a word; how many banks there are. */
export const LINE = 128;
export const SECTOR = 32;
export const WORD = 4;
export const BANKS = 32;

export const section = (title, ...children) =>
  make("section", { "aria-label": title }, make("h3", { class: "pb-ma-heading" }, title), ...children);
export const legend = (items) =>
  make(
    "p",
    { class: "pb-ma-legend" },
    ...items.map(([kind, words]) => make("span", {}, make("i", { class: "pb-ma-swatch", "data-kind": kind }), words)),
  );
/** A mark at a place of its parent, in shares of its width and height; without the last two as high as that. */
export function mark(kind, left, width, top, height) {
  const el = make("i", { "data-kind": kind }),
    percent = (part) => `${Math.round(part * 1e6) / 1e4}%`;
  Object.assign(
    el.style,
    { left: percent(left), width: percent(width) },
    top === undefined ? {} : { top: percent(top), height: percent(height) },
  );
  return el;
}

/** Where an address is: "sector 5 of line 1" or "bank 3", "banks 4 to 7". */
export function where({ values, bytes }, address) {
  if (values.memory === "global")
    return `sector ${grouped(Math.floor(address / SECTOR))}, line ${grouped(Math.floor(address / LINE))}`;
  const first = Math.floor(address / WORD) % BANKS,
    last = Math.floor((address + bytes - 1) / WORD) % BANKS;
  return first === last ? `bank ${first}` : `banks ${first} to ${last}`;
}
/** "A[2][5]", for a vector its first and its last element. */
export function element({ values }, [row, column]) {
  const { vector, layout } = values,
    name = `A[${row}][${column}]`;
  if (vector === 1) return name;
  return `${name} to ${layout === "row-major" ? `A[${row}][${column + vector - 1}]` : `A[${row + vector - 1}][${column}]`}`;
}
