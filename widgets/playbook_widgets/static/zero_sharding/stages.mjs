// The four stages one below the other: what each rank keeps, and what it sends in a step.

import { button, make, say, set } from "../shared/dom.mjs";
import { bytes, rounded, seconds } from "../shared/numbers.mjs";
import { legend, section } from "./pieces.mjs";

/** A row for each stage: its name, a bar of several kinds, two lines of numbers. */
class Rows {
  constructor(app, kinds, name) {
    this.rows = app.constants.names.map((words, zero) => {
      const segments = kinds.map((kind) => make("i", { "data-kind": kind })),
        track = make("span", { class: "pb-zs-track", role: "img" }, ...segments);
      const numbers = make("span", { class: "pb-zs-numbers" }, make("b"), make("span"));
      return {
        el: make("div", { class: "pb-zs-stage", "data-zero": zero }, name(words, zero), track, numbers),
        segments,
        track,
        numbers,
      };
    });
    this.root = make("div", { class: "pb-zs-stages" }, ...this.rows.map(({ el }) => el));
  }

  /** `parts` are bytes by kind, `scale` what the full width stands for. */
  show(zero, parts, scale, { chosen, words, big, small }) {
    const { el, segments, track, numbers } = this.rows[zero];
    el.toggleAttribute("data-chosen", chosen);
    segments.forEach((segment, i) => {
      segment.hidden = !parts[i][1];
      segment.style.width = `${(100 * parts[i][1]) / scale}%`;
      segment.title = `${parts[i][0]}: ${bytes(parts[i][1])}`;
    });
    set(track, "aria-label", words);
    [big, small].forEach((text, i) => say(numbers.children[i], text));
  }
}

export class Memory {
  constructor(app) {
    this.app = app;
    const { kinds } = app.constants;
    this.kinds = [...Object.entries(kinds), ["gathered", "whole weights, from forward to backward"]];
    this.rows = new Rows(
      app,
      this.kinds.map(([kind]) => kind),
      (words, zero) =>
        button(words, () => app.change("zero", zero), {
          class: "pb-zs-name",
          title: `ZeRO divides ${app.constants.divides[zero]}`,
        }),
    );
    this.limit = make("span", { class: "pb-zs-limit" }, make("span"));
    this.rows.root.append(this.limit);
    this.legend = legend(this.kinds);
    this.root = section("What each rank keeps", this.rows.root, this.legend);
  }

  update() {
    const { app } = this,
      { result } = app,
      { capacity, stages, values } = result,
      most = Math.max(...stages.map((s) => s.total + s.gathered));
    const far = most < capacity / 25,
      scale = far ? most * 1.1 : Math.max(most, capacity) * 1.02;
    for (const stage of stages) this.stage(stage, scale, stage.zero === values.zero);
    this.rows.root.style.setProperty("--limit", Math.min(1, capacity / scale));
    set(this.rows.root, "data-limit", far ? "far" : capacity < 0.35 * scale ? "left" : "right");
    say(this.limit.firstChild, `${bytes(capacity)}${far ? " →" : ""}`);
    this.legend.lastChild.hidden = !stages.some(({ gathered }) => gathered);
  }

  stage(stage, scale, chosen) {
    const { names } = this.app.constants,
      held = stage.total + stage.gathered,
      parts = this.kinds.map(([kind, words]) => [words, stage[kind]]);
    const small = stage.fits ? `✓ ${bytes(stage.spare)} free` : `✕ ${bytes(-stage.spare)} over`;
    const words = `${names[stage.zero]}: ${bytes(held)}. ${parts
      .filter(([, size]) => size)
      .map(([what, size]) => `${what} ${bytes(size)}`)
      .join(", ")}`;
    this.rows.show(stage.zero, parts, scale, { chosen, words, big: bytes(held), small });
    set(this.rows.rows[stage.zero].el.firstChild, "aria-pressed", String(chosen));
    this.rows.rows[stage.zero].el.toggleAttribute("data-over", !stage.fits);
  }
}

export class Traffic {
  constructor(app) {
    this.app = app;
    this.moves = Object.entries(app.constants.moves);
    this.rows = new Rows(
      app,
      this.moves.map(([name]) => name),
      (words) => make("span", { class: "pb-zs-name" }, words),
    );
    this.root = section(
      "What each rank sends in a step",
      this.rows.root,
      legend(this.moves.map(([name, [, words]]) => [name, words])),
    );
  }

  update() {
    const { app } = this,
      { stages, values } = app.result,
      most = Math.max(...stages.map(({ traffic }) => traffic)) * 1.02 || 1;
    for (const { zero, sent, traffic, elements, seconds: time } of stages) {
      const parts = this.moves.map(([name, [, words]]) => [words, sent[name]]);
      const words = `${app.constants.names[zero]}: ${bytes(traffic)}. ${parts
        .filter(([, size]) => size)
        .map(([what, size]) => `${what} ${bytes(size)}`)
        .join(", ")}`;
      const small = traffic ? `${rounded(elements)} Ψ, ${seconds(time)}` : "one replica";
      this.rows.show(zero, parts, most, { chosen: zero === values.zero, words, big: bytes(traffic), small });
    }
  }
}
