// What is drawn as tables, and what the reader takes along: code, a link, a file.

import { button, make, say, tableOf } from "../shared/dom.mjs";
import { exactly, seconds } from "../shared/numbers.mjs";
import { Carrier } from "../shared/parts.mjs";
import { section } from "./pieces.mjs";
import { chunksOf, ranksIn } from "./words.mjs";

export class Details {
  constructor(app) {
    this.app = app;
    [this.messages, this.holdings] = [this.fold("Messages of this step"), this.fold("What every rank holds now")];
    this.code = make("code", { tabindex: "0" });
    this.carrier = new Carrier("pb-ca-said");
    const copy = button("Copy", () => this.carrier.copy(this.code.textContent, "Code copied"), {
      "aria-label": "Copy code",
    });
    this.link = button("Copy link", () => this.carrier.copy(app.model.get("link"), "Link copied"), { hidden: "" });
    const save = button("Save JSON", () => this.save(), { title: "Inputs and outputs, every message with its times" });
    const tools = make("div", { class: "pb-ca-tools" }, this.link, save, this.carrier.root);
    this.root = make(
      "div",
      { class: "pb-ca-details" },
      this.messages.el,
      this.holdings.el,
      section("The same messages in Python", make("div", { class: "pb-ca-code" }, this.code, copy), tools),
    );
  }

  fold(title) {
    const box = make("div", { class: "pb-scroll", tabindex: "0", role: "group", "aria-label": title });
    const el = make("details", { class: "pb-ca-fold" }, make("summary", {}, title), box);
    el.addEventListener("toggle", () => this.show());
    return { el, box };
  }

  update() {
    say(this.code, this.app.result.code);
    this.link.hidden = !this.app.model.get("link");
    this.show();
  }

  show() {
    const { app } = this,
      { result, at } = app,
      step = result.steps[at];
    if (this.messages.el.open) {
      const rows = (step?.messages ?? []).map((m) => [
        m.from,
        m.to,
        chunksOf(m),
        exactly(m.bytes),
        m.adds ? "added" : "kept",
        `${seconds(m.start)} to ${seconds(m.end)}`,
      ]);
      this.messages.box.replaceChildren(
        rows.length
          ? tableOf(["from", "to", "chunks", "bytes", "there", "time"], rows)
          : make("p", {}, "All messages have arrived."),
      );
    }
    if (this.holdings.el.open) {
      const held = app.states[at],
        names = held[0].map((_, chunk) => (result.values.collective === "barrier" ? "heard of" : `chunk ${chunk}`));
      this.holdings.box.replaceChildren(
        tableOf(
          ["rank", ...names],
          held.map((row, rank) => [rank, ...row.map((bits) => ranksIn(bits).join("+") || "–")]),
        ),
      );
    }
  }

  save() {
    const { inputs, result } = this.app;
    this.carrier.save("collective.json", "application/json", JSON.stringify({ inputs, outputs: result }, null, 1));
  }
}
