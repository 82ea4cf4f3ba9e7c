"""Copy what pages load from the npm packages, and the theme's icons, into site_assets/vendor/.

The site serves that folder as it is.

Usage: python tools/vendor.py          (after `npm ci` in widgets/; `make setup` and `make book` do both)
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import icons

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ROOT / "widgets" / "node_modules"
VENDOR = ROOT / "site_assets" / "vendor"

# Alphabets of the book: the browser loads a file only for a page that has a letter of it.
SUBSETS = ("latin", "latin-ext", "greek")
FONTS = {"source-sans-3": ("wght", "wght-italic"), "source-code-pro": ("wght",)}


def vendor_katex() -> None:
    """KaTeX's style sheet with its woff2 fonts only; every browser that runs the widgets reads woff2."""
    source, target = PACKAGES / "katex" / "dist", VENDOR / "katex"
    css = (source / "katex.min.css").read_text(encoding="utf-8")
    css = re.sub(r",url\([^)]*\.(?:woff|ttf)\) format\([^)]*\)", "", css)
    (target / "fonts").mkdir(parents=True)
    (target / "katex.min.css").write_text(css, encoding="utf-8")
    for font in (source / "fonts").glob("*.woff2"):
        shutil.copy2(font, target / "fonts")
    shutil.copy2(source.parent / "LICENSE", target)


def vendor_fonts() -> None:
    """The text and code fonts, one style sheet for all of them."""
    target = VENDOR / "fonts"
    target.mkdir(parents=True)
    rules = [rule for name, styles in FONTS.items() for style in styles for rule in _font_rules(name, style)]
    for file in re.findall(r"url\(([^)]+)\)", "".join(rules)):
        name = next(name for name in FONTS if file.startswith(name))
        shutil.copy2(PACKAGES / "@fontsource-variable" / name / "files" / file, target)
    (target / "fonts.css").write_text("\n".join(rules), encoding="utf-8")
    for name in FONTS:
        shutil.copy2(PACKAGES / "@fontsource-variable" / name / "LICENSE", target / f"LICENSE-{name}")


def _font_rules(name: str, style: str) -> list[str]:
    """The ``@font-face`` rules of the subsets that the book uses."""
    css = (PACKAGES / "@fontsource-variable" / name / f"{style}.css").read_text(encoding="utf-8")
    wanted = re.compile(rf"/files/{re.escape(name)}-({'|'.join(SUBSETS)})-wght-")
    rules = [rule for rule in re.findall(r"@font-face \{.*?\}", css, re.S) if wanted.search(rule)]
    if len(rules) < 2:
        raise SystemExit(f"{name}: expected @font-face rules for {SUBSETS}, found {len(rules)}")
    return [rule.replace("./files/", "") for rule in rules]


def vendor_pyodide() -> None:
    """Python for the browser; the widgets' own modules and their snapshot are made by the Sphinx extension."""
    target = VENDOR / "pyodide"
    target.mkdir(parents=True)
    for file in (
        "pyodide.mjs",
        "pyodide.asm.mjs",
        "pyodide.asm.wasm",
        "python_stdlib.zip",
        "pyodide-lock.json",
    ):
        shutil.copy2(PACKAGES / "pyodide" / file, target)


def vendor_minisearch() -> None:
    """What ranks the sections of the book."""
    source, target = PACKAGES / "minisearch", VENDOR / "minisearch"
    target.mkdir(parents=True)
    shutil.copy2(source / "dist" / "es" / "index.js", target / "minisearch.mjs")
    shutil.copy2(source / "LICENSE.txt", target)


def vendor_all() -> None:
    """Empty site_assets/vendor/ and fill it again."""
    if not PACKAGES.is_dir():
        raise SystemExit("widgets/node_modules is missing: run `make setup`")
    shutil.rmtree(VENDOR, ignore_errors=True)
    vendor_katex()
    vendor_fonts()
    vendor_minisearch()
    vendor_pyodide()
    icons.cut(VENDOR / "icons")


if __name__ == "__main__":
    vendor_all()
    size = sum(file.stat().st_size for file in VENDOR.rglob("*") if file.is_file())
    print(f"vendored {size / 1e6:.1f} MB into {VENDOR}")
