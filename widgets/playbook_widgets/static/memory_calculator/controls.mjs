// All settings, in groups that fold, and which of two configurations they set.

import { button, make, say } from "../shared/dom.mjs";
import { SYSTEMS, rounded } from "../shared/numbers.mjs";
import { Setting } from "../shared/setting.mjs";

export class Controls {
  constructor(app, folded) {
    this.app = app;
    this.all = new Map();
    this.latent = make("p", { class: "pb-mc-latent", hidden: "" }); // what no control sets, where the heads are
    this.general = make("p", { class: "pb-set-error", role: "alert", hidden: "" });
    this.groups = app.constants.groups.map((group) => this.group(group, folded));
    this.all.get("head_dim").row.after(this.latent);
    this.root = make("section", { class: "pb-mc-controls", "aria-label": "Settings" }, this.head(), this.general, make("div", { class: "pb-mc-groups" }, ...this.groups.map((g) => g.el)));
    // Explanations show on hover and focus (see the style sheet); Escape and typing take the shown one away.
    this.root.addEventListener("keydown", (e) => (e.key === "Escape" || ["text", "textarea"].includes(e.target.type)) && this.root.setAttribute("data-hush", ""));
    for (const event of ["focusin", "pointerover"]) this.root.addEventListener(event, () => this.root.removeAttribute("data-hush"));
  }

  head() {
    const { app } = this;
    this.tabs = ["A", "B"].map((name, side) => button(name, () => app.choose(side), { "aria-pressed": "false", "aria-label": `Set configuration ${name}` }));
    this.compare = button("Compare", () => app.compare(), { title: "Copy this configuration into B and see both" });
    this.swap = button("Swap", () => app.swap(), { title: "Exchange A and B" });
    this.remove = button("Remove B", () => app.remove());
    this.clear = button("Reset", () => app.clear(), { title: "Everything but the model and the GPU back to its default" });
    this.sides = make("span", { class: "pb-mc-tabs", role: "group", "aria-label": "Configuration that the controls set" }, ...this.tabs);
    return make("div", { class: "pb-mc-head" }, this.sides, this.compare, this.swap, this.remove, this.clear, app.status);
  }

  group(group, folded) {
    const controls = group.controls.map((spec) => this.control(spec));
    const brief = make("span", { class: "pb-mc-brief" });
    if (!group.title) return { ...group, el: make("div", { class: "pb-mc-group" }, ...controls.map((c) => c.row)), brief, controls };
    const el = make("details", { class: "pb-mc-group" }, make("summary", {}, make("span", { class: "pb-mc-title" }, group.title), brief), ...controls.map((c) => c.row));
    el.open = !(group.folded || folded);
    return { ...group, el, brief, controls };
  }

  control(spec) {
    const { app } = this, { presets } = app.constants;
    const control = new Setting(spec, app.id, { change: (field, value) => app.change(field, value), reset: (field) => app.reset(field), presets });
    this.all.set(spec.field, control);
    return control;
  }

  update() {
    const { app } = this, { config, result, error } = app.current(), values = { ...result?.values, ...config };
    for (const [field, control] of this.all) {
      const refused = error?.field === field ? error.message : undefined;
      // What is not set stands at its default, even while the numbers shown are those of an earlier, valid setting.
      const stale = error && !(field in config) && control.spec.kind !== "number";
      const value = (stale ? app.base(field, config) : undefined) ?? values[field];
      const sized = control.spec.kind === "size" && result && { size: Number(rounded(result[field] / SYSTEMS[app.unit][0] ** 3)), unit: app.unit };
      control.show(value, { own: app.isOwn(field), error: refused, idle: this.isIdle(field, values), ...sized });
    }
    const elsewhere = error && !this.all.has(error.field);
    say(this.general, elsewhere ? error.message : "");
    this.general.hidden = !elsewhere;
    say(this.latent, values.latent ?? "");
    this.latent.hidden = !values.latent;
    for (const group of this.groups) this.updateGroup(group, values, error);
    this.updateHead();
  }

  /** Settings that mean nothing for this model are shown, not offered. */
  isIdle(field, values) {
    if (field === "ep") return values["moe.experts"] === 0 && values.ep === 1;
    if (field === "moe.balance_over" && values["moe.balance_loss"] === 0) return true;
    if (field.startsWith("moe.") && field !== "moe.experts") return values["moe.experts"] === 0;
    return Boolean(values.latent) && (field === "kv_heads" || field === "head_dim");
  }

  updateGroup({ el, brief, controls, empty }, values, error) {
    const words = controls.filter(({ spec }) => spec.brief && values[spec.field] != null && values[spec.field] !== spec.quiet)
      .map(({ spec }) => spec.brief.replace("{}", spec.choices?.find(([value]) => value === values[spec.field])?.[1] ?? values[spec.field]));
    say(brief, words.join(", ") || empty);
    if (error && controls.some(({ spec }) => spec.field === error.field)) el.open = true;
  }

  updateHead() {
    const { app } = this, two = app.inputs.configs.length === 2;
    for (const el of [this.sides, this.swap, this.remove]) el.hidden = !two;
    this.compare.hidden = two;
    this.tabs.forEach((tab, side) => tab.setAttribute("aria-pressed", String(app.side === side)));
  }

  close() {
    for (const { field } of this.all.values()) field?.stop();
  }
}
