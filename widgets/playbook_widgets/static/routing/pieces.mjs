// Elements that several parts of the widget have, and how far rows travel.

import { make } from "../shared/dom.mjs";

export const section = (title, ...children) =>
  make("section", { "aria-label": title }, make("h3", { class: "pb-ro-heading" }, title), ...children);
export const legend = (items) =>
  make(
    "p",
    { class: "pb-ro-legend" },
    ...items.map(([kind, words]) => make("span", {}, make("i", { class: "pb-ro-swatch", "data-kind": kind }), words)),
  );
export const px = (x) => Math.round(x * 10) / 10;

/** What a row's way is called. */
export const WAYS = { own: "stays on its rank", inside: "to another rank of the node", across: "to another node" };
/** How far it is from one rank to another. */
export const way = (source, rank, node) =>
  source === rank ? "own" : Math.floor(source / node) === Math.floor(rank / node) ? "inside" : "across";
