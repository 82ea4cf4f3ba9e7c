// An exercise that the page grades: an editor with the cell's own text, which Python runs when the reader asks for it.
//
// What a reader writes, and what is solved, stays in this browser. `inputs` holds the name of the exercise and the source,
// at first the cell's; `outputs` what the cell has printed, whether that solved it, and the line that raised an error.

import { button, keep, make, newId, say, set } from "./shared/dom.mjs";
import { follow, kept, mark, note } from "./solved.mjs";

const INDENT = "    ";

/** Put `text` in place of the selection, as if it had been typed: a browser then takes it back on Ctrl+Z. */
function type(box, text) {
  box.focus();
  if (document.execCommand(text ? "insertText" : "delete", false, text)) return;
  box.setRangeText(text, box.selectionStart, box.selectionEnd, "end");
  box.dispatchEvent(new Event("input"));
}

/** Enter goes on where the line above began, and deeper after a colon. */
function breakLine(box) {
  const line = box.value.slice(0, box.selectionStart).split("\n").at(-1);
  const indent = line.match(/^\s*/)[0].slice(0, line.length) + (line.trimEnd().endsWith(":") ? INDENT : "");
  type(box, `\n${indent}`);
}

/** Tab moves to the next multiple of four; with a selection of lines, or Shift, it moves all of them in or out. */
function indent(box, out) {
  const { value, selectionStart: start, selectionEnd: end } = box,
    first = value.lastIndexOf("\n", start - 1) + 1;
  if (!out && !value.slice(start, end).includes("\n")) {
    return type(box, " ".repeat(INDENT.length - ((start - first) % INDENT.length)));
  }
  const stop = value.indexOf("\n", Math.max(start, end - 1)),
    last = stop < 0 ? value.length : stop,
    lines = value.slice(first, last).split("\n");
  const moved = lines.map((line) => (out ? line.replace(/^ {1,4}/, "") : line && INDENT + line));
  const text = moved.join("\n"),
    shift = moved[0].length - lines[0].length;
  if (text === lines.join("\n")) return;
  box.setSelectionRange(first, last);
  type(box, text);
  if (start === end) box.setSelectionRange(Math.max(first, start + shift), Math.max(first, start + shift));
  else box.setSelectionRange(first, first + text.length);
}

/** The keys of an editor. Escape gives Tab back to the page, until something else is pressed. */
function listen(box, submit) {
  let leaving = false;
  box.addEventListener("keydown", (event) => {
    const { key, altKey, ctrlKey, metaKey, shiftKey } = event;
    if (event.isComposing || altKey || key === "Shift") return;
    if (key === "Enter" && (ctrlKey || metaKey || shiftKey)) {
      event.preventDefault();
      submit();
    } else if (key === "Enter") {
      event.preventDefault();
      breakLine(box);
    } else if (key === "Tab" && !leaving && !ctrlKey && !metaKey) {
      event.preventDefault();
      indent(box, shiftKey);
    }
    leaving = key === "Escape";
  });
  box.addEventListener("focus", () => (leaving = false));
}

/** What is said while there is no answer. */
function waiting(status) {
  if (status === "starting") return "Python starts …";
  if (status === "busy") return "It runs …";
  if (status === "stopped") return "Stopped.";
  const [, seconds] = /^failed: no answer within (\d+) s/.exec(status) ?? [];
  if (seconds) return `Stopped after ${seconds} seconds: is there a loop without an end?`;
  return status.startsWith("failed") ? `Your answer could not be checked here (${status.slice(8)}).` : null;
}

function render({ model, el }) {
  const { name, source } = model.get("inputs"),
    id = newId("pb-exercise");
  const box = make("textarea", {
    id,
    "aria-describedby": `${id}-keys`,
    ...{ spellcheck: "false", autocapitalize: "off", autocomplete: "off", autocorrect: "off", wrap: "off" },
  });
  box.value = kept.get(name) ?? source;
  const numbers = make("div", { class: "pb-ex-lines", "aria-hidden": "true" });
  const said = make("pre", { class: "pb-verdict", role: "status" });
  const sign = make("span", { class: "pb-ex-mark" });
  const check = button("Check", submit, { "aria-keyshortcuts": "Control+Enter" });
  const stop = button("Stop", () => model.stop());
  const reset = button("Reset", () => {
    box.focus();
    box.select();
    type(box, source);
    tell("");
  });
  const label = make("label", { for: id }, `Your answer to ${name}, run by Python in this page`);
  const keys = make(
    "p",
    { class: "pb-ex-keys", id: `${id}-keys` },
    "Ctrl+Enter checks. Tab indents; Escape, then Tab leaves.",
  );
  const editor = make("div", { class: "pb-ex-editor" }, numbers, box);
  const bar = make("div", { class: "pb-ex-bar" }, check, stop, reset, sign, keys);
  el.append(make("div", { class: "pb-w pb-ex" }, label, editor, bar, said));

  let asked = false; // Python may also start for another widget
  function tell(text, { solved = false, line = 0 } = {}) {
    say(said, text);
    set(said, "data-solved", solved);
    set(said, "tabindex", said.scrollHeight > said.clientHeight ? 0 : null); // keys scroll what has the focus
    [...numbers.children].forEach((number, i) => set(number, "data-raised", i + 1 === line));
  }
  function lines() {
    const count = box.value.split("\n").length;
    box.rows = Math.max(2, count);
    keep(numbers, count, (i) => make("span", {}, String(i + 1)));
    reset.hidden = box.value === source;
  }
  function written() {
    kept.set(name, box.value === source ? null : box.value);
    lines();
    if (box.value !== source) model.wake(); // who writes will want to know
  }
  function submit() {
    asked = true;
    model.set("inputs", { name, source: box.value });
    model.save_changes();
    status(); // Python may be starting already
  }
  function status() {
    const now = asked ? model.get("status") : "idle",
      runs = now === "starting" || now === "busy",
      text = waiting(now);
    if (!runs && document.activeElement === stop) box.focus();
    stop.hidden = !runs;
    if (text !== null) tell(text);
    if (!runs && text !== null) asked = false;
  }
  function answered() {
    const { text, solved, line } = model.get("outputs");
    if (solved) note(name);
    asked = false;
    status();
    tell(text || "The cell has printed nothing: call check in it.", { solved, line });
    say(sign, mark(name));
  }
  box.addEventListener("input", written);
  box.addEventListener("scroll", () => (numbers.scrollTop = box.scrollTop));
  listen(box, submit);
  model.on("change:status", status);
  model.on("change:outputs", answered);
  stop.hidden = true;
  lines();
  follow(() => say(sign, mark(name)));
}

export default { render };
