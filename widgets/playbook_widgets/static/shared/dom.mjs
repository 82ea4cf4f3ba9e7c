// Elements: making them, and changing them only where something changes.

export const SVG = "http" + "://www.w3.org/2000/svg"; // a name, not an address: nothing is loaded from there

/** An HTML element; attributes that are undefined are left out. */
export function make(tag, attributes = {}, ...children) {
  const el = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) if (value !== undefined) el.setAttribute(key, value);
  el.append(...children);
  return el;
}

/** An SVG element. */
export function draw(tag, attributes = {}, ...children) {
  const el = document.createElementNS(SVG, tag);
  setAll(el, attributes);
  el.append(...children);
  return el;
}

/** A button that does `action` when it is pressed. */
export function button(text, action, attributes = {}) {
  const el = make("button", { type: "button", ...attributes }, text);
  el.addEventListener("click", action);
  return el;
}

/** A table of texts with a row of column heads. */
export function tableOf(head, rows) {
  const row = (tag, texts, attributes) => make("tr", {}, ...texts.map((text) => make(tag, attributes, String(text))));
  return make(
    "table",
    {},
    make("thead", {}, row("th", head, { scope: "col" })),
    make("tbody", {}, ...rows.map((texts) => row("td", texts))),
  );
}

/** Set the text of an element only when it changes, so that nothing is laid out, or read out, again for nothing. */
export function say(el, text) {
  if (el.textContent !== String(text)) el.textContent = text;
}

/** Set an attribute when it changes; null and false take it away, true is the empty text. */
export function set(el, key, value) {
  if (value === null || value === false) el.removeAttribute(key);
  else if (el.getAttribute(key) !== String(value)) el.setAttribute(key, value === true ? "" : value);
}

/** Set several attributes to what changes all the time. */
export function setAll(el, attributes) {
  for (const [key, value] of Object.entries(attributes)) el.setAttribute(key, value);
}

/** As many children as `length`, made by `create` from their place, the old ones kept. */
export function keep(parent, length, create) {
  while (parent.children.length > length) parent.lastElementChild.remove();
  while (parent.children.length < length) parent.append(create(parent.children.length));
  return [...parent.children];
}

let serial = 0;

/** An id that no other widget of the page has: "pb-mc-3". */
export function newId(prefix) {
  return `${prefix}-${++serial}`;
}
