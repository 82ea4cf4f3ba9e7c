// The search dialog shows while one types which sections, terms, exercises and names fit. Without scripts, or opened
// from a file, the form leads to the search page as before.

import { make } from "./shared/dom.mjs";

const ROOT = new URL("../../", import.meta.url); // of the site
const SAID = { page: "chapter", section: "", term: "", exercise: "exercise", name: "library" };
const input = document.querySelector(".search-button__search-container #search-input");

let ready; // what ranks, once somebody wants to search

function load() {
  ready ??= Promise.all([
    import(new URL("vendor/minisearch/minisearch.mjs", ROOT)),
    import("./rank.mjs"),
    fetch(new URL("_static/sections.json", ROOT)).then((answer) => answer.json()),
  ]).then(([{ default: MiniSearch }, { indexOf, rank }, entries]) => {
    const index = indexOf(entries, MiniSearch);
    return (query) => rank(index, entries, query);
  });
  return ready;
}

function hit({ u, a, t, p, k }, number) {
  return make(
    "a",
    { href: new URL(u + (a ? `#${a}` : ""), ROOT).href, role: "option", id: `pb-hit-${number}`, tabindex: -1 },
    make("span", { class: "pb-hit-title" }, t),
    make("span", { class: "pb-hit-place" }, [p, SAID[k]].filter(Boolean).join(" · ")),
  );
}

class Finder {
  constructor(field) {
    this.field = field;
    this.list = make("div", { class: "pb-hits", role: "listbox", id: "pb-hits", "aria-label": "Found", hidden: "" });
    this.said = make("p", { class: "visually-hidden", role: "status" });
    field.closest("form").after(this.list, this.said);
    for (const [name, value] of Object.entries({
      role: "combobox",
      "aria-controls": "pb-hits",
      "aria-expanded": "false",
    }))
      field.setAttribute(name, value);
    field.addEventListener("focus", () => load().catch(() => {}));
    field.addEventListener("input", () => this.look());
    field.addEventListener("keydown", (event) => this.pressed(event));
    this.list.addEventListener("click", () => field.closest(".search-button__wrapper")?.classList.remove("show"));
  }

  async look() {
    const query = this.field.value;
    const rank = await load().catch(() => {});
    if (!rank || query !== this.field.value) return;
    this.show(query.trim() ? rank(query) : []);
    this.said.textContent = query.trim() ? `${this.list.children.length} places found` : "";
  }

  show(entries) {
    this.list.replaceChildren(...entries.map(hit));
    this.list.hidden = !entries.length;
    this.field.setAttribute("aria-expanded", String(entries.length > 0));
    this.choose(0);
  }

  choose(number) {
    const hits = [...this.list.children];
    this.chosen = hits[number];
    for (const one of hits) one.setAttribute("aria-selected", String(one === this.chosen));
    this.chosen?.scrollIntoView({ block: "nearest" });
    this.chosen
      ? this.field.setAttribute("aria-activedescendant", this.chosen.id)
      : this.field.removeAttribute("aria-activedescendant");
  }

  pressed(event) {
    const hits = [...this.list.children],
      by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!hits.length || !(by || event.key === "Enter")) return;
    event.preventDefault();
    if (by) return this.choose((hits.indexOf(this.chosen) + by + hits.length) % hits.length);
    this.chosen.click();
  }
}

if (input) new Finder(input);
