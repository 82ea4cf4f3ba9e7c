// What tools/paper.py runs in a page of the site: draws its widgets, then gives its article as well-formed XHTML with
// addresses that hold inside one book.

const CODE = "details.hide"; // a folded cell
const SOLUTION = "details.sd-dropdown";
const DROPPED =
  "script, style, .copybtn, .headerlink, .pb-lead, .pb-starts, .pb-pause, .pb-time, .pb-elsewhere, .pb-filter, .pb-letters, [hidden], #a-map-of-the-book";
const SHORT = 14; // rows of a table that is not torn apart
const MANY = 6; // columns, for which an e-reader is narrow
const aside = document.implementation.createHTMLDocument(); // where nothing is loaded
const REFERS = ["for", "aria-labelledby", "aria-describedby", "aria-controls", "aria-activedescendant"];

/** Have every widget drawn, as for print: in light colours, and those out of view, too. */
async function draw() {
  dispatchEvent(new Event("beforeprint"));
  const widgets = [...document.querySelectorAll(".pb-widget")];
  while (widgets.some(({ dataset: { state } }) => !state || state === "starting"))
    await new Promise((go) => setTimeout(go, 20));
  for (const status of document.querySelectorAll('.pb-widget [class$="-status"]')) status.remove(); // Python never starts
  const images = [...document.images].map((image) => image.decode().catch(() => {}));
  await Promise.all([document.fonts.ready, ...images]);
  await new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)));
  return widgets.filter(({ dataset }) => dataset.state === "failed").map(({ dataset }) => dataset.widget);
}

/** The page's article as XHTML, with what a contents list says of it.

    `pages` are the book's pages by their path in the site; `form` is "pdf", one document in which ids begin with the
    page's name, or "epub", a file for each page; `pictures` stand there for the page's widgets, in their order. `title`
    is another title than the page's. */
function article({ path, pages, form, title = "", pictures = [] }) {
  const site = new URL(document.documentElement.dataset.content_root, location.href);
  const canonical = document.querySelector("link[rel=canonical]")?.href.replace(path, "");
  const real = document.querySelector("article.bd-article");
  keepState(real);
  const copy = aside.importNode(real, true);
  const lead = copy.querySelector(".pb-lead")?.textContent.trim() ?? "";
  if (title) copy.querySelector("h1").textContent = title;
  copy.querySelectorAll(".pb-widget").forEach((widget, i) => replaceWidget(widget, form, pictures[i]));
  for (const gone of copy.querySelectorAll(DROPPED)) gone.remove();
  const comments = aside.createNodeIterator(copy, NodeFilter.SHOW_COMMENT);
  for (let node = comments.nextNode(); node; node = comments.nextNode()) node.remove();
  const folds = [...copy.querySelectorAll(`${CODE}, ${SOLUTION}`)];
  if (form === "epub") for (const fold of folds) nameFold(fold);
  else if (folds.length) putAtTheEnd(folds, copy.querySelector("section"));
  for (const table of copy.querySelectorAll("table")) {
    table.classList.toggle("pb-short", table.rows.length <= SHORT);
    table.classList.toggle("pb-many", (table.rows[0]?.cells.length ?? 0) >= MANY);
  }
  for (const formula of copy.querySelectorAll(".katex")) spell(formula, form);
  const place = (url) => placeIn(url, { site, pages, form, canonical });
  for (const link of copy.querySelectorAll("a[href]")) {
    const to = place(new URL(link.getAttribute("href"), location.href));
    to ? link.setAttribute("href", to) : link.replaceWith(...link.childNodes);
  }
  if (form === "pdf") {
    nameAfter(copy, pages[path]);
    for (const code of copy.querySelectorAll("pre")) code.replaceChildren(code.textContent); // in one colour on paper
  }
  if (form === "epub") plain(copy);
  return {
    title: copy.querySelector("h1").textContent.trim(),
    lead,
    sections: [...copy.querySelectorAll("h2")].map((h) => [
      h.id || (h.closest("section[id]")?.id ?? ""),
      h.textContent.trim(),
    ]),
    styles: [...document.querySelectorAll("link[rel=stylesheet]")].map(({ href }) => href.split("?")[0]),
    html: [...copy.children].map((child) => new XMLSerializer().serializeToString(child)).join("\n"),
  };
}

/** What the reader sees and markup does not say: the values of fields, and what is painted on a canvas. */
function keepState(root) {
  for (const field of root.querySelectorAll("input")) {
    field.setAttribute("value", field.value);
    field.toggleAttribute("checked", field.checked);
  }
  for (const option of root.querySelectorAll("option")) option.toggleAttribute("selected", option.selected);
  for (const canvas of root.querySelectorAll("canvas")) {
    const image = document.createElement("img");
    image.alt = canvas.getAttribute("aria-label") ?? "";
    image.style.width = `${canvas.getBoundingClientRect().width}px`;
    if (canvas.width && canvas.height) image.src = canvas.toDataURL();
    canvas.after(image);
    canvas.remove();
  }
}

