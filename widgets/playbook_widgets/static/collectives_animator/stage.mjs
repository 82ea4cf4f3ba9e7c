// The ranks as cards, with a cell for each chunk, and the messages on their way between them.

import { draw, keep, make, say, set } from "../shared/dom.mjs";
import { seconds } from "../shared/numbers.mjs";
import { along, arrow, curve, hull, mix, outside, piece, px } from "./curves.mjs";
import { swatch } from "./pieces.mjs";
import { arrange } from "./places.mjs";
import { chunksOf, contents, ranksIn, runsOf, sentence } from "./words.mjs";

export class Stage {
  constructor(app) {
    this.app = app;
    [this.behind, this.lines, this.cards, this.pills] = ["behind", "lines", "cards", "pills"].map((name) =>
      draw("g", { class: `pb-ca-${name}` }),
    );
    this.svg = draw("svg", { role: "img" }, this.behind, this.lines, this.cards, this.pills);
    this.caption = make("p", { class: "pb-ca-caption", "aria-live": "polite" }, make("b"), " ", make("span"));
    this.reading = make("p", { class: "pb-ca-reading" });
    this.legend = make("p", { class: "pb-ca-legend" });
    const words = "Ranks and messages; arrow keys step, the space bar plays";
    this.box = make("div", { class: "pb-ca-stage", tabindex: "0", role: "group", "aria-label": words }, this.svg);
    this.root = make("section", { class: "pb-ca-scene", "aria-label": "Animation" }, this.caption, this.box);
    for (const type of ["pointermove", "pointerdown"]) this.box.addEventListener(type, (e) => this.point(e));
    this.box.addEventListener("pointerleave", () => ((this.where = null), this.read()));
    this.sizes = new ResizeObserver(() => this.box.clientWidth !== this.place?.width && this.update());
    this.sizes.observe(this.box);
  }

  /** New messages, or a new width: cards anew. */
  update() {
    const { app } = this,
      { result } = app,
      width = this.box.clientWidth;
    if (!width) return;
    this.place = arrange(result, width);
    const { height, card, places, chunks, boxes } = this.place,
      small = card.wide < 14;
    set(this.svg, "viewBox", `0 0 ${width} ${px(height)}`);
    set(this.svg, "height", px(height));
    const looks = {
      font: card.wide < 9 ? "11px" : "13px",
      outline: small ? 1.5 : 2.5,
      cell: small ? "color-mix(in srgb, currentColor 30%, transparent)" : "var(--part)",
    };
    for (const [name, value] of Object.entries(looks)) this.root.style.setProperty(`--${name}`, value);
    this.leaves = new Map(
      result.steps.flatMap(({ messages }, step) => messages.map((m) => [`${m.from} ${m.first}`, step])),
    );
    this.drawBehind();
    const all = keep(this.cards, places.length, () => draw("g", { class: "pb-ca-card" })),
      key = JSON.stringify([card, chunks, boxes, all.length]);
    if (this.drawn !== key) this.cells = all.map((el, rank) => this.drawCard(el, rank));
    this.drawn = key;
    all.forEach((el, rank) => (el.style.transform = `translate(${px(places[rank].x)}px, ${px(places[rank].y)}px)`));
    this.explain();
    this.where = null;
    this.show();
  }

  /** What lies behind the cards: the nodes where there are several, and the way of all messages in a tree or a star. */
  drawBehind() {
    const { nodes, links } = this.app.result,
      { places, shape } = this.place,
      several = nodes.length > 1 && nodes[0].length > 1;
    const outline = (node) =>
      `M${hull(node.flatMap((rank) => this.corners(rank)))
        .map((p) => `${px(p.x)},${px(p.y)}`)
        .join("L")}Z`;
    const line = ([a, b]) =>
      draw("line", { x1: px(places[a].x), y1: px(places[a].y), x2: px(places[b].x), y2: px(places[b].y) });
    const areas = several ? nodes.map((node) => draw("path", { d: outline(node) })) : [];
    const ways = shape === "tree" || shape === "star" ? links.map(line) : [];
    const names = several ? nodes.map((node, i) => this.nodeName(node, `node ${i}`)) : [];
    this.behind.replaceChildren(...areas, ...ways, ...names);
  }

