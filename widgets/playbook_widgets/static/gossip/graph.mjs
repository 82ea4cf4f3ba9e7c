// The nodes, their links in the step that comes next, and colours that say how far each value is from the mean.

import { draw, keep, make, say, set, setAll } from "../shared/dom.mjs";
import { listed, rounded, share } from "../shared/numbers.mjs";
import { Announcer } from "../shared/parts.mjs";
import { number, px } from "./pieces.mjs";

const HEIGHT = 340,
  EDGE = 4,
  BIG = 16,
  TEXT = 13; // px: of the picture, around it, of a node, and from when on it holds a number
const FEW = 8; // neighbours that are named, and have arrows
const KEYS =
  "Keys: left and right go from node to node, up and down change its value by 1 (with Shift by 10), space plays.";

export class Graph {
  constructor(app) {
    this.app = app;
    this.arrow = draw(
      "marker",
      {
        id: `${app.id}-arrow`,
        viewBox: "0 0 8 8",
        refX: 8,
        refY: 4,
        markerWidth: 7,
        markerHeight: 7,
        orient: "auto-start-reverse",
      },
      draw("path", { d: "M0,0L8,4L0,8Z" }),
    );
    this.links = draw("path", { class: "pb-go-links" });
    [this.taken, this.nodes] = ["taken", "nodes"].map((name) => draw("g", { class: `pb-go-${name}` }));
    this.svg = draw("svg", { "aria-hidden": "true" }, draw("defs", {}, this.arrow), this.links, this.taken, this.nodes);
    this.help = make(
      "p",
      { class: "pb-go-note pb-go-help", id: `${app.id}-help` },
      `Choose a node, and set its value below. ${KEYS}`,
    );
    this.stage = make(
      "div",
      {
        class: "pb-go-stage",
        tabindex: "0",
        role: "application",
        "aria-roledescription": "graph",
        "aria-describedby": `${app.id}-help`,
      },
      this.svg,
    );
    this.words = make("p", { class: "pb-go-words" });
    this.announcer = new Announcer();
    this.root = make("section", { "aria-label": "Nodes" }, this.stage, this.words, this.help, this.announcer.root);
    this.svg.addEventListener("click", (e) => this.click(e));
    this.stage.addEventListener("keydown", (e) => this.key(e));
    this.sizes = new ResizeObserver(() => this.stage.clientWidth !== this.width && (this.update(), this.show()));
    this.sizes.observe(this.stage);
  }

  /** Where nodes are, in px, as large as there is room. */
  update() {
    const { places, values } = this.app.result;
    this.width = this.stage.clientWidth;
    if (!this.width) return;
    const [xs, ys] = [0, 1].map((k) => places.map((place) => place[k])),
      low = [Math.min(...xs), Math.min(...ys)],
      wide = [Math.max(...xs) - low[0], Math.max(...ys) - low[1]];
    const nearest = Math.min(
      ...places.flatMap(([x, y], i) => places.slice(i + 1).map(([a, b]) => Math.hypot(x - a, y - b))),
    );
    const fit = (radius) =>
      Math.min(...[this.width, HEIGHT].map((room, k) => (room - 2 * (radius + EDGE)) / (wide[k] || 1e-9)));
    this.radius = Math.max(2.5, Math.min(BIG, 0.36 * nearest * fit(BIG)));
    const scale = Math.min(fit(this.radius), (5 * BIG) / nearest),
      height = Math.max(wide[1] * scale, 2 * BIG) + 2 * (this.radius + EDGE);
    this.at = places.map(([x, y]) => [
      this.width / 2 + (x - low[0] - wide[0] / 2) * scale,
      height / 2 + (y - low[1] - wide[1] / 2) * scale,
    ]);
    this.bent = values.topology === "torus" ? 1.5 * nearest * scale : Infinity;
    setAll(this.svg, { viewBox: `0 0 ${this.width} ${px(height)}`, height: px(height) });
    keep(this.nodes, places.length, () =>
      draw("g", {}, draw("circle"), draw("text", { "text-anchor": "middle", dy: "0.35em" }), draw("title")),
    ).forEach((el, i) => {
      setAll(el, { "data-node": i, transform: `translate(${this.at[i].map(px).join()})` });
      setAll(el.firstChild, { r: px(this.radius) });
    });
    this.drawn = null;
  }