/** A widget on paper is as it was drawn; in an e-reader it is a picture. An answer's box is of use in neither. */
function replaceWidget(widget, form, picture) {
  if (widget.dataset.widget === "exercise.mjs") return widget.remove();
  if (form === "pdf") return;
  if (!picture) return widget.remove();
  const image = element("img", { src: picture.src, alt: picture.alt });
  const caption = element("figcaption", {}, "Drawn with the settings of the page, where a reader can change them.");
  widget.replaceWith(element("figure", { class: "pb-figure", ...(widget.id && { id: widget.id }) }, image, caption));
}

/** What a fold holds, in a word. */
function nameFold(fold) {
  const summary = fold.querySelector(":scope > summary");
  const name = (summary.querySelector(".collapsed") ?? summary).textContent.trim(); // a cell has one open and one closed
  summary.replaceChildren(name);
  return name;
}

/** Paper has nothing to unfold: solutions and the code of figures go to the end of the chapter, and say so where they were. */
function putAtTheEnd(folds, chapter) {
  const end = element(
    "section",
    { class: "pb-at-the-end", id: "at-the-end" },
    element("h2", {}, "Folded code and solutions"),
  );
  folds.forEach((fold, i) => {
    const name = `${nameFold(fold)} [${i + 1}]`;
    fold.querySelector(":scope > summary").remove();
    const back = element("a", { href: `#fold-${i + 1}` }, name);
    end.append(
      element("div", { class: "pb-unfolded", id: `unfolded-${i + 1}` }, element("h3", {}, back), ...fold.childNodes),
    );
    const link = element("a", { href: `#unfolded-${i + 1}` }, name);
    fold.replaceWith(element("p", { class: "pb-fold", id: `fold-${i + 1}` }, link, ", at the end of the chapter"));
  });
  chapter.append(end);
}

function element(tag, attributes, ...children) {
  const made = aside.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Of a formula's two forms the one that is shown, with its TeX as its words. */
function spell(formula, form) {
  const math = formula.querySelector("math"),
    tex = formula.querySelector("annotation").textContent;
  if (form === "pdf") {
    formula.setAttribute("role", "img"); // with "math", each letter would be an element of the PDF's structure
    formula.setAttribute("aria-label", tex);
    formula.querySelector(".katex-mathml").remove();
    formula.querySelector(".katex-html").removeAttribute("aria-hidden");
    return;
  }
  math.setAttribute("alttext", tex);
  math.replaceChildren(...math.querySelector("semantics").childNodes);
  math.querySelector("annotation").remove();
  for (const mark of math.querySelectorAll(":is(msub, msup, msubsup, mfrac, mover, munder) > mo"))
    if (mark.textContent === "\u2061") mark.remove(); // "applied to" after \max, for which these have no place
  for (const token of math.querySelectorAll(":is(mo, mi, mn, mtext):has(> *)"))
    token.replaceChildren(token.textContent);
  (formula.closest(".katex-display") ?? formula).replaceWith(math);
}

/** Where a link leads inside the book; to the site, where its address is known; or nowhere. */
function placeIn(url, { site, pages, form, canonical }) {
  if (!url.href.startsWith(site.href))
    return url.protocol.startsWith("http") && url.host !== location.host ? url.href : "";
  const path = url.pathname.slice(site.pathname.length),
    id = decodeURIComponent(url.hash.slice(1)).split("?")[0]; // a widget's state follows its id
  const page = pages[path];
  if (!page) return canonical ? canonical + path + url.hash : "";
  if (form === "pdf") return `#${id ? `${page}--${id}` : page}`;
  return `${page}.xhtml${id ? `#${id}` : ""}`;
}

/** In one document with other pages, ids begin with the page's name. */
function nameAfter(root, page) {
  for (const element of root.querySelectorAll("*")) {
    if (element.id) element.id = `${page}--${element.id}`;
    for (const name of REFERS)
      if (element.hasAttribute(name))
        element.setAttribute(name, element.getAttribute(name).replace(/\S+/g, `${page}--$&`));
    if (!(element instanceof SVGElement)) continue;
    for (const { name, value } of [...element.attributes]) {
      if (/^(xlink:)?href$/.test(name) && value.startsWith("#"))
        element.setAttribute(name, `#${page}--${value.slice(1)}`);
      else if (value.includes("url(#")) element.setAttribute(name, value.replaceAll("url(#", `url(#${page}--`));
      else if (value.includes('url("#')) element.setAttribute(name, value.replaceAll('url("#', `url("#${page}--`));
    }
  }
}

/** E-readers know no variables of CSS. */
function plain(root) {
  for (const path of root.querySelectorAll("path:not([d])")) path.remove(); // grid lines out of view: SVG 1.1 wants a d
  const known = getComputedStyle(document.documentElement);
  const value = (_, name) => known.getPropertyValue(name).trim() || "currentColor";
  for (const element of root.querySelectorAll('[style*="var("]'))
    element.setAttribute("style", element.getAttribute("style").replace(/var\((--[\w-]+)[^)]*\)/g, value));
}

globalThis.paper = { draw, article };
