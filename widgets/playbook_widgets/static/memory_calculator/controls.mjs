// All settings, and which of two configurations they set.

import { button, make, say } from "../shared/dom.mjs";
import { Groups } from "../shared/groups.mjs";

export class Controls extends Groups {
  constructor(app, folded) {
    super(app, folded);
    this.latent = make("p", { class: "pb-mc-latent", hidden: "" }); // what no control sets, where the heads are
    this.all.get("head_dim").row.after(this.latent);
  }

  head() {
    const { app } = this;
    this.tabs = ["A", "B"].map((name, side) =>
      button(name, () => app.choose(side), { "aria-pressed": "false", "aria-label": `Set configuration ${name}` }),
    );
    this.compare = button("Compare", () => app.compare(), { title: "Copy this configuration into B and see both" });
    this.swap = button("Swap", () => app.swap(), { title: "Exchange A and B" });
    this.remove = button("Remove B", () => app.remove());
    this.clear = button("Reset", () => app.clear(), {
      title: "Everything but the model and the GPU back to its default",
    });
    this.sides = make(
      "span",
      { class: "pb-mc-tabs", role: "group", "aria-label": "Configuration that the controls set" },
      ...this.tabs,
    );
    return make(
      "div",
      { class: "pb-mc-head" },
      this.sides,
      this.compare,
      this.swap,
      this.remove,
      this.clear,
      app.status,
    );
  }

  update() {
    const { latent } = super.update();
    say(this.latent, latent ?? "");
    this.latent.hidden = !latent;
    this.updateHead();
  }

  isIdle(field, values) {
    if (field === "ep") return values["moe.experts"] === 0 && values.ep === 1;
    if (field === "etp") return !values.etp && (values.ep === 1 || values.tp === 1);
    if (field === "moe.balance_over" && values["moe.balance_loss"] === 0) return true;
    if (field.startsWith("moe.") && field !== "moe.experts") return values["moe.experts"] === 0;
    return Boolean(values.latent) && (field === "kv_heads" || field === "head_dim");
  }

  updateHead() {
    const { app } = this,
      two = app.inputs.configs.length === 2;
    for (const el of [this.sides, this.swap, this.remove]) el.hidden = !two;
    this.compare.hidden = two;
    this.tabs.forEach((tab, side) => tab.setAttribute("aria-pressed", String(app.side === side)));
  }
}
