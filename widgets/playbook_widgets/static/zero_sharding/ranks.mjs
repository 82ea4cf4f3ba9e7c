// The ranks side by side: as wide as the model has parameters, as high as each has bytes; filled is what a rank keeps.

import { keep, make, say, set } from "../shared/dom.mjs";
import { bytes, count, grouped } from "../shared/numbers.mjs";
import { section } from "./pieces.mjs";

const HEIGHT = 80,
  CARD = 88; // px: of all bands together, and the least width of a card with its gap

/** The first stage in which a rank keeps a share alone. */
const SHARED_FROM = { optimizer: 1, gradients: 2, parameters: 3 };

export class Ranks {
  constructor(app) {
    this.app = app;
    this.cards = make("div", { class: "pb-zs-ranks" });
    this.note = make("p", { class: "pb-zs-note" });
    this.root = section("Who keeps which share", this.cards, this.note);
    this.sizes = new ResizeObserver(() => this.cards.clientWidth !== this.width && this.update());
    this.sizes.observe(this.cards);
  }

  /** The ranks that there is room for: the first ones, and the last. */
  shown(replicas) {
    const room = Math.max(3, Math.min(8, Math.floor((this.width || 600) / CARD)));
    if (replicas <= room) return [...Array(replicas).keys()];
    return [...Array(room - 2).keys(), null, replicas - 1];
  }

  update() {
    this.width = this.cards.clientWidth;
    const { result, stage } = this.app,
      ranks = this.shown(result.values.replicas);
    keep(this.cards, ranks.length, () => this.card()).forEach((card, i) =>
      this.show(card, ranks[i], ranks[i] === null ? ranks[i - 1] : null),
    );
    say(this.note, this.words(result, stage));
  }

  card() {
    const bands = Object.keys(this.app.constants.kinds).map((kind) =>
      make("span", { class: "pb-zs-band", "data-kind": kind }, make("i", { "data-kind": kind })),
    );
    return make(
      "div",
      { class: "pb-zs-rank", role: "img" },
      make("b"),
      make("span", { class: "pb-zs-bands" }, ...bands),
      make("span", { class: "pb-zs-held" }),
    );
  }

  /** One rank, or where `rank` is null the gap after the rank `before`. */
  show(card, rank, before) {
    const { result, stage } = this.app,
      { replicas } = result.values,
      [name, bands, held] = card.children,
      each = result.bytes_per_parameter;
    card.toggleAttribute("data-gap", rank === null);
    say(name, rank === null ? "…" : `rank ${rank}`);
    say(held, rank === null ? `${grouped(replicas - before - 2)} more` : bytes(stage.total));
    set(
      card,
      "aria-label",
      rank === null
        ? `${grouped(replicas - before - 2)} more ranks`
        : `rank ${rank} keeps ${this.kept(stage, replicas)}`,
    );
    if (rank === null) return;
    const all = each.parameters + each.gradients + each.optimizer;
    for (const band of bands.children) {
      const { kind } = band.dataset,
        shared = stage.zero >= SHARED_FROM[kind];
      band.style.height = `${(HEIGHT * each[kind]) / all}px`;
      band.hidden = !each[kind];
      const from = shared ? (100 * rank) / replicas : 0,
        width = shared ? 100 / replicas : 100;
      Object.assign(band.firstChild.style, { left: `min(${from}%, 100% - 2px)`, width: `max(${width}%, 2px)` });
    }
  }

  kept(stage, replicas) {
    const { kinds } = this.app.constants;
    return Object.entries(kinds)
      .map(([kind, words]) => `${stage.zero >= SHARED_FROM[kind] ? `1/${replicas} of the` : "all"} ${words}`)
      .join(", ");
  }

  words({ values, units, bytes_per_parameter: each }, stage) {
    const shares = stage.zero
      ? ` A share is ${count(stage.share)} parameters${this.padding(values, stage)}; it is drawn in one piece, as in the ZeRO paper. In code it is a piece of each bucket of gradients${stage.zero === 3 ? ` and of each of the ${units > 1 ? `${units} units` : "model's blocks"}` : ""}.`
      : " Every rank keeps the same.";
    return `Each strip is as wide as the model's Ψ parameters and as high as their bytes: ${each.parameters}, ${each.gradients} and ${each.optimizer}. Filled is what the rank keeps, so the area is its memory.${stage.gathered ? " From forward to backward it holds the whole weights, too." : ""}${shares}`;
  }

  padding({ parameters, replicas }, { share }) {
    const extra = share * replicas - parameters;
    return extra ? ` (${grouped(extra)} of padding in all)` : "";
  }

  close() {
    this.sizes.disconnect();
  }
}
