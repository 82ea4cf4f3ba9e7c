// A run's own trace, or a schedule as JSON, brought by the reader.

import { button, make, say } from "../shared/dom.mjs";

export class Runs {
  constructor(app) {
    this.app = app;
    this.text = make("textarea", {
      rows: 4,
      spellcheck: "false",
      "aria-label": "Trace or schedule as JSON",
      placeholder: '{"ranks": [[{"op": "F", "stage": 0, "microbatch": 0, "start": 0.0, "end": 0.01}, …], …]}',
    });
    this.file = make("input", { type: "file", accept: ".json,application/json", "aria-label": "A JSON file" });
    this.file.addEventListener("change", () => this.load());
    this.error = make("p", { class: "pb-sv-error", role: "alert", hidden: "" });
    this.remove = button("Take it away", () => this.take(null));
    const note = make(
      "p",
      { class: "pb-sv-note" },
      "The JSON of a run, or of playbook schedule --json: with start and end it is laid below its own prediction; without, it is checked, timed and drawn. Nothing leaves this page.",
    );
    const tools = make(
      "div",
      { class: "pb-sv-tools" },
      button("Draw it", () => this.read(this.text.value)),
      this.file,
      this.remove,
    );
    this.root = make(
      "details",
      { class: "pb-sv-fold" },
      make("summary", {}, "Lay a real run over it, or bring a schedule"),
      note,
      this.text,
      tools,
      this.error,
    );
  }

  async load() {
    const [file] = this.file.files;
    if (!file) return;
    this.read(await file.text());
    this.file.value = "";
  }

  read(text) {
    let trace;
    try {
      trace = JSON.parse(text);
    } catch (error) {
      return this.refuse(`This is no JSON: ${error.message}`);
    }
    if (!trace || !Array.isArray(trace.ranks))
      return this.refuse("A trace is an object with ranks, a list of actions for each.");
    this.take(trace);
  }

  refuse(message) {
    say(this.error, message);
    this.error.hidden = false;
  }

  take(trace) {
    this.error.hidden = true;
    this.app.bring(trace);
  }

  update() {
    const { error, inputs } = this.app;
    this.remove.hidden = inputs.trace == null;
    if (inputs.trace != null && error) this.refuse(error.message);
    else if (!error) this.error.hidden = true;
  }
}
