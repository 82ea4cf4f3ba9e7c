// An exercise that the page grades: a box with the cell's own text, which Python runs when the reader asks for it.
//
// What a reader writes, and what is solved, stays in this browser. `inputs` holds the name of the exercise and the source,
// at first the cell's; `outputs` what the cell has printed, and whether that solved it.

import { button, make, newId, say, set } from "./shared/dom.mjs";

/** What this browser keeps of an exercise; a browser may refuse to keep anything. */
const kept = {
  get(key) {
    try {
      return localStorage.getItem(`playbook:${key}`);
    } catch {
      return null;
    }
  },
  set(key, value) {
    try {
      if (value === null) localStorage.removeItem(`playbook:${key}`);
      else localStorage.setItem(`playbook:${key}`, value);
    } catch {} // then it lasts as long as the page
  },
};

/** Enter goes on where the line above began, and deeper after a colon; Ctrl-Enter or Shift-Enter checks. */
function typed(event, check) {
  if (event.key !== "Enter" || event.altKey || event.isComposing) return;
  event.preventDefault();
  if (event.ctrlKey || event.shiftKey || event.metaKey) return check();
  const box = event.target,
    line = box.value.slice(0, box.selectionStart).split("\n").at(-1);
  const indent = line.match(/^\s*/)[0] + (line.trimEnd().endsWith(":") ? "    " : "");
  box.setRangeText(`\n${indent}`, box.selectionStart, box.selectionEnd, "end");
  box.dispatchEvent(new Event("input"));
}

function render({ model, el }) {
  const { name, source } = model.get("inputs"),
    id = newId("pb-exercise");
  const box = make("textarea", { id, spellcheck: "false", autocapitalize: "off", autocomplete: "off", wrap: "off" });
  box.value = kept.get(name) ?? source;
  const said = make("pre", { class: "pb-verdict", role: "status" });
  const mark = make("span", { class: "pb-ex-mark" });
  const check = button("Check", submit, { title: "Ctrl-Enter" });
  const again = button("Start again", () => {
    box.value = source;
    say(said, "");
    written();
    box.focus();
  });
  const label = make("label", { for: id }, "Your answer, run by Python in this page");
  const bar = make("div", { class: "pb-ex-bar" }, check, again, mark);
  el.append(make("div", { class: "pb-w pb-ex" }, label, box, bar, said));

  function written() {
    kept.set(name, box.value === source ? null : box.value);
    box.rows = Math.max(2, box.value.split("\n").length);
    again.hidden = box.value === source;
    say(mark, kept.get(`${name}:solved`) ? "✓ solved in this browser" : "");
  }
  let asked = false; // Python may also start because a pointer comes near
  function submit() {
    asked = true;
    model.set("inputs", { name, source: box.value });
    model.save_changes();
  }
  function status() {
    const now = asked ? model.get("status") : "idle";
    if (now === "starting") say(said, "Python starts …");
    else if (now === "busy") say(said, "It runs …");
    else if (now.startsWith("failed")) say(said, `Your answer could not be checked here (${now.slice(8)}).`);
  }
  function answered() {
    const { text, solved } = model.get("outputs");
    if (solved) kept.set(`${name}:solved`, new Date().toISOString().slice(0, 10));
    asked = false;
    say(said, text || "The cell has printed nothing: call check in it.");
    set(said, "data-solved", solved);
    written();
  }
  box.addEventListener("input", written);
  box.addEventListener("keydown", (event) => typed(event, submit));
  model.on("change:status", status);
  model.on("change:outputs", answered);
  written();
}

export default { render };
