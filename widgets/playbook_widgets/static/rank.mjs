// Which sections of the book answer a query: titles before further names, those before text; beginnings of words, and
// words with a letter or two wrong. Where no section has all words, those with most of them.

const BOOST = { t: 6, s: 5, p: 2, x: 1 };
const KIND = { page: 1.6, section: 1, term: 0.9, exercise: 0.5, name: 0.6 };
const SMALL = new Set(
  "a an and are can do does for from how i in is it many my need of on or the to what when with".split(" "),
);
const SPLIT = /[^\p{L}\p{N}]+/u;

/** The words of a text, in small letters; what hyphens join is one word, too. */
function words(text) {
  const joined = text.match(/[\p{L}\p{N}]+(?:-[\p{L}\p{N}]+)+/gu) ?? [];
  return [...text.split(SPLIT), ...joined.map((word) => word.replaceAll("-", ""))].filter(Boolean);
}

/** An index of entries as `site/sections.py` writes them. */
export function indexOf(entries, MiniSearch) {
  const index = new MiniSearch({
    fields: Object.keys(BOOST),
    extractField: (entry, field) => (field === "s" ? (entry.s ?? []).join(" · ") : entry[field]),
    idField: "id",
    tokenize: words,
    processTerm: (term) => (SMALL.has(term.toLowerCase()) ? null : term.toLowerCase()),
  });
  index.addAll(entries.map((entry, id) => ({ ...entry, id })));
  return index;
}

/** The best `most` entries for what a reader typed. */
export function rank(index, entries, typed, most = 12) {
  const query = typed.slice(0, 200),
    whole = query.trim().toLowerCase(),
    named = (entry) => [entry.t, ...(entry.s ?? [])].some((name) => name.toLowerCase() === whole),
    options = {
      boost: BOOST,
      boostDocument: (id) => KIND[entries[id].k] * (named(entries[id]) ? 3 : 1),
      prefix: (term) => term.length > 1,
      fuzzy: (term) => (term.length > 4 ? 0.25 : 0),
      weights: { fuzzy: 0.15, prefix: 0.5 },
    },
    all = index.search(query, { ...options, combineWith: "AND" }),
    found = all.length ? all : index.search(query, options);
  return found.slice(0, most).map(({ id }) => entries[id]);
}
