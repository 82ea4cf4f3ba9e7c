// The goodput widget. `inputs` is a flat object of what the reader has set, `outputs` what
// playbook_widgets.compute.goodput.compute makes of it (parts of the time, a curve over intervals), `constants` says what
// the controls are. Nothing is computed here that Python can: this module draws, and listens.

import { Curve } from "./goodput/curve.mjs";
import { Parts } from "./goodput/parts.mjs";
import { Examples } from "./shared/examples.mjs";
import { entry, Form, linked } from "./shared/form.mjs";
import { Settings } from "./shared/settings.mjs";
import { Verdict } from "./shared/verdict.mjs";

// The state in a link: every=3600&gpus=1024&save=30
const { encode, decode } = linked({ every: 3600 }, ["gpus", "mtbf", "save", "restart"]);

export { decode, encode };

class GoodputCurve extends Form {
  constructor(model, el) {
    super(model, "pb-gp", "every");
    this.settings = new Settings(this, "pb-gp");
    this.parts = [new Examples(this, "Runs to load", []), new Parts(this), new Curve(this), new Verdict(this)];
    const [examples, parts, curve, verdict] = this.parts.map((part) => part.root);
    this.open(
      el,
      "Goodput: what the time of a run goes to",
      examples,
      this.settings.root,
      this.status,
      parts,
      curve,
      verdict,
    );
  }
}

export default entry(GoodputCurve);
