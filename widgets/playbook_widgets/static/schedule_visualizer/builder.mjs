// A schedule by hand: what each rank can do next, and why not.

import { button, keep, make, say, set } from "../shared/dom.mjs";

export class Builder {
  constructor(app) {
    Object.assign(this, { app, whole: true });
    this.open = button("Build your own", () => app.build(""), { title: "Place every action yourself" });
    this.said = make("p", { class: "pb-sv-said-build", role: "status" });
    this.rows = make("ul", { class: "pb-sv-moves" });
    const tools = make(
      "div",
      { class: "pb-sv-tools" },
      this.kinds(),
      (this.back = button("Undo", () => this.undo())),
      (this.clear = button("Clear", () => app.build(""))),
      button("Leave", () => app.build(null)),
    );
    this.help = make(
      "p",
      { class: "pb-sv-note" },
      "A click on a lane, or on a button, adds the next action there; a dashed button says why it cannot. With the picture in focus: arrows up and down choose the rank; f, b, w and x (B and W as one) add, a adds what can start first, Backspace takes the last one back.",
    );
    this.root = make(
      "section",
      { class: "pb-sv-builder", "aria-label": "Your own schedule", hidden: "" },
      tools,
      this.said,
      this.rows,
      this.help,
    );
  }

  kinds() {
    const option = (whole, words) => {
      const radio = make("input", {
        type: "radio",
        name: `${this.app.id}-whole`,
        class: "pb-unseen",
        ...(whole === this.whole ? { checked: "" } : {}),
      });
      radio.addEventListener("change", () => ((this.whole = whole), this.update()));
      return make("label", {}, radio, make("span", {}, words));
    };
    this.options = [option(true, "B and W as one"), option(false, "B and W apart")];
    return make("span", { class: "pb-options", role: "radiogroup", "aria-label": "Backward passes" }, ...this.options);
  }

  choose(whole) {
    this.whole = whole;
    this.options[whole ? 0 : 1].firstChild.checked = true;
  }

  get board() {
    return this.app.result.board;
  }

  /** What has been placed last is in view. */
  follow() {
    const [side] = this.app.sides,
      rank = Number.parseInt(this.board?.text.split(".").at(-1), 10),
      last = side.offsets[rank + 1] - 1;
    if (last >= 0) this.app.scene.bring((side.start[last] + side.end[last]) / 2);
  }

  update() {
    const { board } = this;
    if (board && this.root.hidden) this.choose(!board.apart); // as the plan has it, until the reader says otherwise
    this.root.hidden = !board;
    this.open.hidden = Boolean(board) || this.app.inputs.trace != null;
    if (!board) return;
    this.back.disabled = this.clear.disabled = !board.placed;
    keep(this.rows, board.ranks.length, () => make("li", {}, make("span"), make("span", { class: "pb-sv-choices" })));
    board.ranks.forEach((moves, rank) => this.row(this.rows.children[rank], moves, rank));
    say(this.said, this.words(board));
  }

  words({ complete, known, placed, left }) {
    if (complete)
      return known ? `Complete. You have rebuilt ${known}.` : "Complete: a schedule without a name, your own.";
    return placed ? `${placed} placed, ${left} passes left.` : "";
  }

  row(li, moves, rank) {
    say(li.firstChild, this.app.scene.geometry.long === false ? rank : `rank ${rank}`);
    const shown = moves.filter(([, op]) => op === "F" || (op === "BW") === this.whole),
      chunks = this.app.sides[0].chunks;
    const made = shown.map(([word, op, stage, microbatch, refused]) => {
      const text = `${op}${microbatch}${chunks > 1 ? ` · s${stage}` : ""}`,
        el = button(text, () => this.play(word, refused, rank), { "data-op": op, class: "pb-sv-move" });
      set(el, "aria-disabled", refused ? "true" : null);
      set(el, "title", refused || null);
      set(el, "aria-label", `${text} on rank ${rank}: ${op} of micro-batch ${microbatch} on stage ${stage}`);
      return el;
    });
    const focused = [...li.lastChild.children].indexOf(document.activeElement);
    li.lastChild.replaceChildren(...(made.length ? made : [make("span", { class: "pb-sv-note" }, "done")]));
    if (focused >= 0) li.lastChild.children[Math.min(focused, made.length - 1)]?.focus();
  }

  /** Place what a word says, or say why not. */
  play(word, refused, rank) {
    this.app.pointing.hold(rank);
    if (refused) {
      say(this.said, `Not possible: ${refused}.`);
      return;
    }
    const { text } = this.board;
    this.app.build(text ? `${text}.${word}` : word);
  }

  best(rank) {
    return this.board?.best[rank][this.whole ? 1 : 0];
  }

  /** What a click on a rank adds: "F of micro-batch 0 on stage 0"; null for nothing. */
  next(rank) {
    const move = this.board?.ranks[rank].find(([word]) => word === this.best(rank));
    return move ? `${move[1]} of micro-batch ${move[3]} on stage ${move[2]}` : null;
  }

  /** What can start first on a rank. */
  add(rank) {
    const word = this.best(rank);
    if (word) return this.play(word, "", rank);
    const moves = this.board.ranks[rank],
      first = moves.find(([, op]) => op === (this.whole ? "BW" : "B")) ?? moves[0];
    this.play(
      "",
      moves.length ? (moves.find(([, op]) => op === "F") ?? first)[4] : `rank ${rank} has done all its work`,
      rank,
    );
  }

  undo() {
    const words = this.board.text.split(".");
    if (this.board.placed) this.app.build(words.slice(0, -1).join("."));
  }

  /** What a key on the picture does to the rank in focus. */
  key({ key, ctrlKey }) {
    const rank = this.app.pointing.pinned?.side === 0 ? this.app.pointing.pinned.rank : 0;
    if (key === "Backspace" || (ctrlKey && key === "z")) return () => this.undo();
    if (ctrlKey) return null;
    if (key === "a") return () => this.add(rank);
    const op = { f: "F", b: "B", w: "W", x: "BW" }[key];
    if (!op) return null;
    const all = this.board.ranks[rank].filter((move) => move[1] === op),
      move = all.find((m) => !m[4]) ?? all[0];
    return () => (move ? this.play(move[0], move[4], rank) : this.play("", `rank ${rank} has done every ${op}`, rank));
  }
}
