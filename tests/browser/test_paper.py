"""The book on paper and for e-readers, of a chapter with widgets and the page of references that it cites."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from xml.etree import ElementTree

import epub
import paper
import pdf
import pytest
from playwright.sync_api import Browser, BrowserContext

pytestmark = pytest.mark.browser

CHOSEN = [("I · One GPU", "book/one-gpu/memory"), ("Companion pages", "book/references")]
XHTML = "{http://www.w3.org/1999/xhtml}"
PACKAGE = "{http://www.idpf.org/2007/opf}"
#: What sticks out of the page to the right; formulas have ink outside their boxes, and drawings clip what is in them.
CUT_OFF = """() => {
  const right = document.documentElement.clientWidth + 1;
  const out = (e) => e.getBoundingClientRect().right > right && !e.closest(".katex, svg g");
  return [...document.querySelectorAll("article *")].filter(out).slice(0, 5).map((e) => e.outerHTML.slice(0, 160));
}"""


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = paper.context_of(browser)
    yield context
    context.close()


def test_the_pdf_has_numbered_contents_an_outline_and_links_that_lead_somewhere(
    context: BrowserContext, site: str
) -> None:
    book = paper.read(context, site, CHOSEN, "pdf")
    page = pdf.show(book, context, site)
    assert page.evaluate(CUT_OFF) == []
    assert page.locator(".pb-widget").count() == 1
    assert page.locator("summary:visible, input:visible, .copybtn").count() == 0
    data = pdf.print_with_numbers(page)
    numbers = dict(
        page.eval_on_selector_all("[data-of]", "(all) => all.map((e) => [e.dataset.of, +e.textContent])")
    )
    page.close()
    places, pages = pdf.places(data), pdf.sheets(data)
    assert len(pages) == len(set(pages)) == len(re.findall(rb"<</Type /Page\n", data)) > 10
    assert numbers == {name: places[name] for name in ("one-gpu-memory", "references")}
    assert 2 < numbers["one-gpu-memory"] < numbers["references"] <= len(pages)
    links = re.findall(rb"/Subtype /Link\n(?:(?!endobj).)*?/Dest /([^\s>]+)", data, re.DOTALL)
    assert len(links) > 30
    assert {pdf.name_of(link) for link in links} <= places.keys()
    assert any(
        name.startswith("references--") for name in places
    )  # a chapter's citation leads to another article
    outline = [title.decode() for title in re.findall(rb"/Title \(([^)]*)\)", data)]
    assert [title for title in outline if title in ("2. Memory", "References")] == ["2. Memory", "References"]
    assert "Bytes per parameter" in outline


def test_the_epub_lists_all_that_it_holds_and_its_links_lead_somewhere(
    context: BrowserContext, site: str
) -> None:
    data, said = epub.make(paper.read(context, site, CHOSEN, "epub"), context, site)
    assert said == "2 articles, 1 pictures"
    archive = zipfile.ZipFile(io.BytesIO(data))
    first = archive.infolist()[0]
    assert (first.filename, first.compress_type) == ("mimetype", zipfile.ZIP_STORED)
    files = {
        name.removeprefix("book/"): archive.read(name)
        for name in archive.namelist()
        if name.startswith("book/")
    }
    package = ElementTree.fromstring(files.pop("content.opf"))
    listed = {item.get("href"): item for item in package.iter(f"{PACKAGE}item")}
    assert set(listed) == set(files)
    read = [listed_id.get("idref") for listed_id in package.iter(f"{PACKAGE}itemref")]
    assert read == [listed[f"{name}.xhtml"].get("id") for name in ("one-gpu-memory", "references")]
    assert listed["one-gpu-memory.xhtml"].get("properties") == "mathml svg"
    trees = {name: ElementTree.fromstring(text) for name, text in files.items() if name.endswith(".xhtml")}
    ids = {
        name: [element.get("id") for element in tree.iter() if element.get("id")]
        for name, tree in trees.items()
    }
    assert all(len(found) == len(set(found)) for found in ids.values())
    links = 0
    for name, tree in trees.items():
        for link in tree.iter(f"{XHTML}a"):
            file, _, anchor = (link.get("href") or "").partition("#")
            if not re.match(r"[a-z]+:", file):
                assert not anchor or anchor in ids[file or name], link.get("href")
                assert not file or file in trees, link.get("href")
                links += 1
        for image in tree.iter(f"{XHTML}img"):
            assert files[image.get("src") or ""].startswith(b"\x89PNG")
            assert image.get("alt")
    assert links > 20
    chapter = files["one-gpu-memory.xhtml"].decode()
    assert chapter.count("<math") > 40
    assert not re.search(r'<script|<button|katex|style="[^"]*var\(', chapter)


def test_an_article_that_is_not_well_formed_is_refused() -> None:
    article = paper.Article("one", "", "One", [], "<section><p>One</section>")
    with pytest.raises(ElementTree.ParseError):
        epub.pack(paper.Book("Book", "", "", [article], [], {}), {})
