// The overlap widget. `inputs` is a flat object of what the reader has set, `outputs` what
// playbook_widgets.compute.overlap.compute makes of it (a row for each technique), `constants` says what the controls are.
// Nothing is computed here that Python can: this module draws, and listens.

import { Bars } from "./overlap/bars.mjs";
import { Examples } from "./shared/examples.mjs";
import { entry, Form, linked } from "./shared/form.mjs";
import { Settings } from "./shared/settings.mjs";
import { Verdict } from "./shared/verdict.mjs";

// The state in a link: tokens=8192&model=llama3-70b&tp=8
const { encode, decode } = linked({ tokens: 8192 }, [
  "model",
  "cluster",
  "reached",
  "tp",
  "cp",
  "dp",
  "pp",
  "ep",
  "two_step",
]);

export { decode, encode };

class OverlapRatios extends Form {
  constructor(model, el) {
    super(model, "pb-ov", "tokens");
    this.settings = new Settings(this, "pb-ov");
    this.parts = [new Examples(this, "Layouts to load", []), new Bars(this), new Verdict(this)];
    const [examples, bars, verdict] = this.parts.map((part) => part.root);
    this.open(
      el,
      "Overlap: time to send over time to compute",
      examples,
      this.settings.root,
      this.status,
      bars,
      verdict,
    );
  }
}

export default entry(OverlapRatios);
