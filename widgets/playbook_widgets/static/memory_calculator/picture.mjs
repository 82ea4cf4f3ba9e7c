// The picture that is saved.

import { SVG } from "../shared/dom.mjs";
import { held } from "./breakdown.mjs";
import { fit } from "./fit.mjs";

/** The bars, their line and their legend as an SVG file that needs nothing else. */
export function pictureOf(app) {
  const shown = app.shown(),
    scale = Math.max(...shown.map((r) => Math.max(r.peak, r.memory))) * 1.03,
    width = 760,
    left = 80,
    track = 560;
  const escaped = (text) => text.replace(/[&<>]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[c]);
  const text = (x, y, words, more = "") => `<text x="${x}" y="${y}" ${more}>${escaped(words)}</text>`,
    out = [];
  let y = 30;
  for (const result of shown) {
    const x = left + (result.memory / scale) * track;
    out.push(
      text(
        16,
        y,
        `${app.bytes(result.peak)} of ${app.bytes(result.memory)}: ${fit(app, result)}`,
        'font-size="18" font-weight="600"',
      ),
      text(16, y + 20, result.command, 'font-size="11"'),
    );
    y += 50;
    out.push(text(x, y - 6, app.bytes(result.memory), 'font-size="11" text-anchor="middle"'));
    const first = y;
    result.stages.forEach((stage, index) => {
      let at = left;
      out.push(
        text(
          left - 8,
          y + 13,
          result.stages.length === 1 ? "each GPU" : `stage ${index}`,
          'font-size="11" text-anchor="end"',
        ),
      );
      for (const [category, , , colour] of app.constants.categories) {
        const wide = (held(stage, category) / scale) * track;
        if (wide)
          out.push(`<rect x="${at.toFixed(2)}" y="${y}" width="${wide.toFixed(2)}" height="17" fill="${colour}"/>`);
        at += wide;
      }
      out.push(text(left + track + 10, y + 13, app.bytes(stage.total), 'font-size="11"'));
      y += 21;
    });
    out.push(`<line x1="${x}" x2="${x}" y1="${first - 2}" y2="${y}" stroke="#1f2328" stroke-width="1.5"/>`);
    y += 30;
  }
  let at = 16;
  for (const [, words, , colour] of app.constants.categories) {
    out.push(
      `<rect x="${at}" y="${y - 10}" width="11" height="11" fill="${colour}"/>`,
      text(at + 16, y, words, 'font-size="12"'),
    );
    at += 34 + 6.6 * words.length;
  }
  return `<svg xmlns="${SVG}" viewBox="0 0 ${width} ${y + 16}" width="${width}" height="${y + 16}" font-family="system-ui, sans-serif" fill="#1f2328"><rect width="100%" height="100%" fill="#ffffff"/>${out.join("")}</svg>`;
}
