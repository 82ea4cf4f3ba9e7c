"""A matplotlib figure as one inline SVG that follows the page: its theme, its font, its width."""

from __future__ import annotations

import hashlib
import html
import io
import re
from typing import TYPE_CHECKING, Any

from playbook.figures.style import INK, PAPER

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

PX_PER_PT = 96 / 72

# The page behind the figure: the site's theme, JupyterLab's, or whatever the browser paints.
BACKGROUND = "var(--pst-color-background, var(--jp-layout-color0, Canvas))"


class Figure:
    """What `display` returns: a figure that has been drawn, with the words that stand in for it."""

    def __init__(self, svg: str, alt: str, caption: str | None):
        self.svg, self.alt, self.caption = svg, alt, caption

    def _repr_html_(self) -> str:
        caption = f"<figcaption>{html.escape(self.caption)}</figcaption>" if self.caption else ""
        return f'<figure class="pb-figure">{self.svg}{caption}</figure>'

    def __repr__(self) -> str:
        return f"Figure: {self.alt}"


def display(figure: MatplotlibFigure, *, alt: str, caption: str | None = None) -> Figure:
    """Draw ``figure`` for the page and close it. The same figure gives the same bytes every time.

    ``alt`` says in words what the figure shows, for readers who cannot see it; it is required, and
    ``ValueError`` is raised when it is empty. ``TypeError`` when ``figure`` is not a matplotlib figure.
    """
    import matplotlib.pyplot as plt
    from matplotlib.figure import Figure as MatplotlibFigure

    if not isinstance(figure, MatplotlibFigure):
        raise TypeError(f"display() draws a matplotlib figure, got {type(figure).__name__}")
    if not isinstance(alt, str) or not alt.strip():
        raise ValueError("display() needs alt: a sentence that says what the figure shows")
    raw = _savefig(figure)
    plt.close(figure)
    alt = " ".join(alt.split())
    return Figure(_page_svg(raw, alt), alt, caption)


def _savefig(figure: MatplotlibFigure) -> str:
    """The figure as matplotlib writes it: text as text, no date, ids that depend on the content alone."""
    import matplotlib

    settings: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "playbook"}
    with matplotlib.rc_context(settings):
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return buffer.getvalue()


def _page_svg(raw: str, alt: str) -> str:
    """Matplotlib's file turned into an element of the page."""
    opening = re.search(r"<svg[^>]*>", raw)
    assert opening, "matplotlib wrote no <svg>"
    box = re.search(r'viewBox="([^"]+)"', opening.group())
    assert box, "matplotlib wrote no viewBox"
    body = raw[opening.end() : raw.rindex("</svg>")]
    body = _slim(_follow_page(_without_preamble(body)))
    body = _group_words(_own_ids(body, prefix="pb" + hashlib.sha256((body + alt).encode()).hexdigest()[:8]))
    width = float(box.group(1).split()[2]) * PX_PER_PT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{box.group(1)}" width="{width:.0f}" role="img" aria-label="{html.escape(alt)}" '
        f'style="--width:{width:.0f}px;max-width:100%;height:auto;fill:currentColor;stroke-linejoin:round;stroke-linecap:butt;'
        f'font-family:inherit">{body}</svg>'
    )


def _without_preamble(body: str) -> str:
    """Without metadata and comments (versions nobody sees), and without matplotlib's ``*`` rule for line
    joins, which inside a page would reach every element of it: the root element carries it instead."""
    for junk in (r"<metadata>.*?</metadata>", r"<!--.*?-->", r"<defs>\s*<style[^>]*>.*?</style>\s*</defs>"):
        body = re.sub(junk, "", body, flags=re.S)
    return body


def _follow_page(body: str) -> str:
    """Ink (and plain black) becomes the page's text colour, paper its background, fonts its font.

    Only plain text follows the page's font: mathematics (``<tspan>``) is laid out glyph by glyph with the
    font's own metrics and keeps it.
    """
    body = re.sub(rf"(?:{INK}|#000000)\b", "currentColor", body)
    body = re.sub(rf"{PAPER}\b", BACKGROUND, body)
    body = re.sub(r"(<text style=\"[^\"]*?)font-family: [^;\"]*; ?", r"\1", body)
    return re.sub(r"(<text style=\")font: ([^;\"]*?)([\d.]+px) [^;\"]*", _font, body)


def _font(match: re.Match[str]) -> str:
    """Older matplotlib writes one ``font`` shorthand, which cannot do without a family."""
    start, style, size = match.groups()
    weight = next((f"; font-weight: {word}" for word in style.split() if word in ("bold", "700")), "")
    return f"{start}font-size: {size}{weight}"


#: A box of a path as matplotlib writes it, corner by corner.
_RECTANGLE = re.compile(r"M (\S+) (\S+)\nL (\S+) \2\nL \3 (\S+)\nL \1 \4\n(?:L \1 \2\n)?z")


def _slim(body: str) -> str:
    """Paths to a hundredth of a point, boxes in short, no blank lines: a third of the bytes, the same picture."""

    def rounded(match: re.Match[str]) -> str:
        return re.sub(
            r"-?\d+\.\d{3,}", lambda n: f"{float(n.group()):.2f}".rstrip("0").rstrip("."), match.group()
        )

    body = re.sub(r' transform="rotate\(-?0 [^"]*\)"', "", body)
    body = re.sub(r'\s(?:d|x|y|transform|points)="[^"]*"', rounded, body)
    return _RECTANGLE.sub(r"M\1 \2H\3V\4H\1z", re.sub(r"\s*\n\s*", "\n", body).strip())


_WORD = re.compile(r'<g>\n<text style="([^"]*)" (x="[^"]*" y="[^"]*")>([^<]*)</text>\n</g>\n?')


def _group_words(body: str) -> str:
    """Many words side by side, such as those in the boxes of a schedule, share their look: it is written once.

    Words of a run do not lie over one another, so that their order is free."""

    def grouped(run: re.Match[str]) -> str:
        looks: dict[str, list[str]] = {}
        for look, place, word in _WORD.findall(run.group()):
            looks.setdefault(look, []).append(f"<text {place}>{word}</text>")
        return "".join(f'<g style="{look}">{"".join(words)}</g>\n' for look, words in looks.items())

    return re.sub(rf"(?:{_WORD.pattern}){{3,}}", grouped, body)


def _own_ids(body: str, prefix: str) -> str:
    """Keep the ids that something refers to, and make them unlike those of any other figure of the page."""
    referred = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', body))
    names = {first or second for first, second in referred}

    def rename(match: re.Match[str]) -> str:
        return f' id="{prefix}-{match.group(1)}"' if match.group(1) in names else ""

    body = re.sub(r'\sid="([^"]+)"', rename, body)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}-", body)
