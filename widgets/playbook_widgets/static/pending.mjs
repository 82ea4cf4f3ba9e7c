// A page whose cells have not run yet: says how far they are, and shows itself again once they have.
//
// Where no build is going on, progress.json is not there or no longer changes, and the page's own sentence stays.

const line = document.querySelector(".pb-pending");
const root = document.documentElement.dataset.content_root ?? "";

function words({ state, cell, cells, before, left }) {
  if (state === "runs") return `Its cells run now: ${cell} of ${cells}, ${left}.`;
  if (state !== "waits") return "Its cells have run; the page is drawn again.";
  const chapters = before === 1 ? "one chapter comes" : `${before} chapters come`;
  return before ? `Its cells have not run yet: ${chapters} first, ${left}.` : `Its cells run in a moment, ${left}.`;
}

async function look() {
  let pages;
  try {
    const answer = await fetch(`${root}progress.json`, { cache: "no-store" });
    pages = answer.ok ? await answer.json() : {};
  } catch {
    return; // nobody serves it any more
  }
  const mine = pages[line.dataset.page];
  if (mine?.state === "shown") {
    keepPlace();
    location.reload();
    return;
  }
  if (mine) line.textContent = words(mine);
  setTimeout(look, document.hidden ? 5000 : 1000);
}

// Outputs that appear above the reader push the text down: book.mjs puts the block at the top of the window there again.
function keepPlace() {
  const section = [...document.querySelectorAll("article section[id]")].findLast(
    (section) => section.getBoundingClientRect().top <= 80,
  );
  const block = [...(section?.children ?? [])].findIndex((block) => block.getBoundingClientRect().bottom > 80);
  if (block < 0) return;
  const top = section.children[block].getBoundingClientRect().top;
  sessionStorage.setItem("pb-place", JSON.stringify({ page: location.pathname, section: section.id, block, top }));
  history.scrollRestoration = "manual";
}

look();
