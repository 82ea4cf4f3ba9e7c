"""The Sphinx extension: formulas, source pages, the map of the book, header boxes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from docutils import nodes
from playbook_widgets.site import folds, glossary, katex, pages, reference, runs, sources

from playbook.figures import style
from playbook.layout import Layout

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def renderer() -> Iterator[katex.KaTeX]:
    renderer = katex.KaTeX()
    yield renderer
    renderer.close()


def test_formulas_are_drawn_and_carry_mathml(renderer: katex.KaTeX) -> None:
    answer = renderer.render(r"N = h\cdot v + L\,(12h^2 + 13h)", display=True)
    assert 'class="katex-display"' in answer["html"]
    assert "<math" in answer["html"]


@pytest.mark.parametrize("tex", [r"\frac{a", r"\nosuchmacro", "a_b_c"])
def test_a_formula_that_cannot_be_read_is_an_error(renderer: katex.KaTeX, tex: str) -> None:
    assert set(renderer.render(tex, display=False)) == {"error"}


def test_an_error_does_not_end_the_renderer(renderer: katex.KaTeX) -> None:
    renderer.render(r"\frac{b", display=False)
    assert "html" in renderer.render(r"\frac{b}{c} × 2", display=False)


def test_every_line_of_a_source_page_can_be_named() -> None:
    text = 'def f():\n    """Two\n\n    lines."""\n\n\nx = 1\n'
    lines = re.findall(r'<span class="pb-line" id="L(\d+)">', sources._lines(Path("a.py"), text))
    assert lines == [str(number) for number in range(1, text.count("\n") + 1)]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("``run``: a < b, and `Trace`.", "<code>run</code>: a &lt; b, and <code>Trace</code>."),
        ("The model's own", "The model's own"),
    ],
)
def test_the_summary_of_a_file_is_html(line: str, shown: str) -> None:
    assert sources._summary(Path("a.py"), f'"""{line}\n\nMore.\n"""\n') == shown


def test_fields_say_their_default_and_limits_and_bytes_that_they_are_bytes() -> None:
    said = "\n".join(reference.fields_of(Layout))
    assert "* ``context = 'ring'``: how attention reaches tokens of other cp ranks (one of ``ring``, " in said
    assert "* ``bucket = 26214400``: size of a gradient bucket (bytes; its flag says MiB)" in said


def test_every_name_of_the_reference_is_there_and_says_what_it_is() -> None:
    text = (ROOT / "book" / "reference.md").read_text(encoding="utf-8")
    names = re.findall(r"auto(?:class|function):: (\S+)\.(\w+)", text)
    assert len(names) > 40
    for module, name in names:
        obj = getattr(import_module(module), name)
        assert obj.__doc__, name
        link = reference.source_of("py", {"module": module, "fullname": name})
        assert (link or "").startswith(f"../source/src/{module.replace('.', '/')}"), link


def test_every_source_file_has_a_page(built_book: Path) -> None:
    files = sources.source_files(ROOT)
    assert Path("src/playbook/source.py") in files
    assert [file for file in files if not (built_book / f"{sources.page_name(file)}.html").is_file()] == []
    listed = (built_book / "source" / "index.html").read_text(encoding="utf-8")
    links = {file: sources.page_name(file).removeprefix("source/") for file in files}
    assert [file for file, link in links.items() if f"{link}.html" not in listed] == []
    assert listed.count("<h2>") == len({file.parent for file in files})


@pytest.mark.parametrize(
    ("source", "shown", "whole", "name"),
    [
        ("import torch\nfrom playbook import figures\n\nfigures.use()", "", False, "Imports"),
        ("%load_ext playbook\nimport torch\n", "", False, "Imports"),
        ("rows = []\ndisplay(fig)", '<figure class="pb-figure">', False, "Code of this figure"),
        ("table(rows)", "<div><table>", False, "Code of this table"),
        ("print(3)", "3", False, "Code of this output"),
        ("def f(): ...\ndef g(): ...\nsizes = 2", "", False, "Definitions of f, g"),
        ("class A: ...", "", True, "Definition of A"),
        ("sizes = 2", "", False, "Preparations"),
        ('answer = 2\ncheck("a.b", answer, record=False)', "✓ a.b", True, "Solution"),
    ],
)
def test_a_folded_cell_is_named_by_what_it_holds(source: str, shown: str, whole: bool, name: str) -> None:
    assert folds.name_of(source, shown, whole=whole) == name


def test_a_further_name_has_a_line_of_its_own_unless_its_entry_is_directly_above() -> None:
    def entry(*names: str) -> nodes.definition_list_item:
        terms = [nodes.term("", name, ids=[f"term-{name}"]) for name in names]
        return nodes.definition_list_item("", *terms, nodes.definition())

    arranged = glossary.with_further_names(
        [entry("AFAB", "GPipe", "AFAP"), entry("bubble"), entry("ring"), entry("β model", "α–β")]
    )
    lines = [[term.astext() for term in item.findall(nodes.term)] for item in arranged]
    assert lines == [["AFAB", "GPipe", "AFAP"], ["bubble"], ["GPipe"], ["ring"], ["α–β"], ["β model", "α–β"]]
    (link,) = arranged[2].findall(nodes.reference)
    assert link["refuri"] == "#term-AFAB"
    shown = [glossary.letter(name)[0] for name in ("1F1B", "AFAB", "ring", "élan", "β")]
    assert shown == ["0–9", "A", "R", "E", "α–ω"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "1 s"), (34.4, "34 s"), (60, "1 min 0 s"), (125, "2 min 5 s")]
)
def test_measured_times_read_well(seconds: float, text: str) -> None:
    assert runs.format_seconds(seconds) == text


def test_every_chapter_says_how_long_it_ran(built_book: Path) -> None:
    tools = built_book / "book" / "tools"
    for chapter in set((built_book / "book").glob("*/*.html")) - set(tools.glob("*.html")):
        box = re.search(r'<div class="pb-runs-on.*?</div>', chapter.read_text(encoding="utf-8"), re.S)
        assert box, f"{chapter.name} has no header box"
        assert re.search(r"<strong>Measured</strong> \d+ (s|min)", box[0]), chapter.name


def test_the_map_links_what_exists_and_names_the_rest(built_book: Path) -> None:
    parts = yaml.safe_load((ROOT / "book" / "map.yml").read_text(encoding="utf-8"))
    index = (built_book / "book" / "index.html").read_text(encoding="utf-8")
    for part in parts:
        for chapter in part["chapters"]:
            exists = (ROOT / "book" / part["folder"] / f"{chapter['file']}.ipynb").is_file()
            link = f'<a href="{part["folder"]}/{chapter["file"]}.html">{chapter["title"]}</a>'
            assert (link in index) == exists, chapter["title"]
            assert (f"{chapter['title']} <em>to come</em>" in index) != exists, chapter["title"]


def test_the_map_calls_chapters_what_they_call_themselves() -> None:
    """The side bar takes a chapter's first heading: one name for it on both."""
    for part in yaml.safe_load((ROOT / "book" / "map.yml").read_text(encoding="utf-8")):
        for chapter in part["chapters"]:
            notebook = ROOT / "book" / part["folder"] / f"{chapter['file']}.ipynb"
            if notebook.is_file():
                heading = json.loads(notebook.read_text(encoding="utf-8"))["cells"][0]["source"][0]
                assert heading.strip() == f"# {chapter['title']}", notebook.name


