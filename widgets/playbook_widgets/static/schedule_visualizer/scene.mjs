// The stage: two layers of canvas, the part of time that is in view, and when what is drawn again.

import { make } from "../shared/dom.mjs";
import { coloursOf } from "./colours.mjs";
import { Geometry } from "./geometry.mjs";
import { Overlay } from "./overlay.mjs";
import { Painter } from "./painter.mjs";

export class Scene {
  constructor(app) {
    Object.assign(this, {
      app,
      view: [0, app.total],
      total: app.total,
      building: app.building,
      geometry: new Geometry(app, this),
      painter: new Painter(app, this),
      overlay: new Overlay(app, this),
    });
    [this.base, this.top] = [0, 1].map(() => make("canvas", { "aria-hidden": "true" }));
    this.stage = make(
      "div",
      {
        class: "pb-sv-stage",
        tabindex: "0",
        role: "application",
        "aria-roledescription": "timeline",
        "aria-describedby": `${app.id}-help`,
      },
      this.base,
      this.top,
    );
    this.scroll = make("input", {
      type: "range",
      min: 0,
      max: 1000,
      step: 1,
      class: "pb-sv-across",
      "aria-label": "Part of the step in view",
      hidden: "",
    });
    this.scroll.addEventListener("input", () => this.across(Number(this.scroll.value) / 1000));
    this.sizes = new ResizeObserver(() => this.fit());
    this.themes = new MutationObserver(() => ((this.palette = null), this.draw()));
    this.themes.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme", "class"] });
    this.themes.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "class"] });
  }

  /** Once it is in the page. */
  begin() {
    this.fit();
    this.sizes.observe(this.stage);
  }

  /** For other sides: another total shows all of it, and so does the beginning or end of building by hand. */
  take() {
    const { total, building } = this.app;
    if (total !== this.total || building !== this.building || !this.zoomed) this.view = [0, total];
    Object.assign(this, { total, building });
    this.fit();
  }

  // --- what is in view

  get zoomed() {
    return this.view[1] - this.view[0] < this.total * 0.999;
  }

  look(low, high) {
    const span = Math.min(Math.max(high - low, this.total / 4000), this.total),
      start = Math.min(Math.max(low, 0), this.total - span);
    this.view = [start, start + span];
    this.app.reading.hide();
    this.draw();
  }

  /** Closer or farther, around a time, what is held on to, or the middle. */
  zoom(factor, around) {
    const [low, high] = this.view,
      held = this.app.pointing.pinned?.time,
      at = around ?? (held >= low && held <= high ? held : (low + high) / 2);
    this.look(at - (at - low) * factor, at + (high - at) * factor);
  }

  zoomTo(found) {
    if (found?.kind !== "slot" && found?.kind !== "idle") return;
    const side = this.app.sides[found.side],
      { start, end } = found.kind === "slot" ? side : side.idle;
    const middle = (start[found.at] + end[found.at]) / 2,
      half = Math.max(4 * (end[found.at] - start[found.at]), this.total / 120);
    this.look(middle - half, middle + half);
  }

  pan(part) {
    const [low, high] = this.view,
      by = part * (high - low);
    this.look(low + by, high + by);
  }

  all() {
    this.look(0, this.total);
  }

  across(part) {
    const span = this.view[1] - this.view[0],
      low = part * (this.total - span);
    this.look(low, low + span);
  }

  /** A time that is not in view becomes its middle. */
  bring(time) {
    const [low, high] = this.view,
      half = (high - low) / 2;
    if (time < low || time > high) this.look(time - half, time + half);
  }

  // --- drawing

  fit() {
    this.geometry.fit(this.stage.clientWidth);
    this.draw();
  }

  colours() {
    return (this.palette ??= coloursOf(this.app.root));
  }

  /** In the next frame, once, whatever has asked for it. */
  draw() {
    this.due ??= requestAnimationFrame(() => {
      const start = performance.now();
      this.due = null;
      this.now();
      performance.measure("pb-draw", { start });
    });
  }

  /** The layer below only where something in it is other than it was. */
  now() {
    const { geometry, app } = this,
      palette = this.colours(),
      state = [...this.view, geometry.width, geometry.height, devicePixelRatio].join();
    if (this.drawn?.state !== state || this.drawn.result !== app.result || this.drawn.palette !== palette) {
      this.painter.paint(this.context(this.base), palette);
      this.drawn = { state, palette, result: app.result };
    }
    this.over();
    const span = this.view[1] - this.view[0],
      part = this.total > span ? this.view[0] / (this.total - span) : 0;
    this.scroll.hidden = !this.zoomed;
    this.scroll.value = Math.round(1000 * part);
    this.scroll.style.setProperty("--at", `${100 * part}%`);
  }

  /** The layer above alone: what a pointer moves. */
  over() {
    const start = performance.now();
    this.overlay.paint(this.context(this.top), this.colours());
    performance.measure("pb-point", { start });
  }

  context(canvas) {
    const scale = Math.max(devicePixelRatio || 1, 1),
      { width, height } = this.geometry,
      c = canvas.getContext("2d");
    const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
    if (canvas.width !== wide || canvas.height !== high) {
      Object.assign(canvas, { width: wide, height: high });
      this.stage.style.height = canvas.style.height = `${height}px`;
    }
    c.setTransform(scale, 0, 0, scale, 0, 0);
    return c;
  }

  close() {
    cancelAnimationFrame(this.due);
    this.sizes.disconnect();
    this.themes.disconnect();
  }
}
