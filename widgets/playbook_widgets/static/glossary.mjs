// The glossary shows, while one types, the entries whose names have all the words; without any, those whose text has.

import { make } from "./shared/dom.mjs";

const plain = (text) =>
  text
    .toLowerCase()
    .replace(/[\s\-–]+/g, " ")
    .trim();

/** An entry's names and its text, which stand beside each other in the list. */
function entryOf(definition) {
  const names = [];
  for (let above = definition.previousElementSibling; above?.tagName === "DT"; above = above.previousElementSibling)
    names.unshift(above);
  const said = (parts) => plain(parts.map((part) => part.textContent.replace(/#$/, "")).join(" "));
  const parts = [...names, definition];
  return { parts, name: said(names), text: said(parts), list: definition.parentElement };
}

class Filter {
  constructor(letters) {
    this.letters = letters;
    this.entries = [...document.querySelectorAll("dl.glossary > dd")].map(entryOf);
    this.field = make("input", { type: "search", id: "pb-filter", autocomplete: "off", class: "form-control" });
    this.said = make("p", { role: "status" });
    this.field.addEventListener("input", () => this.show());
    letters.before(
      make("div", { class: "pb-filter" }, make("label", { for: "pb-filter" }, "Filter"), this.field, this.said),
    );
    addEventListener("hashchange", () => this.reveal());
    this.show(); // a browser may have kept what was typed
  }

  show() {
    const words = plain(this.field.value).split(" ").filter(Boolean);
    const having = (key) => this.entries.filter((entry) => words.every((word) => entry[key].includes(word)));
    const named = having("name"),
      found = named.length ? named : having("text");
    const lists = new Set(found.map(({ list }) => list));
    for (const entry of this.entries) for (const part of entry.parts) part.hidden = !found.includes(entry);
    for (const { list } of this.entries) {
      const heading = list.previousElementSibling;
      list.hidden = heading.hidden = !lists.has(list);
      this.letters.querySelector(`[href="#${heading.id}"]`).parentElement.hidden = list.hidden;
    }
    const count = `${found.length} of ${this.entries.length} entries`;
    this.said.textContent = words.length ? (named.length || !found.length ? count : `${count}, by their text`) : "";
  }

  /** A link may lead to an entry that does not fit. */
  reveal() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target?.hidden) return;
    this.field.value = "";
    this.show();
    target.scrollIntoView();
  }
}

const letters = document.querySelector(".pb-letters");
if (letters) new Filter(letters);
