// Settings in groups that fold, each with its values in its heading while it is closed.

import { make, say } from "./dom.mjs";
import { rounded, SYSTEMS } from "./numbers.mjs";
import { LeftOpen } from "./pasted.mjs";
import { Setting } from "./setting.mjs";

export class Groups {
  /** `app` has `constants` (groups, presets), `current()` with what is set and what came of it, `base(field)`, `isOwn(field)`,
      `unit`, and hears `change(field, value)` and `reset(field)`. `folded` groups start closed. */
  constructor(app, folded) {
    this.app = app;
    this.all = new Map();
    this.general = make("p", { class: "pb-set-error", role: "alert", hidden: "" });
    this.groups = app.constants.groups.map((group) => this.group(group, folded));
    this.differs = make("p", { class: "pb-mc-differs", hidden: "" }); // in what a pasted model does
    this.open = new LeftOpen();
    this.all.get("model").row.after(this.open.root, this.differs);
    this.root = make(
      "section",
      { class: "pb-mc-controls", "aria-label": "Settings" },
      this.head(),
      this.general,
      make("div", { class: "pb-set-groups" }, ...this.groups.map((g) => g.el)),
    );
    // Explanations show on hover and focus (see the style sheet); Escape and typing take the shown one away.
    this.root.addEventListener(
      "keydown",
      (e) =>
        (e.key === "Escape" || ["text", "textarea"].includes(e.target.type)) && this.root.setAttribute("data-hush", ""),
    );
    for (const event of ["focusin", "pointerover"])
      this.root.addEventListener(event, () => this.root.removeAttribute("data-hush"));
  }

  /** What stands above the groups. */
  head() {
    return this.app.status;
  }

  group(group, folded) {
    const controls = group.controls.map((spec) => this.control(spec));
    const brief = make("span", { class: "pb-set-brief" });
    if (!group.title)
      return { ...group, el: make("div", { class: "pb-set-group" }, ...controls.map((c) => c.row)), brief, controls };
    const el = make(
      "details",
      { class: "pb-set-group" },
      make("summary", {}, make("span", { class: "pb-set-title" }, group.title), brief),
      ...controls.map((c) => c.row),
    );
    el.open = !(group.folded || folded);
    return { ...group, el, brief, controls };
  }

  control(spec) {
    const { app } = this,
      { presets } = app.constants;
    const control = new Setting(spec, app.id, {
      change: (field, value) => app.change(field, value),
      reset: (field) => app.reset(field),
      presets,
    });
    this.all.set(spec.field, control);
    return control;
  }

  update() {
    const { app } = this,
      { config, result, error } = app.current(),
      values = { ...result?.values, ...config };
    for (const [field, control] of this.all) {
      const refused = error?.field === field ? error.message : undefined;
      // What is not set stands at its default, even while the numbers shown are those of an earlier, valid setting.
      const stale = !(field in config) && (!result || (error && control.spec.kind !== "number"));
      const value = (stale ? app.base(field, config) : undefined) ?? values[field];
      const sized = control.spec.kind === "size" &&
        result && { size: Number(rounded(result[field] / SYSTEMS[app.unit][0] ** 3)), unit: app.unit };
      control.show(value, { own: app.isOwn(field), error: refused, idle: this.isIdle(field, values), ...sized });
    }
    const elsewhere = error && !this.all.has(error.field);
    say(this.general, elsewhere ? error.message : "");
    this.general.hidden = !elsewhere;
    say(this.differs, values.differs || "");
    this.differs.hidden = !values.differs;
    this.open.show(app.pasted);
    for (const group of this.groups) this.updateGroup(group, values, error);
    return values;
  }

  /** Whether a setting means nothing here: it is shown, not offered. */
  isIdle(_field, _values) {
    return false;
  }

  updateGroup({ el, brief, controls, empty }, values, error) {
    const words = controls
      .filter(({ spec }) => spec.brief && values[spec.field] != null && values[spec.field] !== (spec.quiet ?? ""))
      .map(({ spec }) =>
        spec.brief.replace(
          "{}",
          spec.choices?.find(([value]) => value === values[spec.field])?.[1] ?? values[spec.field],
        ),
      );
    say(brief, words.join(", ") || empty);
    if (error && controls.some(({ spec }) => spec.field === error.field)) el.open = true;
  }

  close() {
    for (const { field } of this.all.values()) field?.stop();
  }
}
