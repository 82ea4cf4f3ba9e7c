"""Formulas drawn while the book is built: KaTeX runs in Node here, and a page needs no script for them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

HERE = Path(__file__).parent
KATEX = HERE.parents[1] / "node_modules" / "katex" / "dist" / "katex.min.js"
NAME = "playbook_katex"

logger = logging.getLogger(__name__)


class KaTeX:
    """One Node process that renders formulas for as long as the build runs; each formula only once."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._known: dict[tuple[str, bool], dict[str, str]] = {}

    def render(self, tex: str, *, display: bool) -> dict[str, str]:
        """``{"html": …}``, or ``{"error": …}`` when KaTeX cannot read ``tex``."""
        key = (tex, display)
        if key not in self._known:
            self._known[key] = self._ask({"tex": tex, "display": display})
        return self._known[key]

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _ask(self, question: dict[str, Any]) -> dict[str, str]:
        process = self._process = self._process or _start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise ExtensionError(
                f"KaTeX stopped with status {process.wait()} at the formula {question['tex']!r}"
            )
        return json.loads(answer)


def _start() -> subprocess.Popen[str]:
    node = shutil.which("node")
    if node is None or not KATEX.exists():
        raise ExtensionError("formulas need Node and the packages of widgets/package.json: run `make setup`")
    return subprocess.Popen(
        [node, str(HERE / "katex_lines.cjs"), str(KATEX)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


_katex = KaTeX()


def _html(node: nodes.Node, tex: str, *, display: bool) -> str:
    reply = _katex.render(tex, display=display)
    if "error" in reply:
        logger.warning("%s", reply["error"], location=node, type="playbook", subtype="math")
    return reply.get("html", "")


def visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(self.starttag(node, "span", "", CLASS="math notranslate nohighlight"))
    self.body.append(_html(node, node.astext(), display=False) + "</span>")
    raise nodes.SkipNode


def visit_block(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", "", CLASS="math notranslate nohighlight"))
    if node["number"]:
        number = get_node_equation_number(self, node)
        self.body.append(f'<span class="eqno">({number})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    tex = node.astext()
    if r"\\" in tex and r"\begin" not in tex:
        tex = r"\begin{aligned}" + tex + r"\end{aligned}"
    self.body.append(_html(node, tex, display=True) + "</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer(NAME, (visit_inline, None), (visit_block, None))
    app.add_css_file("../vendor/katex/katex.min.css", priority=300)
    app.connect("build-finished", lambda app, error: _katex.close())
