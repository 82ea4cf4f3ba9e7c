// Settings as the text of a link, ranks=8&bytes=64%20MB, and back.

/** What a reader typed: a number where it is one (8192, 8,192, 8k or 1e5), else the text, so that a refusal can quote it. */
export function parse(text) {
  const [, digits, power, k] =
    text.trim().match(/^(-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)(?:e\+?(\d\d?)|(k))?$/i) ?? [];
  const value = Number(`${digits?.replaceAll(",", "")}e${power ?? 0}`) * (k ? 1024 : 1);
  return Math.abs(value) <= Number.MAX_SAFE_INTEGER ? value : text;
}

/** Those of `keys` that are set, in this order. */
export function encodePairs(settings, keys = Object.keys(settings)) {
  return keys
    .filter((key) => settings[key] != null)
    .map((key) => `${key}=${encodeURIComponent(settings[key])}`)
    .join("&");
}

/** The settings of a link; `keys` are the ones there are, others are passed over. Those of `texts` stay as they were typed. */
export function decodePairs(text, keys, texts = []) {
  const known = new Set(keys),
    pairs = text.split("&").map((pair) => pair.split(/=(.*)/s, 2)); // at the first = of each
  return Object.fromEntries(
    pairs
      .filter(([key, value]) => known.has(key) && value !== undefined)
      .map(([key, value]) => [key, texts.includes(key) ? plain(value) : literal(value)]),
  );
}

function literal(value) {
  const text = plain(value);
  return text === "true" ? true : text === "false" ? false : parse(text);
}

function plain(value) {
  try {
    return decodeURIComponent(value);
  } catch {
    return value; // a stray % is text like any other
  }
}
