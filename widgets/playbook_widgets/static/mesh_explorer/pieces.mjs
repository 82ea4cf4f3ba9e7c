// Elements that several parts of the widget have.

import { make } from "../shared/dom.mjs";

export const section = (title, ...children) => {
  const heading = make("h3", { class: "pb-me-heading" }, title);
  return make("section", { "aria-label": title }, heading, ...children);
};
/** The mark of a group: its letter on its colour; copies of something are hatched. */
export const mark = ({ letter, axis, name }) =>
  make("span", { class: "pb-me-mark", "data-axis": axis, "data-group": name, "aria-hidden": "true" }, letter);
