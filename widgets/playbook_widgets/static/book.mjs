// A box whose content is wider than itself can be scrolled by keyboard only if it can take the focus.
const BOXES = ".katex-display, .pst-scrollable-table-container, .pb-figure, .pb-scroll, .cell_output > .output";

function update() {
  for (const box of document.querySelectorAll(BOXES)) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}

update();
addEventListener("resize", update);
document.fonts?.ready.then(update);

// The theme names its search button "Search" while the button reads "Search Ctrl+K": let it say what it reads.
for (const button of document.querySelectorAll(".search-button-field")) button.removeAttribute("aria-label");

// Where the reader was when pending.mjs loaded the page again.
const place = JSON.parse(sessionStorage.getItem("pb-place") ?? "null");
sessionStorage.removeItem("pb-place");
if (place?.page === location.pathname) {
  const block = document.getElementById(place.section)?.children[place.block];
  if (block) scrollBy({ top: block.getBoundingClientRect().top - place.top, behavior: "instant" });
}
