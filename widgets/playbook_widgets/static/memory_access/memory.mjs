// Memory, line by line: 128 bytes, which are four sectors of global memory, or a word of each bank of shared memory.

import { keep, make, say, set } from "../shared/dom.mjs";
import { grouped, plural } from "../shared/numbers.mjs";
import { BANKS, LINE, legend, mark, SECTOR, section, WORD } from "./pieces.mjs";

export class Memory {
  constructor(app) {
    this.app = app;
    this.ruler = make("div", { class: "pb-ma-ruler", "aria-hidden": "true" });
    this.unit = make("span", { class: "pb-ma-address" });
    this.lines = make("div", { class: "pb-ma-lines" });
    this.ways = make("div", { class: "pb-ma-ways" });
    this.foot = make("div", { class: "pb-ma-line" }, make("span", { class: "pb-ma-address" }, "words"), this.ways);
    this.picture = make(
      "div",
      { class: "pb-ma-memory", role: "img" },
      make("div", { class: "pb-ma-line" }, this.unit, this.ruler),
      this.lines,
      this.foot,
    );
    this.legends = {
      global: legend([
        ["cell", "needed"],
        ["sector", "moved, not needed"],
        ["free", "not moved"],
      ]),
      shared: legend([
        ["cell", "needed, no conflict"],
        ["conflict", "in a bank with several words to give"],
      ]),
    };
    this.numbers = make(
      "span",
      { class: "pb-ma-numbers" },
      "Numbers in it are threads of the warp; ×32 are 32 threads at one address. ",
    );
    this.rest = make("span");
    this.note = make(
      "p",
      { class: "pb-ma-note" },
      "Left of each line is the byte at which it begins. ",
      this.numbers,
      this.rest,
    );
    this.root = section("Memory", this.picture, ...Object.values(this.legends), this.note);
    this.heading = this.root.firstChild;
    app.pointable(this.lines);
  }

  update() {
    const { values, bytes } = this.app.result,
      { memory } = values;
    say(
      this.heading,
      memory === "global" ? "Global memory, in lines of four sectors" : "Shared memory, a column for each bank",
    );
    say(this.unit, memory === "global" ? "byte" : "bank");
    const ticks =
      memory === "global"
        ? [0, 32, 64, 96].map((byte) => [byte / LINE, `+${byte}`])
        : [...Array(BANKS).keys()].map((bank) => [bank / BANKS, bank]);
    this.ruler.replaceChildren(
      ...ticks.map(([left, words], i) => {
        const el = mark(i % 4 && memory === "shared" ? "minor" : "tick", left, 1 / ticks.length);
        el.textContent = words;
        return el;
      }),
    );
    for (const [name, el] of Object.entries(this.legends)) el.hidden = name !== memory;
    this.foot.hidden = memory === "global";
    set(this.picture, "data-memory", memory);
    set(this.root, "data-bytes", bytes);
  }

  show() {
    const { picture, result } = this.app,
      { lines } = picture;
    keep(this.lines, lines.length, () =>
      make(
        "div",
        { class: "pb-ma-line" },
        make("span", { class: "pb-ma-address" }),
        make("div", { class: "pb-ma-bytes" }),
      ),
    ).forEach((el, i) => {
      say(el.firstChild, grouped(lines[i] * LINE));
      el.lastChild.replaceChildren(...this.fields(lines[i]), ...this.cells(lines[i]));
    });
    if (picture.ways) this.banks(picture.ways);
    this.mark();
    say(this.rest, this.words());
    set(this.picture, "aria-label", `${this.heading.textContent}. ${picture.answer}`);
    result.values.memory === "global" &&
      this.legends.global.children[1].toggleAttribute("hidden", picture.moved === picture.needed);
  }

  /** The sectors of a line, moved or not. */
  fields(line) {
    const { sectors } = this.app.picture,
      each = LINE / SECTOR;
    if (!sectors) return [];
    return Array.from({ length: each }, (_, i) =>
      mark(sectors.includes(line * each + i) ? "sector" : "free", i / each, 1 / each),
    );
  }

  /** What threads want of a line. */
  cells(line) {
    const { picture, result } = this.app;
    return picture.cells
      .filter(([address]) => Math.floor(address / LINE) === line)
      .map(([address, threads]) => {
        const at = (address % LINE) / LINE,
          el = mark(this.kind(address), at, result.bytes / LINE);
        el.textContent = threads.length > 1 ? `×${threads.length}` : threads[0];
        Object.assign(el.dataset, { thread: threads[0], at: address });
        el.title = `${threads.length > 1 ? `threads ${run(threads)}` : `thread ${threads[0]}`}: byte ${grouped(address)}`;
        return el;
      });
  }

  mark() {
    const { picture, thread } = this.app,
      own = String(picture.threads[thread]?.[2]);
    for (const el of this.lines.querySelectorAll("[data-thread]"))
      el.toggleAttribute("data-chosen", el.dataset.at === own);
  }

  kind(address) {
    const { ways } = this.app.picture;
    return ways && ways[Math.floor(address / WORD) % BANKS] > 1 ? "conflict" : "cell";
  }

  /** Words that each bank has to give at a time. */
  banks(ways) {
    const most = Math.max(4, ...ways);
    keep(this.ways, BANKS, () => make("span", {}, make("i"), make("b"))).forEach((el, bank) => {
      const [bar, number] = el.children;
      bar.style.height = `${(100 * ways[bank]) / most}%`;
      bar.dataset.kind = ways[bank] > 1 ? "conflict" : "cell";
      say(number, ways[bank] || "");
      set(el, "title", `bank ${bank}: ${plural(ways[bank], "word")}${ways[bank] > 1 ? " at a time" : ""}`);
    });
  }

  words() {
    const { values, bytes } = this.app.result;
    if (values.memory === "global") return "Sectors that a cache holds need not come from memory.";
    const parts =
      bytes > WORD
        ? ` Accesses of ${bytes} bytes are served ${LINE / bytes} threads at a time, and words of different times do not conflict.`
        : "";
    return `Bars count the words that a bank has to give at a time: more than one is a conflict. A pass is also called a wavefront.${parts}`;
  }
}

/** 0 to 31, or 0, 8, 16. */
const run = (threads) =>
  threads.every((thread, i) => thread === threads[0] + i) ? `${threads[0]} to ${threads.at(-1)}` : threads.join(", ");
