// What the access costs, in one number, in sentences, in numbers.

import { keep, make, say } from "../shared/dom.mjs";
import { grouped, plural, rounded } from "../shared/numbers.mjs";
import { Announcer } from "../shared/parts.mjs";
import { LINE, SECTOR } from "./pieces.mjs";

const passes = (number) => `${grouped(number)} ${number === 1 ? "pass" : "passes"}`;
const percent = (part, whole) => (whole ? `${rounded((100 * part) / whole)}\u202f%` : "none");

export class Verdict {
  constructor(app) {
    this.app = app;
    [this.cost, this.of, this.stale] = ["cost", "of", "stale"].map((name) => make("span", { class: `pb-ma-${name}` }));
    this.stale.textContent = "last valid";
    this.answer = make("p", { class: "pb-ma-answer" });
    this.numbers = make("ul", { class: "pb-ma-facts", "aria-label": "Numbers" });
    this.announcer = new Announcer();
    const line = make("p", { class: "pb-ma-line-of" }, this.cost, this.of, this.stale);
    this.root = make(
      "section",
      { class: "pb-ma-verdict", "aria-label": "Result" },
      line,
      this.answer,
      this.announcer.root,
    );
  }

  show() {
    const { app } = this,
      { picture, result } = app,
      global = result.values.memory === "global";
    say(this.cost, global ? plural(picture.sectors.length, "sector") : passes(picture.passes));
    say(
      this.of,
      global
        ? picture.moved
          ? `${percent(picture.needed, picture.moved)} of the bytes moved are needed`
          : "nothing is moved"
        : conflict(Math.max(...picture.ways)),
    );
    this.stale.hidden = !app.error;
    this.root.toggleAttribute("data-stale", Boolean(app.error));
    say(this.answer, picture.answer);
    const facts = global ? this.ofSectors(picture, result) : this.ofBanks(picture, result);
    keep(this.numbers, facts.length, () => make("li", {}, make("span"), make("b"), make("span"))).forEach((row, i) =>
      facts[i].forEach((text, k) => say(row.children[k], text)),
    );
    this.announcer.tell(() => `${this.cost.textContent}, ${this.of.textContent}. ${picture.answer}`);
  }

  /** Name, number, remark. */
  ofSectors({ sectors, lines, moved, needed, active }, { block }) {
    return [
      [
        "Sectors",
        grouped(sectors.length),
        `of ${SECTOR} bytes; ${grouped(Math.ceil(needed / SECTOR))} would hold what is needed`,
      ],
      ["Lines", grouped(lines.length), `of ${LINE} bytes`],
      ["Bytes moved", grouped(moved), `${grouped(sectors.length)} × ${SECTOR}`],
      ["Bytes needed", grouped(needed), `of ${plural(active, "thread")}, each address once`],
      ["Efficiency", percent(needed, moved), "bytes needed, of those moved"],
      [
        "Sectors of the block",
        grouped(block.sectors),
        `${plural(block.warps, "warp")}, efficiency ${percent(block.efficiency, 1)}`,
      ],
    ];
  }

  ofBanks({ passes: taken, least, ways, words, needed, active }, { block }) {
    return [
      ["Passes", grouped(taken), `${grouped(least)} without conflicts`],
      ["Busiest bank", plural(Math.max(...ways), "word"), "at a time: the degree of the conflict"],
      ["Words", grouped(words), `of 4 bytes, in ${plural(ways.filter(Boolean).length, "bank")}`],
      ["Bytes needed", grouped(needed), `of ${plural(active, "thread")}, each address once`],
      [
        "Passes of the block",
        grouped(block.passes),
        `${plural(block.warps, "warp")}, ${grouped(block.least)} without conflicts`,
      ],
    ];
  }

  close() {
    this.announcer.close();
  }
}

const conflict = (degree) =>
  degree > 1 ? `a ${degree}-way bank conflict`.replace(/^a (8|11|18)-/, "an $1-") : "no bank conflict";
