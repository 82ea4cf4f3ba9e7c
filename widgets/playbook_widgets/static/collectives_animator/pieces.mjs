// Elements that several parts of the animator have.

import { make } from "../shared/dom.mjs";

export const section = (title, ...children) =>
  make("section", { "aria-label": title }, make("h3", { class: "pb-ca-heading" }, title), ...children);
export const swatch = (kind, words) => make("span", {}, make("i", { class: `pb-ca-swatch pb-ca-is-${kind}` }), words);