  corners(rank) {
    const {
        card: { width, height },
        places,
      } = this.place,
      { x, y } = places[rank];
    return [-1, 1].flatMap((i) => [-1, 1].map((k) => ({ x: x + (i * width) / 2, y: y + (k * height) / 2 })));
  }

  nodeName(node, text) {
    const { places, card, shape } = this.place,
      { x, y } = places[shape === "grid" ? node.at(-1) : node[0]];
    const [at, anchor] = {
      circle: [mix(this.mean(node), this.centre(), 0.42), "middle"],
      grid: [{ x: x + card.width / 2, y: y - card.height / 2 - 6 }, "end"],
      tree: [{ x: x + card.width / 2 + 8, y: y + 4 }, "start"],
    }[shape];
    return draw("text", { x: px(at.x), y: px(at.y), "text-anchor": anchor }, text);
  }

  mean(ranks) {
    const sum = (axis) => ranks.reduce((all, rank) => all + this.place.places[rank][axis], 0) / ranks.length;
    return { x: sum("x"), y: sum("y") };
  }

  centre() {
    return { x: this.place.width / 2, y: this.place.height / 2 };
  }

  drawCard(el, rank) {
    const { card, boxes, chunks } = this.place,
      { width, height, head, pad } = card;
    const name = draw("text", { x: px(-width / 2 + pad + 1), y: px(-height / 2 + head - (head > 14 ? 6 : 4)) });
    const cells = Array.from({ length: boxes }, (_, box) =>
      Array.from({ length: chunks }, (_, chunk) => this.drawCell(rank, chunk, box)),
    );
    const back = draw("rect", {
      class: "pb-ca-back",
      x: px(-width / 2),
      y: px(-height / 2),
      width: px(width),
      height: px(height),
      rx: 5,
    });
    el.replaceChildren(back, name, ...cells.flat().map((cell) => cell.el));
    return { el, name, cells };
  }

  drawCell(rank, chunk, box) {
    const { wide, high } = this.place.card,
      corner = this.cellAt(chunk, box),
      [x, y, w, h] = [corner.x + 0.75, corner.y + 0.75, wide - 1.5, high - 1.5];
    const back = draw("rect", {
      class: "pb-ca-empty",
      x: px(x),
      y: px(y),
      width: px(w),
      height: px(h),
      rx: wide < 10 ? 1 : 2,
    });
    const fill = draw("path"),
      count = draw("text", { x: px(x + w / 2), "text-anchor": "middle" });
    return {
      el: draw(
        "g",
        { class: "pb-ca-cell", "data-rank": rank, "data-chunk": chunk, "data-box": box },
        fill,
        back,
        count,
      ),
      fill,
      count,
      x,
      y,
      w,
      h,
    };
  }

  /** The upper left corner of a cell, from the middle of its card. Results are in the last box. */
  cellAt(chunk, box) {
    const { columns, wide, high, head, height, second, whole } = this.place.card;
    return {
      x: -whole / 2 + box * second + (chunk % columns) * wide,
      y: -height / 2 + head + Math.floor(chunk / columns) * high,
    };
  }

  /** What is held at the place where the reader is, and the messages of the step that comes next. */
  show() {
    if (!this.cells) return;
    const { app } = this,
      { result, at } = app,
      step = result.steps[at],
      held = app.states[at];
    this.cells.forEach((card, rank) => {
      const idle = step?.idle.includes(rank) ?? false;
      card.el.toggleAttribute("data-idle", idle);
      say(
        card.name,
        this.place.card.width < 56 ? rank : `rank ${rank}${idle && this.place.card.width > 92 ? " · idle" : ""}`,
      );
      card.cells.at(-1).forEach((cell, chunk) => this.fill(cell, held[rank][chunk], result.wanted[rank][chunk]));
      if (card.cells.length > 1)
        card.cells[0].forEach((cell, chunk) => this.fill(cell, this.toSend(rank, chunk) ? 1 << rank : 0, 0));
    });
    this.drawMessages(step);
    this.say(step);
    this.read();
  }

