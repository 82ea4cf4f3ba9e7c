// The picture that is saved: what is in view as SVG, drawn by the same painter through a small stand-in for a canvas.

import { SVG } from "../shared/dom.mjs";
import { Painter } from "./painter.mjs";

const escaped = (text) =>
  String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const n = (value) => Number(value.toFixed(2));

/** As much of a 2d context as the painter uses; rectangles of one colour between two other shapes become one path. */
class Context {
  constructor() {
    Object.assign(this, { parts: [], stack: [], runs: new Map(), path: "", clips: 0 });
    Object.assign(this, {
      fillStyle: "#000",
      strokeStyle: "#000",
      globalAlpha: 1,
      lineWidth: 1,
      textAlign: "start",
      dash: [],
      clipped: "",
      font: "12px sans-serif",
    });
  }

  flush() {
    for (const { d, fill, alpha, clip } of this.runs.values())
      this.parts.push(`<path d="${d.join("")}" fill="${fill}"${alpha < 1 ? ` fill-opacity="${alpha}"` : ""}${clip}/>`);
    this.runs.clear();
  }

  fillRect(x, y, wide, high) {
    if (wide <= 0 || high <= 0) return;
    const { fillStyle: fill, globalAlpha: alpha, clipped: clip } = this;
    const key = fill + alpha + clip;
    if (!this.runs.has(key)) this.runs.set(key, { fill, alpha, clip, d: [] });
    this.runs.get(key).d.push(`M${n(x)},${n(y)}h${n(wide)}v${n(high)}h${n(-wide)}z`);
  }

  fillText(text, x, y) {
    this.flush();
    const [, weight = "400", size] = this.font.match(/^(\d+) ([\d.]+)px/) ?? ["", "400", "12"];
    this.parts.push(
      `<text x="${n(x)}" y="${n(y + size * 0.35)}" font-size="${size}" font-weight="${weight}" fill="${this.fillStyle}"${this.textAlign === "center" ? ' text-anchor="middle"' : ""}${this.globalAlpha < 1 ? ` fill-opacity="${this.globalAlpha}"` : ""}>${escaped(text)}</text>`,
    );
  }

  measureText(text) {
    return { width: text.length * Number(this.font.match(/([\d.]+)px/)?.[1] ?? 12) * 0.56 };
  }

  beginPath() {
    this.path = "";
  }
  moveTo(x, y) {
    this.path += `M${n(x)},${n(y)}`;
  }
  lineTo(x, y) {
    this.path += `L${n(x)},${n(y)}`;
  }
  rect(x, y, wide, high) {
    this.path += `M${n(x)},${n(y)}h${n(wide)}v${n(high)}h${n(-wide)}z`;
  }
  closePath() {
    this.path += "z";
  }

  fill() {
    this.flush();
    this.parts.push(
      `<path d="${this.path}" fill="${this.fillStyle}" fill-opacity="${this.globalAlpha}"${this.clipped}/>`,
    );
  }

  stroke() {
    this.flush();
    this.parts.push(
      `<path d="${this.path}" fill="none" stroke="${this.strokeStyle}" stroke-width="${this.lineWidth}"${this.dash.length ? ` stroke-dasharray="${this.dash.join(" ")}"` : ""}${this.clipped}/>`,
    );
  }

  clip() {
    this.flush();
    this.parts.push(`<clipPath id="c${++this.clips}"><path d="${this.path}"/></clipPath>`);
    this.clipped = ` clip-path="url(#c${this.clips})"`;
  }

  setLineDash(dash) {
    this.dash = dash;
  }
  save() {
    this.stack.push({ clipped: this.clipped, dash: this.dash });
  }
  restore() {
    this.flush();
    Object.assign(this, this.stack.pop());
  }
  clearRect() {}
}

/** The picture, and below it what its colours are, as an SVG file that needs nothing else. */
export function pictureOf(app) {
  const { scene, result } = app,
    { geometry: g } = scene,
    colours = scene.colours(),
    c = new Context(),
    foot = g.height + 8;
  new Painter(app, scene).paint(c, colours);
  c.flush();
  let at = 0;
  for (const [name, words] of app.legendWords()) {
    c.fillStyle = name === "memory" ? colours.memory : colours.shade(name).fill;
    c.fillRect(at, foot, 11, 11);
    c.fillStyle = colours.ink;
    c.font = "400 12px sans-serif";
    c.fillText(words, at + 16, foot + 6);
    at += 32 + 6.6 * words.length;
  }
  const lines = result.answer.match(/.{1,110}(?:\s|$)/g) ?? [];
  lines.forEach((line, k) => c.fillText(line.trim(), 0, foot + 30 + 17 * k));
  c.flush();
  const high = foot + 36 + 17 * lines.length,
    wide = Math.max(g.width, at) + 24;
  return `<svg xmlns="${SVG}" viewBox="-12 -8 ${wide} ${high}" width="${wide}" height="${high}" font-family="system-ui, sans-serif"><rect x="-12" y="-8" width="100%" height="100%" fill="${colours.surface}"/>${c.parts.join("")}</svg>`;
}
