// A box whose content is wider or higher than itself can be scrolled by keyboard only if it can take the focus. The
// theme looks when the window changes, which can be before the page has its new form.
const BOXES = "pre, .katex-display, .pst-scrollable-table-container, .pb-figure, .pb-scroll, .cell_output > .output";

const HIGHER = "pre, .cell_output > .output"; // of formulas, ink alone sticks out

function update(boxes) {
  const scrolls = boxes.map(
    (box) => box.scrollWidth > box.clientWidth || (box.scrollHeight > box.clientHeight && box.matches(HIGHER)),
  );
  boxes.forEach((box, i) => (scrolls[i] ? (box.tabIndex = 0) : box.removeAttribute("tabindex")));
}

const boxes = [...document.querySelectorAll(BOXES)];
const watch = new ResizeObserver((seen) => update(seen.map(({ target }) => target)));
for (const box of boxes) watch.observe(box);
document.fonts?.addEventListener("loadingdone", () => update(boxes)); // letters of another width in the same box

// The theme names its search button "Search" while the button reads "Search Ctrl+K": let it say what it reads.
for (const button of document.querySelectorAll(".search-button-field")) button.removeAttribute("aria-label");

// Where the reader was when pending.mjs loaded the page again.
const place = JSON.parse(sessionStorage.getItem("pb-place") ?? "null");
sessionStorage.removeItem("pb-place");
if (place?.page === location.pathname) {
  const block = document.getElementById(place.section)?.children[place.block];
  if (block) scrollBy({ top: block.getBoundingClientRect().top - place.top, behavior: "instant" });
}
