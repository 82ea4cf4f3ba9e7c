// The rank that is looked at: where it stands, its groups, what it holds.

import { button, keep, make, say, set } from "../shared/dom.mjs";
import { bytes, grouped, plural } from "../shared/numbers.mjs";
import { Announcer } from "../shared/parts.mjs";
import { mark, section } from "./pieces.mjs";

export class Rank {
  constructor(app) {
    this.app = app;
    [this.where, this.answer, this.memory] = ["where", "answer", "memory"].map((name) =>
      make("p", { class: `pb-me-${name}` }),
    );
    this.groups = make("div", { class: "pb-me-groups" });
    this.hint = make("p", { class: "pb-me-note" }, "Press a group to light it alone.");
    this.holds = make("ul", { class: "pb-me-holds" });
    this.stale = make("span", { class: "pb-me-stale" }, "last valid");
    this.announcer = new Announcer();
    this.root = section(
      "The rank and its groups",
      this.where,
      this.groups,
      this.hint,
      this.holds,
      this.memory,
      this.announcer.root,
    );
    this.heading = this.root.firstChild;
  }

  update() {
    const { app } = this,
      { rank, node, coordinates, groups, holds, memory, answer } = app.result;
    this.heading.replaceChildren(`Rank ${grouped(rank)} `, this.stale);
    this.stale.hidden = !app.error;
    const at = Object.entries(coordinates)
      .map(([axis, index]) => `${axis} ${index}`)
      .join(" · ");
    say(this.where, `${at}, in node ${grouped(node)}`);
    keep(this.groups, groups.length, () => this.row()).forEach((row, i) => this.group(row, groups[i]));
    this.hint.hidden = groups.length < 2;
    keep(this.holds, holds.length, () => make("li")).forEach((item, i) => say(item, holds[i]));
    say(
      this.memory,
      `It keeps ${["parameters", "gradients", "optimizer"].map((name) => `${bytes(memory[name])} of ${name === "optimizer" ? "optimizer states" : name}`).join(", ")}; the memory calculator adds activations.`,
    );
    this.announcer.tell(() => `Rank ${rank}: ${at}. ${answer}`);
  }

  row() {
    const el = button("", () => this.app.light(el.dataset.group), { class: "pb-me-group" });
    el.append(
      make("span"),
      make("b"),
      make("span", { class: "pb-me-place" }),
      make("span", { class: "pb-me-members" }),
    );
    return el;
  }

  /** One group; pressed, it is the only one that is lit. */
  group(row, group) {
    const { name, axis, letter, common, ranks, place, nodes } = group,
      [badge, title, where, members] = row.children;
    if (row.dataset.group !== name) {
      row.dataset.group = name;
      badge.replaceChildren(mark({ name, axis, letter }));
      say(title, name);
      set(row, "title", common);
    }
    set(row, "aria-pressed", String(this.app.only === name));
    say(where, `${plural(ranks.length, "rank")}, index ${place}`);
    say(members, `ranks ${listed(ranks)}: ${nodes === 1 ? "in one node" : `over ${plural(nodes, "node")}`}; ${common}`);
  }

  close() {
    this.announcer.close();
  }
}

/** 0, 1, 2 or, where there are many, 0, 8, 16, …, 1016. */
const listed = (ranks) => (ranks.length <= 8 ? ranks : [...ranks.slice(0, 3), "…", ranks.at(-1)]).join(", ");
