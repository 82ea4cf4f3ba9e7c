// All settings: what is looked at, and, folded where there is little room, times, messages and memory.

import { Control } from "../shared/control.mjs";
import { button, make, say } from "../shared/dom.mjs";

export class Settings {
  constructor(app, folded) {
    this.app = app;
    this.all = app.constants.controls.map(
      (spec) => new Control(spec, app.id, (field, value) => app.change(field, value), "pb-sv"),
    );
    this.all.find(({ spec }) => spec.field === "limit").field.text.placeholder = "none";
    this.general = make("p", { class: "pb-sv-error", role: "alert", hidden: "" });
    const rows = (group) =>
      make(
        "div",
        { class: "pb-sv-controls" },
        ...this.all.filter(({ spec }) => spec.group === group).map((control) => control.row),
      );
    this.brief = make("span", { class: "pb-sv-brief" });
    this.more = make(
      "details",
      { class: "pb-sv-fold" },
      make("summary", {}, "Times, messages, memory", this.brief),
      rows("more"),
    );
    this.more.open = !folded;
    this.about = make("p", { class: "pb-sv-note" });
    this.root = make(
      "section",
      { class: "pb-sv-settings", "aria-label": "Settings" },
      rows("main"),
      this.about,
      this.more,
      this.general,
    );
  }

  update() {
    const { error, result, constants } = this.app,
      values = this.app.values(),
      said = Object.entries(constants.fixed).find(([key]) => key in result)?.[1] ?? [];
    for (const control of this.all) {
      const { field, of } = control.spec,
        size = typeof values[field] === "number" ? values[field] : result.values[field];
      control.show(values[field], { size, error: error?.field === field ? error.message : null });
      const idle = Boolean(of && !of.includes(values.schedule) && !of.includes(values.compare)) || said.includes(field);
      control.row.hidden = idle && error?.field !== field;
    }
    say(this.about, said.length ? "" : `${constants.about[values.schedule]?.join(": ") ?? ""}.`);
    this.about.hidden = said.length > 0;
    say(this.brief, this.summary(values));
    const known = error && this.all.find(({ spec }) => spec.field === error.field);
    if (known && known.spec.group === "more") this.more.open = true;
    say(this.general, error && !known ? error.message : "");
    this.general.hidden = !error || Boolean(known);
  }

  summary({ f, b, w, comm, transfer, limit }) {
    const between = (time) => {
      const all = String(time).split("/").map(Number);
      return all.length > 1 ? `${Math.min(...all)}–${Math.max(...all)}` : time;
    };
    const messages = comm || transfer ? `, messages ${[comm, transfer].filter(Boolean).join(" + ")}` : "";
    return ` F ${between(f)}, B ${between(b)}, W ${between(w)}${messages}${limit == null ? "" : `, room for ${limit}`}`;
  }

  close() {
    for (const { field } of this.all) field?.stop();
  }
}

/** Buttons over the picture: closer, farther, the critical path. */
export function tools(app) {
  const tool = (text, label, action, attributes = {}) =>
    button(text, action, { "aria-label": label, title: label, ...attributes });
  const zoom = make(
    "span",
    { class: "pb-sv-zoom" },
    tool("−", "Zoom out", () => app.scene.zoom(2)),
    tool("+", "Zoom in", () => app.scene.zoom(0.5)),
    tool("All", "All: the whole step", () => app.scene.all()),
  );
  const path = button("Critical path", () => app.setPath(!app.inputs.path), {
    "aria-pressed": "false",
    title: "What the step takes as long as it does because of (c)",
  });
  return { zoom, path };
}