def test_pages_say_to_others_what_they_are_about(built_book: Path) -> None:
    for page in ("index", "one-gpu/memory", "errata", "tools/memory-calculator"):
        text = (built_book / f"book/{page}.html").read_text(encoding="utf-8")
        (told,) = re.findall(r'<meta name="description" content="([^"]+)"/>', text)
        assert 60 < len(told) <= 202, page
        assert f'<meta property="og:description" content="{told}"/>' in text
        assert "To cite it: The playbook authors" in text
        head = text[: text.index("</head>")]
        assert not re.sub(
            r"<(script|style|title)\b.*?</\1>|<!--.*?-->|<[^>]+>", "", head, flags=re.DOTALL
        ).strip(), page


def test_terms_say_what_they_mean(built_book: Path) -> None:
    text = (built_book / "book/one-gpu/memory.html").read_text(encoding="utf-8")
    links = re.findall(r'<a class="[^"]*pb-term[^"]*"[^>]*>', text)
    assert len(links) > 5
    titles = [found for link in links for found in re.findall(r'title="([^"]+)"', link)]
    assert len(titles) == len(links)
    assert all(len(title) > 30 and title.endswith(".") and " See " not in title for title in titles)


def test_the_site_has_the_palette(built_book: Path) -> None:
    assert (built_book / "_static" / "pb" / "palette.css").read_text(
        encoding="utf-8"
    ) == style.css_variables()


def test_no_page_carries_what_only_a_server_could_use(built_book: Path) -> None:
    traces = re.compile(r'THEBE_JS_URL|type="application/vnd\.jupyter\.widget-state\+json"')
    found = [page.name for page in built_book.rglob("*.html") if traces.search(page.read_text("utf-8"))]
    assert found == []


def test_thinned_code_loses_no_letter() -> None:
    code = '<span class="k">def</span><span class="w"> </span><span class="nf">f</span><span class="p">(</span>&lt;'
    assert pages.PLAIN.sub(r"\1", code) == '<span class="k">def</span> <span class="nf">f</span>(&lt;'


def test_the_widget_runtime_loads_only_where_a_widget_is(built_book: Path) -> None:
    for page in (built_book / "book").rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert (pages.WIDGET in text) == ("pb/host.mjs" in text), page.name