  show() {
    const { app } = this,
      { mean, frames, mixing } = app.result,
      { frame, node } = app;
    if (!this.width) return;
    const most = Math.max(...frames[0].map((value) => Math.abs(value - mean))) || 1;
    [...this.nodes.children].forEach((el, i) => {
      const far = frame[i] - mean,
        [, text, title] = el.children;
      el.style.setProperty("--far", `${Math.round(60 * Math.cbrt(Math.min(1, Math.abs(far) / most)))}%`);
      set(el, "data-side", far < 0 ? "below" : "above");
      set(el, "data-chosen", i === node);
      say(text, this.radius >= TEXT ? rounded(Math.abs(frame[i]) < 5e-3 ? 0 : frame[i], 2) : "");
      say(title, `node ${i}: ${number(frame[i])}`);
    });
    const turn = app.at % mixing.length,
      key = [turn, node].join();
    if (this.drawn !== key) this.link(mixing[turn]);
    this.drawn = key;
    this.say();
  }

  /** All links of a step, and those by which values come to the node that is chosen. */
  link(rows) {
    const { taken, node, id } = this.app,
      lines = rows.flatMap((row, i) =>
        row.filter(([j]) => j < i || (j > i && !rows[j].some(([k]) => k === i))).map(([j]) => this.line(j, i)),
      );
    setAll(this.links, { d: lines.join("") });
    const others = taken.filter(([j]) => j !== node);
    keep(this.taken, others.length, () => draw("path")).forEach((el, k) => {
      setAll(el, { d: this.line(others[k][0], node, this.radius + 2) });
      set(el, "marker-end", others.length <= FEW && `url(#${id}-arrow)`);
    });
  }

  /** From one node to another, `short` of its middle; around the torus in a bow, so that it does not run over others. */
  line(from, to, short = 0) {
    const [[x, y], [a, b]] = [this.at[from], this.at[to]],
      long = Math.hypot(a - x, b - y),
      bow = long > this.bent ? (from < to ? 0.16 : -0.16) : 0;
    const middle = [(x + a) / 2 - bow * (b - y), (y + b) / 2 + bow * (a - x)],
      away = Math.hypot(a - middle[0], b - middle[1]) || 1;
    const end = [a - (short * (a - middle[0])) / away, b - (short * (b - middle[1])) / away];
    return `M${px(x)},${px(y)}${bow ? `Q${middle.map(px)} ` : "L"}${end.map(px)}`;
  }

  say() {
    const { app } = this,
      { node, taken, frame, at, steps } = app,
      others = taken.filter(([j]) => j !== node),
      [, own] = taken.find(([j]) => j === node);
    const many = others.length > FEW,
      from = many
        ? [`${share(others[0][1], 1)} of each of ${others.length} others’`]
        : others.map(([j, weight]) => `${share(weight, 1)} of node ${j}’s`);
    const next =
      at < steps ? ` In the next step it takes ${listed([`${share(own, 1)} of its own value`, ...from])}.` : "";
    say(this.words, `Node ${node}: ${number(frame[node])}.${next}`);
    set(this.stage, "aria-label", `Graph of ${frame.length} nodes. Node ${node} has ${number(frame[node])}`);
    this.announcer.tell(() => (app.playing ? "" : this.words.textContent));
  }

  /** The nearest node, if it is near. */
  click(event) {
    const box = this.svg.getBoundingClientRect(),
      [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const away = this.at.map(([a, b]) => Math.hypot(a - x, b - y)),
      least = Math.min(...away);
    if (least < Math.max(24, 2 * this.radius)) this.app.choose(away.indexOf(least));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { app } = this,
      by = event.shiftKey ? 10 : 1;
    const action = {
      ArrowLeft: () => app.choose(app.node - 1),
      ArrowRight: () => app.choose(app.node + 1),
      ArrowUp: () => this.raise(by),
      ArrowDown: () => this.raise(-by),
    }[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  raise(by) {
    const { app } = this,
      { most } = app.constants,
      value = Number(app.texts[app.node]) + by;
    if (!Number.isNaN(value)) app.putOne(String(Math.max(-most, Math.min(most, Number(value.toFixed(6))))));
  }

  close() {
    this.sizes.disconnect();
    this.announcer.close();
  }
}
