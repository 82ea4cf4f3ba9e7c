// What is solved, where a page speaks of exercises that it does not grade: on the map of the book, with a file to take
// along, and beside exercises that are answered in the notebook.

import { button, make, say } from "./shared/dom.mjs";
import { all, follow, mark, read, written } from "./solved.mjs";

const FILE = "playbook-exercises.json"; // what `playbook exercises --progress FILE` reads and writes

for (const el of document.querySelectorAll(".pb-elsewhere[data-exercise]")) {
  const sign = el.appendChild(make("span", { class: "pb-ex-mark" }));
  follow(() => say(sign, mark(el.dataset.exercise)));
}

/** "1 of 3 solved" beside each chapter of the map, once one of the book is. */
function count(chapters) {
  const solved = all(),
    any = chapters.some(({ names }) => names.some((name) => name in solved));
  for (const { names, sign } of chapters) {
    say(sign, any ? `${names.filter((name) => name in solved).length} of ${names.length} solved` : "");
  }
}

function save() {
  const url = URL.createObjectURL(new Blob([written()], { type: "application/json" }));
  make("a", { href: url, download: FILE }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

const bar = document.querySelector(".pb-progress");
if (bar) {
  const chapters = [...document.querySelectorAll(".pb-map [data-exercises]")].map((el) => {
    const sign = make("small", { class: "pb-solved" });
    el.querySelector("a").after(" ", sign);
    return { names: el.dataset.exercises.split(" "), sign };
  });
  const known = chapters.flatMap(({ names }) => names);
  const said = make("span", { role: "status" }),
    total = make("span", {}),
    input = make("input", { type: "file", accept: ".json,application/json", hidden: "" });
  const draw = () => {
    const solved = all();
    say(total, `${known.filter((name) => name in solved).length} of ${known.length} exercises solved in this browser.`);
    saves.hidden = !Object.keys(solved).length;
    count(chapters);
  };
  const take = async () => {
    const [file] = input.files;
    if (!file) return;
    try {
      const fresh = read(await file.text(), known);
      say(said, fresh ? `${fresh} more from ${file.name}.` : `Nothing new in ${file.name}.`);
    } catch (error) {
      say(said, error.message);
    }
    input.value = ""; // the same file may be read again
    draw();
  };
  input.addEventListener("change", take);
  const saves = button("Save to a file", save);
  const command = make("code", {}, `playbook exercises --progress ${FILE}`),
    both = make("small", {}, "The command ", command, " joins such a file with what notebooks have kept.");
  bar.append(
    total,
    saves,
    button("Read a file", () => input.click()),
    input,
    said,
    both,
  );
  bar.hidden = false;
  follow(draw);
}
