// Renders formulas: one JSON object {tex, display} per line in, one {html} or {error} per line out.
const katex = require(process.argv[2]);

// Characters such as × and − stand in formulas on purpose; anything else KaTeX finds odd is an error.
const strict = (code) => (code === "unicodeTextInMathMode" ? "ignore" : "error");

function render({ tex, display }) {
  try {
    return { html: katex.renderToString(tex, { displayMode: display, throwOnError: true, strict }) };
  } catch (error) {
    return { error: error.message };
  }
}

require("readline")
  .createInterface({ input: process.stdin })
  .on("line", (line) => process.stdout.write(JSON.stringify(render(JSON.parse(line))) + "\n"));
