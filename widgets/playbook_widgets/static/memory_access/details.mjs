// Every thread's address as a table, and what the reader takes along: CUDA, Python, a link, a file.

import { button, make, say, tableOf } from "../shared/dom.mjs";
import { grouped } from "../shared/numbers.mjs";
import { Carrier } from "../shared/parts.mjs";
import { element, section, where } from "./pieces.mjs";

export class Details {
  constructor(app) {
    this.app = app;
    this.table = make("div", {
      class: "pb-scroll",
      tabindex: "0",
      role: "group",
      "aria-label": "All threads as a table",
    });
    this.fold = make("details", { class: "pb-ma-fold" }, make("summary", {}, "All threads as a table"), this.table);
    this.fold.addEventListener("toggle", () => this.tabulate());
    this.carrier = new Carrier("pb-ma-said");
    [this.cuda, this.python] = [make("code", { tabindex: "0" }), make("code", { tabindex: "0" })];
    this.link = button("Copy link", () => this.carrier.copy(app.model.get("link"), "Link copied"), { hidden: "" });
    const save = button("Save JSON", () => this.save(), { title: "Inputs and outputs, every warp" });
    const tools = make("div", { class: "pb-ma-tools" }, this.link, save, this.carrier.root);
    this.root = make(
      "div",
      { class: "pb-ma-details" },
      this.fold,
      section("The access in CUDA", this.line(this.cuda, "CUDA")),
      section("The warp counted in Python", this.line(this.python, "Python")),
      tools,
    );
  }

  line(code, name) {
    const copy = button("Copy", () => this.carrier.copy(code.textContent, `${name} copied`), {
      "aria-label": `Copy ${name}`,
    });
    return make("div", { class: "pb-ma-code" }, code, copy);
  }

  update() {
    say(this.cuda, this.app.result.cuda);
    this.link.hidden = !this.app.model.get("link");
  }

  show() {
    say(this.python, this.app.picture.python);
    this.tabulate();
  }

  tabulate() {
    const { picture, result } = this.app;
    if (!this.fold.open) return;
    const rows = picture.threads.map((found, i) =>
      found ? [i, element(result, found), grouped(found[2]), where(result, found[2])] : [i, "inactive", "", ""],
    );
    this.table.replaceChildren(tableOf(["thread", "element", "byte", "where"], rows));
  }

  save() {
    const { inputs, result } = this.app;
    this.carrier.save("memory-access.json", "application/json", JSON.stringify({ inputs, outputs: result }, null, 1));
  }

  close() {
    this.carrier.close();
  }
}
