// How long it takes, how many bytes it sends, and how close that is to what the links can do.

import { keep, make, say } from "../shared/dom.mjs";
import { bytes, exactly, percent, rounded, seconds } from "../shared/numbers.mjs";
import { Announcer } from "../shared/parts.mjs";

export class Verdict {
  constructor(app) {
    this.app = app;
    this.time = make("span", { class: "pb-ca-time" });
    this.of = make("span", { class: "pb-ca-of" });
    this.stale = make("span", { class: "pb-ca-stale", hidden: "" }, "last valid");
    this.twin = make("p", { class: "pb-ca-twin" });
    this.numbers = make("ul", { class: "pb-ca-facts", "aria-label": "Numbers" });
    this.announcer = new Announcer();
    const line = make("p", { class: "pb-ca-line" }, this.time, this.of, this.stale);
    this.root = make(
      "section",
      { class: "pb-ca-verdict", "aria-label": "Result" },
      line,
      this.twin,
      this.announcer.root,
    );
  }

  update() {
    const { app } = this,
      { result } = app,
      { values } = result;
    say(this.time, seconds(result.seconds));
    say(
      this.of,
      `${values.collective === "barrier" ? "" : `for ${exactly(values.bytes)} `}among ${values.ranks} ranks, by the α–β model`,
    );
    this.stale.hidden = !app.error;
    this.root.toggleAttribute("data-stale", Boolean(app.error));
    say(this.twin, this.compared(result));
    this.list();
    this.announcer.tell(() => `${this.time.textContent} ${this.of.textContent}. ${this.twin.textContent}`);
  }

  /** Against the naive twin; the naive one against the best. */
  compared({ values, algorithms, seconds: mine }) {
    const [naive] = algorithms,
      best = algorithms.filter((a) => a.seconds).reduce((a, b) => (b.seconds < a.seconds ? b : a));
    if (values.algorithm !== "naive")
      return `The naive algorithm takes ${seconds(naive.seconds)}${this.ratio(naive.seconds / mine)}.`;
    if (best === naive) return "This is the naive algorithm; no other is faster here.";
    const [, name] = this.app.constants.collectives[values.collective].algorithms.find(
      ([algorithm]) => algorithm === best.algorithm,
    );
    return `This is the naive algorithm; the fastest here, ${name}, takes ${seconds(best.seconds)}, 1/${rounded(mine / best.seconds)} of that.`;
  }

  ratio(times) {
    if (Math.abs(times - 1) < 0.005) return ", as long";
    return times > 1 ? `, ${rounded(times)} times as long` : `, only ${percent(times)} of that`;
  }

  list() {
    const { result } = this.app,
      facts = this.facts(result);
    const rows = keep(this.numbers, facts.length, () => make("li", {}, make("span"), make("b"), make("span")));
    rows.forEach((row, i) => facts[i].forEach((text, k) => say(row.children[k], text)));
  }

  /** Name, number, remark. */
  facts({ network: { intra, inter }, busy, sent, steps, closed_form: closed, seconds: time, ...result }) {
    const rate = (size) => `${bytes(size)}/s`,
      facts = [
        ["Busiest rank sends", bytes(Math.max(...sent)), this.counted(result.formula, Math.max(...sent))],
        ["Steps", String(steps.length), closed ? `time = ${closed}` : "time: message by message"],
        ["Ranks busy", percent(busy.reduce((a, b) => a + b, 0) / busy.length / time), "of the time, on average"],
      ];
    if (result.bus_bandwidth) {
      const factor = `${rounded(result.bus_bandwidth / result.algorithm_bandwidth)} K / time`.replace(/^1 /, "");
      const share = inter
        ? "hold it against a link's"
        : `${percent(result.bus_bandwidth / intra.bandwidth)} of a link's ${rate(intra.bandwidth)}`;
      facts.push(
        ["Algorithm bandwidth", rate(result.algorithm_bandwidth), "K / time"],
        ["Bus bandwidth", rate(result.bus_bandwidth), `${factor}; ${share}`],
      );
    }
    const between = inter ? `between nodes ${seconds(inter.alpha)}, ${rate(inter.bandwidth)}` : "between any two ranks";
    return [...facts, ["Link: α, 1/β", `${seconds(intra.alpha)}, ${rate(intra.bandwidth)}`, between]];
  }

  /** The formula against what was counted. */
  counted(formula, most) {
    if (!formula) return "counted; no simple formula";
    const off = Math.abs(formula.bytes - most);
    return off < 0.5
      ? `as ${formula.text} says, to the byte`
      : `${formula.text} is ${rounded(off)} bytes off: N does not divide K`;
  }
}
