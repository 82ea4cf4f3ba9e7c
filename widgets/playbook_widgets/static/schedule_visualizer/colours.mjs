// The colours of a page: each pass has a hue, each further stage of a rank is fainter, as in the figures of the book.

const NAMES = { F: "--pb-F", B: "--pb-B", W: "--pb-W", memory: "--pb-activations" };
const FALLBACK = { F: "#2f72d8", B: "#d77c3a", W: "#2ea17a", memory: "#a13e90" };
const FAINTEST = 0.62; // what the last stage of a rank has lost of its hue: playbook_book/figures/pipeline_rows.py
export const OVER = { light: "#c81e1e", dark: "#ff7b72" };

/** Colours as the element has them now; `dark` says which page it is. */
export function coloursOf(el) {
  const style = getComputedStyle(el),
    ink = rgb(style.color) ?? [31, 35, 40],
    dark = luminance(ink) > 0.4;
  const pure = Object.fromEntries(
    Object.entries(NAMES).map(([name, variable]) => [
      name,
      rgb(style.getPropertyValue(variable).trim()) ?? rgb(FALLBACK[name]),
    ]),
  );
  const surface =
    rgb(getComputedStyle(el).getPropertyValue("--pb-solid").trim()) ?? (dark ? [20, 24, 30] : [255, 255, 255]);
  const made = new Map();
  /** The look of a pass on the `chunk`-th of a rank's `chunks` stages. */
  const shade = (name, chunk = 0, chunks = 1) => {
    const key = `${name} ${chunk} ${chunks}`;
    if (!made.has(key)) {
      const fill = mix(pure[name], surface, FAINTEST * Math.min(1, chunk / Math.max(1, chunks - 1)));
      made.set(key, { fill: hex(fill), text: luminance(fill) > 0.179 ? "#000" : "#fff" });
    }
    return made.get(key);
  };
  return {
    ink: hex(ink),
    surface: hex(surface),
    dark,
    over: OVER[dark ? "dark" : "light"],
    memory: hex(pure.memory),
    shade,
  };
}

function rgb(text) {
  if (/^#[0-9a-f]{6}$/i.test(text)) return [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
  const found = text.match(/^rgba?\(([\d.]+)[, ]+([\d.]+)[, ]+([\d.]+)/);
  return found ? found.slice(1, 4).map(Number) : null;
}

const hex = (colour) => `#${colour.map((c) => Math.round(c).toString(16).padStart(2, "0")).join("")}`;
const mix = (a, b, part) => a.map((c, i) => c + (b[i] - c) * part);

/** WCAG's relative luminance. */
function luminance(colour) {
  const [r, g, b] = colour.map((c) => (c / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
