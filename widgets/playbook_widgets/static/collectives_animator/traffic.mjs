// The bytes of every link, as a table of senders and receivers.

import { make, say, set } from "../shared/dom.mjs";
import { bytes } from "../shared/numbers.mjs";
import { section } from "./pieces.mjs";

export class Traffic {
  constructor(app) {
    this.app = app;
    this.table = make("table", { class: "pb-ca-traffic" });
    this.note = make("p", { class: "pb-ca-words" });
    const reached = { tabindex: "0", role: "region", "aria-label": "Bytes of each link" }; // by keys, for it scrolls
    const scrolled = make("div", { class: "pb-ca-wide", ...reached }, this.table);
    this.root = section(
      "Bytes from each rank to each other",
      make("div", { class: "pb-ca-links" }, scrolled, this.note),
    );
  }

  update() {
    const { result } = this.app,
      { links, nodes } = result,
      { ranks } = result.values,
      key = `${ranks} ${nodes[0].length}`;
    if (this.key !== key) this.build(ranks, new Set(nodes.slice(1).map((node) => node[0])));
    this.key = key;
    const most = Math.max(...links.map(([, , size]) => size)),
      sizes = new Map(links.map(([from, to, size]) => [`${from} ${to}`, size]));
    for (const [link, el] of this.cells) {
      const size = sizes.get(link) ?? 0,
        text = bytes(size),
        [from, to] = link.split(" ");
      say(el.firstChild, text);
      set(el, "title", `rank ${from} to rank ${to}: ${text}`);
      set(el, "data-kind", size ? "some" : "none");
      el.style.setProperty("--share", Math.sqrt(size / most).toFixed(3));
    }
    this.sums.forEach((el, rank) => say(el, bytes(result.sent[rank])));
    this.describe(result);
    this.show();
  }

  /** An empty table: a row for each sender, a column for each receiver, a gap where a node ends. */
  build(ranks, edge) {
    const roomy = ranks <= (this.root.clientWidth < 560 ? 4 : 6),
      all = [...Array(ranks).keys()],
      gap = (rank) => (edge.has(rank) ? { class: "pb-ca-edge" } : {});
    this.cells = new Map();
    this.sums = all.map(() => make("td", { class: "pb-ca-sum" }));
    const cell = (from, to) => {
      if (from === to) return make("td", gap(to));
      const el = make(
        "td",
        { "data-link": `${from} ${to}`, ...gap(to) },
        make("span", { class: roomy ? "" : "pb-unseen" }),
      );
      this.cells.set(el.dataset.link, el);
      return el;
    };
    const head = (text, scope) => make("th", { scope }, text),
      corner = make("td", {}, make("span", { class: "pb-ca-corner" }, roomy ? "from ↓ to →" : "↓ →"));
    const rows = all.map((from) =>
      make("tr", gap(from), head(String(from), "row"), ...all.map((to) => cell(from, to)), this.sums[from]),
    );
    set(this.table, "data-roomy", String(roomy));
    this.table.replaceChildren(
      make("thead", {}, make("tr", {}, corner, ...all.map((to) => head(String(to), "col")), head("sent", "col"))),
      make("tbody", {}, ...rows),
    );
  }

  describe({ links, sent, received, network, values: { ranks } }) {
    const total = (some) => bytes(some.reduce((sum, [, , size]) => sum + size, 0)),
      far = links.filter(([a, b]) => !this.app.together(a, b));
    const all = `${links.length} of ${ranks * (ranks - 1)} links carry ${total(links)} in all${network.inter ? `, ${total(far)} of it between nodes` : ""}.`;
    say(
      this.note,
      `${all} The busiest rank sends ${bytes(Math.max(...sent))} and receives ${bytes(Math.max(...received))}.`,
    );
  }

  show() {
    const { result, at } = this.app,
      now = new Set((result.steps[at]?.messages ?? []).map((m) => `${m.from} ${m.to}`));
    for (const [link, el] of this.cells) el.toggleAttribute("data-now", now.has(link));
  }
}
