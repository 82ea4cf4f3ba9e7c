// A button that hides the code of every page, and shows it again. What was chosen is kept on this machine; the script in
// the head of a page (pb-color-scheme.html) sees to it before the page is drawn.

import { make } from "./shared/dom.mjs";

const root = document.documentElement;
const button = make(
  "button",
  { type: "button", class: "btn btn-sm pb-code-button", "aria-label": "Hide code", title: "Hide code" },
  "</>",
);

function show(hidden) {
  hidden ? root.setAttribute("data-code", "hidden") : root.removeAttribute("data-code");
  button.setAttribute("aria-pressed", String(hidden));
}

/** What the reader has before his eyes stays there, though the page above it gets shorter. */
function keepingPlace(change) {
  const blocks = [...document.querySelectorAll("article section > *")].filter(
    (block) => !block.matches("section, .cell"),
  );
  const seen = blocks.find((block) => block.getBoundingClientRect().top >= 0);
  const before = seen?.getBoundingClientRect().top ?? 0;
  root.style.overflowAnchor = "none"; // browsers that do this themselves would do it as well
  change();
  requestAnimationFrame(() => requestAnimationFrame(() => root.style.removeProperty("overflow-anchor")));
  if (scrollY) scrollBy({ top: (seen?.getBoundingClientRect().top ?? 0) - before, behavior: "instant" });
}

button.addEventListener("click", () => {
  const hidden = root.dataset.code !== "hidden";
  keepingPlace(() => show(hidden));
  try {
    hidden ? localStorage.setItem("playbook:code", "hidden") : localStorage.removeItem("playbook:code");
  } catch {} // a browser may keep nothing
});

show(root.dataset.code === "hidden");
document.querySelector(".article-header-buttons")?.prepend(button);
