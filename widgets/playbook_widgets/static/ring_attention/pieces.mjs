// Elements that several parts of the widget have, and the colours of the ranks.

import { make } from "../shared/dom.mjs";

export const section = (title, ...children) =>
  make("section", { "aria-label": title }, make("h3", { class: "pb-ra-heading" }, title), ...children);
export const swatch = (kind, words) => make("span", {}, make("i", { class: `pb-ra-swatch pb-ra-is-${kind}` }), words);
export const px = (x) => Math.round(x * 10) / 10;

const HUES = ["parameters", "gradients", "optimizer", "activations", "buffers", "temporary"];
const SHADES = [
  "var(--hue)",
  "color-mix(in oklab, var(--hue) 55%, var(--pb-surface))",
  "color-mix(in oklab, var(--hue) 60%, currentColor)",
];

/** The style that gives an element a rank's colour as `--rank`: six hues, each plain, paler and stronger. */
export const colour = (rank) => `--hue: var(--pb-${HUES[rank % 6]}); --rank: ${SHADES[Math.floor(rank / 6) % 3]}`;
/** A rank's number on its colour. */
export const chip = (rank) => make("span", { class: "pb-ra-chip", style: colour(rank) }, String(rank));