  /** Whether an all-to-all has still to send this chunk. */
  toSend(rank, chunk) {
    return this.leaves.get(`${rank} ${chunk}`) >= this.app.at;
  }

  /** One strip for each contribution that is summed in the chunk; the whole cell where nothing is summed, or all is. */
  fill(cell, bits, wanted) {
    const { sums, result } = this.app,
      state = !bits ? "none" : bits === wanted ? "done" : "part",
      look = `${bits} ${state} ${sums}`;
    if (cell.look === look) return;
    cell.look = look;
    const ones = ranksIn(bits),
      strips = sums && state === "part",
      numbered = sums && cell.w >= 17;
    const runs = strips ? runsOf(ones) : bits ? [[0, result.values.ranks - 1]] : [],
      one = cell.w / result.values.ranks;
    const [y, h] = strips && numbered ? [cell.y + 0.62 * cell.h, 0.38 * cell.h] : [cell.y, cell.h]; // below the number
    const strip = ([first, last]) =>
      `M${px(cell.x + first * one)},${px(y)}h${px((last + 1 - first) * one)}v${px(h)}h${px((first - last - 1) * one)}z`;
    cell.fill.setAttribute("d", runs.map(strip).join(""));
    set(cell.el, "data-state", state);
    say(cell.count, numbered && bits ? ones.length : "");
    cell.count.setAttribute("y", px(cell.y + cell.h * (strips ? 0.31 : 0.5) + 4));
  }

  drawMessages(step) {
    const messages = step?.messages ?? [],
      pairs = new Map();
    for (const { el } of this.cells.flatMap((card) => card.cells.flat())) set(el, "data-moves", null);
    this.moving = messages.map((message) => {
      const pair = `${message.from} ${message.to}`,
        nth = pairs.get(pair) ?? 0;
      pairs.set(pair, nth + 1);
      this.mark(message);
      return { message, ...this.route(message, nth) };
    });
    const far = ({ from, to }) => (this.app.together(from, to) ? {} : { "data-far": "" });
    this.lines.replaceChildren(
      ...this.moving.flatMap(({ message, arrow: { line, head } }) => [
        draw("path", { class: "pb-ca-arrow", d: line, ...far(message) }),
        draw("path", { class: "pb-ca-head", d: head }),
      ]),
    );
    this.pills.replaceChildren(...this.moving.map((m) => (m.pill = this.pill(m))));
    this.frame();
  }

  /** Outline the chunks that a message takes, and the places where they land. */
  mark({ from, to, first, last, into }) {
    for (let i = 0; i < last - first; i++) {
      this.cells[from].cells[0][first + i].el.setAttribute("data-moves", "out");
      this.cells[to].cells.at(-1)[into + i].el.setAttribute("data-moves", "in");
    }
  }

  /** The way from cell to cell, and the arrow from card to card. */
  route({ from, to, first, last, into }, nth) {
    const { places, card, boxes } = this.place,
      middle = (rank, one, box) => {
        const [a, b] = [this.cellAt(one, box), this.cellAt(one + last - first - 1, box)];
        return { x: places[rank].x + (a.x + b.x + card.wide) / 2, y: places[rank].y + (a.y + b.y + card.high) / 2 };
      };
    const { bow, share } = this.bend(from, to),
      line = curve(places[from], places[to], bow + 8 * nth, this.centre(), share);
    const seen = piece(line, ...outside(line, places[from], places[to], card)),
      box = boxes - 1,
      flight = [middle(from, first, 0), line[1], middle(to, into, box)];
    const room = Math.hypot(seen[2].x - seen[0].x, seen[2].y - seen[0].y);
    return { arrow: arrow(seen), room, rest: along(seen, share ? 0.3 : 0.48), flight };
  }

