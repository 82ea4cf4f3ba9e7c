"""The few icons that the theme draws, cut out of the icon font that it ships: 8 kB for 260."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from fontTools import subset
from fontTools.ttLib import TTFont

THEMES = ("pydata_sphinx_theme", "sphinx_book_theme")


def cut(target: Path) -> None:
    """Write ``icons.css`` and ``icons.woff`` with the icons that the themes' pages and style sheets name."""
    folders = [_folder(name) for name in THEMES]
    shipped = next(folders[0].glob("theme/**/fontawesome/*/css/all.min.css"))
    rules = re.findall(r"([^{}]+)\{([^{}]*)\}", shipped.read_text(encoding="utf-8"))
    names = {
        name for files in ("*.html", "*.js", "*.py") for name in _matches(folders, files, r"\bfa-([a-z-]+)")
    }
    codes = _matches(folders, "*.css", r"\\(f[0-9a-f]{3})\b")
    codes |= {f"{ord(letter):x}" for letter in _matches(folders, "*.css", "[\ue000-\uf8ff]")}
    icons = {
        selector: content[0]
        for selector, body in rules
        if (content := re.findall(r'content:"\\?([^"]+)"', body))
        and any(f".fa-{name}:before" in selector.split(",") for name in names)
    }
    font = TTFont(shipped.parent.parent / "webfonts" / "fa-solid-900.ttf")
    _subset(font, {int(code, 16) for code in [*icons.values(), *codes]} & set(font.getBestCmap()))
    target.mkdir(parents=True)
    font.flavor = "woff"
    font.save(target / "icons.woff")
    (target / "icons.css").write_text(_css(icons), encoding="utf-8")


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _matches(folders: list[Path], files: str, pattern: str) -> set[str]:
    """What the pattern finds in the themes' own files, the icon font's aside."""
    paths = [path for folder in folders for path in folder.rglob(files) if "fontawesome" not in path.parts]
    return {found for path in paths for found in re.findall(pattern, path.read_text(encoding="utf-8"))}


def _subset(font: TTFont, codes: set[int]) -> None:
    cutter = subset.Subsetter(subset.Options(layout_features=[], notdef_outline=False, glyph_names=False))
    cutter.populate(unicodes=codes)
    cutter.subset(font)


def _css(icons: dict[str, str]) -> str:
    family = '"Font Awesome 6 Free"'
    return "\n".join(
        [
            "/* Icons of Font Awesome Free 6 (fontawesome.com), SIL OFL 1.1: those that the theme uses. */",
            f"@font-face {{ font-family: {family}; font-weight: 900; font-display: block; "
            'src: url(icons.woff) format("woff"); }',
            f":root {{ --fa-font-solid: normal 900 1em/1 {family}; --fa-font-regular: normal 900 1em/1 {family}; }}",
            f".fa-solid, .fas {{ font: 900 1em/1 {family}; display: inline-block; text-rendering: auto; "
            "-webkit-font-smoothing: antialiased; }",
            ".fa-lg { font-size: 1.25em; line-height: .05em; vertical-align: -.075em; }",
            *(f'{selector} {{ content: "\\{code}"; }}' for selector, code in sorted(icons.items())),
            "",
        ]
    )
