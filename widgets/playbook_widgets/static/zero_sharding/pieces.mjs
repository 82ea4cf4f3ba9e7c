// Elements that several parts of the widget have.

import { make } from "../shared/dom.mjs";

export const section = (title, ...children) =>
  make("section", { "aria-label": title }, make("h3", { class: "pb-zs-heading" }, title), ...children);
/** A patch of the colour of a kind of state or of a collective. */
export const swatch = (kind) => make("i", { class: "pb-zs-swatch", "data-kind": kind });
export const legend = (items) =>
  make("p", { class: "pb-zs-legend" }, ...items.map(([kind, words]) => make("span", {}, swatch(kind), words)));
