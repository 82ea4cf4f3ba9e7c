// What the reader takes along: the layout in a framework's words, the command, a link, the numbers.

import { encodePairs } from "../shared/address.mjs";
import { button, make, say, set } from "../shared/dom.mjs";
import { Carrier } from "../shared/parts.mjs";

/** Other tools of the book that show a layout. */
const TOOLS = [
  ["memory-calculator.html#calculator", "Memory calculator"],
  ["pipeline-schedules.html#schedules", "Pipeline schedules"],
];

export class Plan {
  constructor(app) {
    this.app = app;
    const carrier = (this.carrier = new Carrier("pb-mc-said"));
    this.framework = app.constants.frameworks[0];
    this.tabs = app.constants.frameworks.map((name) =>
      button(name, () => this.choose(name), { "aria-pressed": String(name === this.framework) }),
    );
    this.flags = make("pre", { class: "pb-cl-flags", tabindex: "0", "aria-label": "Flags of the framework" });
    this.command = make("code", { tabindex: "0" });
    this.link = button("Copy link", () => carrier.copy(app.model.get("link"), "Link copied"), { hidden: "" });
    const [flags, command] = [
      ["Flags", this.flags],
      ["Command", this.command],
    ].map(([name, el]) =>
      button("Copy", () => carrier.copy(el.textContent, `${name} copied`), {
        "aria-label": `Copy ${name.toLowerCase()}`,
      }),
    );
    const json = button(
      "Save JSON",
      () =>
        carrier.save(
          "layouts.json",
          "application/json",
          JSON.stringify({ inputs: app.inputs, outputs: app.model.get("outputs") }, null, 1),
        ),
      { title: "Inputs and outputs" },
    );
    this.tools = TOOLS.map(([, name]) => make("a", { hidden: "" }, `${name} of this layout`));
    this.root = make(
      "section",
      { class: "pb-mc-actions", "aria-label": "Take it with you" },
      make("h3", { class: "pb-mc-heading" }, "The layout in the words of"),
      make("div", { class: "pb-mc-tabs", role: "group", "aria-label": "Framework" }, ...this.tabs),
      make("div", { class: "pb-mc-command" }, this.flags, flags),
      make("h3", { class: "pb-mc-heading" }, "The same search on the command line"),
      make("div", { class: "pb-mc-command" }, this.command, command),
      make("div", { class: "pb-mc-tools" }, this.link, json, ...this.tools, carrier.root),
    );
    this.taking = [flags, command, this.link, json];
  }

  choose(name) {
    this.framework = name;
    this.tabs.forEach((tab) => tab.setAttribute("aria-pressed", String(tab.textContent === name)));
    this.update();
  }

  update() {
    const { result } = this.app;
    this.link.hidden = !this.app.model.get("link");
    if (!result) return;
    say(this.flags, result.flags[this.framework]);
    say(this.command, result.command);
    const site = this.app.model.get("site"); // none in a kernel
    TOOLS.forEach(([place], i) => {
      const setting = result.elsewhere[place];
      this.tools[i].hidden = !site || !setting;
      if (site && setting) set(this.tools[i], "href", `${site}book/tools/${place}?${encodePairs(setting)}`);
    });
  }
}
