// Buttons and a slider over the steps.

import { button, draw, make, set } from "./dom.mjs";

export const STEP = 1200; // ms, at speed 1
const SPEEDS = [
  [0.5, "½×"],
  [1, "1×"],
  [2, "2×"],
  [4, "4×"],
];
const ICONS = {
  back: "M11,3L5,8L11,13Z M3,3h1.8v10h-1.8z",
  forward: "M5,3L11,8L5,13Z M11.2,3h1.8v10h-1.8z",
  play: "M4,2.5L13,8L4,13.5Z",
  pause: "M4,3h3v10h-3z M9,3h3v10h-3z",
};

export class Player {
  /** `app` is a `Stepper`. */
  constructor(app) {
    Object.assign(this, { app, prefix: app.prefix });
    const { prefix } = app;
    this.back = this.icon("back", "Step back", () => app.back());
    this.forward = this.icon("forward", "Step forward", () => app.forward());
    this.toggle = this.icon("play", "Play", () => app.toggle());
    this.slider = make("input", { type: "range", min: 0, step: 1, "aria-label": "Step", class: `${prefix}-scrub` });
    this.slider.addEventListener("input", () => app.jump(Number(this.slider.value)));
    const speeds = make(
      "span",
      { class: `pb-options ${prefix}-speed`, role: "radiogroup", "aria-label": "Speed" },
      ...SPEEDS.map((s) => this.speed(...s)),
    );
    this.root = make("div", { class: `${prefix}-player` }, this.back, this.toggle, this.forward, this.slider, speeds);
  }

  icon(name, label, action) {
    const el = button("", action, {
      "aria-label": label,
      title: label,
      class: `${this.prefix}-key ${this.prefix}-${name}`,
    });
    el.append(
      draw(
        "svg",
        { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" },
        draw("path", { d: ICONS[name] }),
      ),
    );
    return el;
  }

  speed(speed, words) {
    const radio = make("input", {
      type: "radio",
      name: `${this.app.id}-speed`,
      value: speed,
      class: "pb-unseen",
      ...(speed === 1 ? { checked: "" } : {}),
    });
    radio.addEventListener("change", () => (this.app.speed = speed));
    return make("label", {}, radio, make("span", {}, words));
  }

  show() {
    const { app } = this,
      { steps } = app,
      name = app.playing ? "Pause" : "Play";
    set(this.slider, "max", steps);
    if (this.slider.value !== String(app.at)) this.slider.value = app.at;
    set(this.slider, "aria-valuetext", app.at < steps ? `step ${app.at + 1} of ${steps}` : "done");
    this.slider.style.setProperty("--at", `${(100 * (app.at + app.progress)) / steps}%`);
    set(this.toggle, "aria-label", name);
    set(this.toggle, "title", name);
    set(this.toggle.querySelector("path"), "d", ICONS[app.playing ? "pause" : "play"]);
    this.back.disabled = app.at === 0 && !app.moving;
    this.forward.disabled = app.at === steps;
  }
}
