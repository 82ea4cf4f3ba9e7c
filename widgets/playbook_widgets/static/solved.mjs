// Which exercises are solved: kept in this browser, over pages, as the command `playbook exercises` keeps it in a file.
//
// Both have dates (ISO) by exercise: {"zero.owned": "2026-11-27"}.

const MOST = 1_000_000; // bytes of a file that is read
const NAME = /^[a-z0-9-]+\.[a-z0-9-]+$/,
  DATE = /^\d{4}-\d\d-\d\d$/,
  KEY = /^playbook:(.+):solved$/;

const page = new Map(); // where the browser refuses to keep anything, it lasts as long as the page

/** What this browser keeps of an exercise, by key. */
export const kept = {
  get(key) {
    try {
      return localStorage.getItem(`playbook:${key}`);
    } catch {
      return page.get(key) ?? null;
    }
  },
  set(key, value) {
    try {
      if (value === null) localStorage.removeItem(`playbook:${key}`);
      else localStorage.setItem(`playbook:${key}`, value);
    } catch {
      page.set(key, value);
    }
  },
};

/** When an exercise was solved; null if it was not. */
export function solvedOn(name) {
  return kept.get(`${name}:solved`);
}

/** Keep that an exercise was solved, by default today, and the earlier of two dates. */
export function note(name, date = new Date().toISOString().slice(0, 10)) {
  const before = solvedOn(name);
  if (!before || date < before) kept.set(`${name}:solved`, date);
}

/** The words beside an exercise. */
export function mark(name) {
  const date = solvedOn(name);
  return date ? `✓ solved on ${date}` : "";
}

/** Dates by exercise, in the order of the alphabet. */
export function all() {
  let keys;
  try {
    keys = Object.keys(localStorage);
  } catch {
    keys = [...page.keys()].map((key) => `playbook:${key}`);
  }
  const names = keys.flatMap((key) => KEY.exec(key)?.[1] ?? []).filter((name) => NAME.test(name) && solvedOn(name));
  return Object.fromEntries(names.sort().map((name) => [name, solvedOn(name)]));
}

/** The file of `all`, as text. */
export function written() {
  return `${JSON.stringify(all(), null, 1)}\n`;
}

/** Take in what a file says of the exercises `known`. Returns how many of them were new here; throws an Error of one
    sentence, and takes nothing in, where it is no such file. */
export function read(text, known) {
  const refuse = (why) => {
    throw new Error(`This file does not say which exercises are solved: ${why}.`);
  };
  if (text.length > MOST) refuse("it is too large");
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    refuse("it is not JSON");
  }
  if (!found || typeof found !== "object" || Array.isArray(found)) refuse("it holds no names");
  for (const [name, date] of Object.entries(found)) {
    if (!NAME.test(name)) refuse(`“${name.slice(0, 40)}” is no name of an exercise`);
    if (!DATE.test(date)) refuse(`“${String(date).slice(0, 40)}” is no date (of ${name})`);
  }
  const names = Object.keys(found).filter((name) => known.includes(name)),
    fresh = names.filter((name) => !solvedOn(name));
  for (const name of names) note(name, found[name]);
  return fresh.length;
}

/** Do something now, and whenever another page has changed what is kept. */
export function follow(action) {
  action();
  addEventListener("storage", ({ key }) => (key === null || KEY.test(key)) && action());
  addEventListener("pageshow", ({ persisted }) => persisted && action()); // "back" shows a page as it was left
}
