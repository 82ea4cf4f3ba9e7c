// The widget of number formats. `inputs` is a flat object of what the reader has set, `outputs` what
// playbook_widgets.compute.number_formats.compute makes of it (a row for every format), `constants` says what the controls and
// the formats are. Nothing is computed here that Python can: this module draws, and listens. Setting a bit sets the number
// to what Python has said that it would be.

import { Explained } from "./number_formats/explained.mjs";
import { Rows } from "./number_formats/rows.mjs";
import { button, make, say } from "./shared/dom.mjs";
import { Examples } from "./shared/examples.mjs";
import { entry, Form, linked } from "./shared/form.mjs";
import { Settings } from "./shared/settings.mjs";

// The state in a link: number=2^-25&scale=16&format=fp16. A number stays a text: of −0 and of long ones JavaScript's numbers
// would lose something.
const { encode, decode } = linked({ number: "0.1" }, ["rounding", "saturate", "scale", "draw", "format"], ["number"]);

export { decode, encode };

class NumberFormats extends Form {
  constructor(model, el) {
    super(model, "pb-nf", "number");
    this.settings = new Settings(this, "pb-nf");
    this.drawn = make("span");
    this.draw = make(
      "p",
      { class: "pb-nf-draw" },
      button("Draw again", () => this.change("draw", this.result.values.draw + 1)),
      this.drawn,
    );
    this.parts = [new Examples(this, "Numbers to load", ["draw", "format"]), new Rows(this), new Explained(this)];
    const [examples, rows, explained] = this.parts.map((part) => part.root);
    this.open(
      el,
      "A number in every format, bit by bit",
      examples,
      this.settings.root,
      this.draw,
      this.status,
      rows,
      explained,
    );
  }

  // --- what is known

  /** The row that is explained. */
  get chosen() {
    return this.result.rows.find(({ name }) => name === this.result.values.format);
  }

  // --- what the reader sets

  /** A list speaks in texts. */
  change(field, value) {
    super.change(field, field === "scale" ? Number(value) : value);
  }

  /** Set the bit at a place of a format's row to the other digit: that row becomes the number, and is explained. */
  flip(name, at) {
    const { number } = this.inputs,
      inputs = { ...this.inputs, number: this.result.rows.find((row) => row.name === name).flips[at], format: name };
    if (inputs.number !== undefined && number !== inputs.number) this.submit(inputs);
  }

  refresh() {
    const { values, u } = this.result;
    this.draw.hidden = values.rounding !== "stochastic";
    say(
      this.drawn,
      `u = ${u} was drawn: a magnitude is rounded up if it lies more than u of the way to its upper neighbour.`,
    );
    super.refresh();
  }
}

export default entry(NumberFormats);