  /** How far a message's way keeps to the left of the straight line, in px, and by what share it tends to the middle. */
  bend(from, to) {
    const { places, shape, card } = this.place,
      a = places[from],
      b = places[to],
      length = Math.hypot(b.x - a.x, b.y - a.y);
    const beside = [1, places.length - 1].includes(Math.abs(from - to)),
      around = (a.y === b.y ? card.height : card.width) / 2 + 14;
    if (shape === "grid") return { bow: length > 1.6 * this.nearest(from, to) ? around : 4, share: 0 };
    if (shape === "circle" && !beside) return { bow: Math.min(10, length * 0.03), share: 0.22 };
    return { bow: { circle: Math.min(22, length * 0.1), tree: 5, star: 0 }[shape], share: 0 };
  }

  /** From one rank of a grid to the next, in the direction of a message. */
  nearest(from, to) {
    const { places } = this.place,
      inNode = this.app.result.nodes[0].length;
    return places[from].y === places[to].y ? places[1].x - places[0].x : places[inNode].y - places[0].y;
  }

  /** The chunks that are on their way; a mere mark where the arrow is too short for their numbers. */
  pill({ message, room }) {
    const small = this.place.card.wide < 11,
      text = this.app.result.values.collective === "barrier" ? "" : chunksOf(message);
    const wide = text.length * (small ? 6 : 7.5) + (small ? 7 : 11),
      [width, height] = !text || wide > room + 6 ? [9, 9] : [wide, small ? 14 : 19];
    const back = draw("rect", { x: px(-width / 2), y: -height / 2, width: px(width), height, rx: small ? 3 : 4 });
    return draw(
      "g",
      { class: "pb-ca-pill" },
      back,
      draw("text", { y: small ? 4 : 5, "text-anchor": "middle" }, width === 9 ? "" : text),
    );
  }

  /** Messages on their way: each as far as the model has it at this moment of the step. */
  frame() {
    const { app } = this,
      step = app.result.steps[app.at];
    if (!step || !this.moving) return;
    const now = step.start + app.progress * (step.end - step.start);
    for (const { message: m, pill, rest, flight } of this.moving) {
      const at = app.moving ? along(flight, Math.min(1, Math.max(0, (now - m.start) / (m.end - m.start)))) : rest;
      pill.setAttribute("transform", `translate(${px(at.x)},${px(at.y)})`);
    }
  }

  say(step) {
    const { app } = this,
      { result, at } = app,
      { collective } = result.values,
      [title, words] = this.caption.children;
    const text = step
      ? sentence(step, collective)
      : `${app.constants.collectives[collective].result} ${seconds(result.seconds)} have passed.`;
    set(this.caption, "aria-live", app.playing ? "off" : "polite");
    say(title, step ? `Step ${at + 1} of ${result.steps.length}:` : "Done:");
    say(words, text);
    set(this.svg, "aria-label", `${title.textContent} ${text}`);
  }

  explain() {
    const two = this.place.boxes > 1,
      part = this.app.sums
        ? "number and strips: the ranks whose parts are summed"
        : two
          ? "left: still to be sent"
          : "held on the way";
    const items = [
      ["part", part],
      ["done", two ? "right: arrived" : "finished"],
      ["wire", "on its way: number of the chunk"],
    ];
    if (this.app.result.network.inter) items.push(["far", "between nodes"]);
    this.legend.replaceChildren(...items.map(([kind, words]) => swatch(kind, words)));
  }

  point(event) {
    this.where = event.target.closest?.(".pb-ca-cell")?.dataset;
    this.read();
  }

  /** Say what is in the cell under the pointer. */
  read() {
    const { app, where } = this,
      { values, wanted } = app.result;
    if (!where) return say(this.reading, "Point at a chunk to read what is in it.");
    const { rank, chunk, box } = where,
      two = this.place.boxes > 1;
    const waits = rank === chunk ? "its own, in place" : this.toSend(+rank, +chunk) ? "still to be sent" : "sent";
    if (two && box === "0") return say(this.reading, `Rank ${rank}, chunk for rank ${chunk}: ${waits}.`);
    const name = values.collective === "barrier" ? "" : two ? `, chunk from rank ${chunk}:` : `, chunk ${chunk}:`;
    say(this.reading, `Rank ${rank}${name} ${contents(app.states[app.at][rank][chunk], wanted[rank][chunk], values)}.`);
  }
}
