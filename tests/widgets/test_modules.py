"""A module with its imports as one text behaves as the files do; what the bundle cannot do it refuses, with the place."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import playbook_widgets
import pytest
from playbook_widgets import WIDGETS, Widget
from playbook_widgets.base import STATIC
from playbook_widgets.modules import bundle

EVALUATE = """async (text) => {
  const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
  return (await import(url)).default;
}"""

FORMS = {
    "entry.mjs": """
import { one, two as second, default as given } from "./part.mjs";
import {
  Counter,
  later as eventually,
} from "./part/counter.mjs";
export { renamed };
const renamed = "kept", import_ = 1; // export of nothing
export default [one, second(), given, new Counter().next(), eventually(), renamed, import_];
""",
    "part.mjs": """// import comes here as a word
export const one = 1;
export function two() { return inner; }
const inner = "two", whole = { default: 3 };
export default whole;
""",
    "part/counter.mjs": """
export class Counter { next() { return after() + 1; } }
function after() { return base; }
export { after as later };
import { base } from "../base.mjs";
""",
    "base.mjs": "export const base = 41;\nexport async function unused() {}\nexport function* none() {}\n",
}


@pytest.fixture
def files(tmp_path: Path) -> Callable[[dict[str, str]], Path]:
    """Writes modules beside the page's own, and gives the path of the first."""

    def write(texts: dict[str, str]) -> Path:
        folder = tmp_path / "pb"
        for name, text in texts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        return folder / next(iter(texts))

    return write


def both(page, entry: Path) -> list:
    """The default export of the files, as a browser loads them, and of the text."""
    native = page.evaluate(f"async () => (await import('./pb/{entry.name}')).default")
    return [native, page.evaluate(EVALUATE, bundle(entry))]


@pytest.mark.browser
def test_every_form_means_what_it_means_to_a_browser(open_page, files):
    wanted = [1, "two", {"default": 3}, 42, 41, "kept", 1]
    page = open_page("")
    assert both(page, files(FORMS)) == [wanted, wanted]


@pytest.mark.browser
def test_two_importers_share_one_module(open_page, files):
    texts = {
        "entry.mjs": 'import { a } from "./a.mjs";\nimport { b } from "./sub/b.mjs";\nexport default [a(), b(), a()];',
        "a.mjs": 'import { next } from "./state.mjs";\nexport const a = () => next();',
        "sub/b.mjs": 'import { next as a } from "../state.mjs";\nexport const b = () => a();',
        "state.mjs": "let count = 0;\nexport const next = () => ++count;",
    }
    page = open_page("")
    assert both(page, files(texts)) == [[1, 2, 3], [1, 2, 3]]
    assert bundle(files(texts)).count("let count") == 1


@pytest.mark.browser
def test_modules_of_any_shape_give_what_the_browser_gives(open_page, files):
    """Random acyclic imports, where every module uses the same names inside, and exports some of them renamed."""
    page = open_page("")
    for seed in range(12):
        rng, texts = random.Random(seed), {}
        count = rng.randrange(2, 8)
        for i in range(count):
            parts = rng.sample(range(i + 1, count), rng.randrange(0, count - i))
            up = "../" if i % 2 else "./"
            imports = [
                f'import {{ all as all{k}, value as value{k} }} from "{up}{path(seed, k)}";' for k in parts
            ]
            names = "".join(f", value{k}, all{k}" for k in parts)
            own = [
                f"const value = {i}, seen = [value{names}];",
                "export { seen as all, value };",
                "export default seen;",
            ]
            texts[path(seed, i)] = "\n".join([*imports, *own])
        native, bundled = both(page, files(texts))
        assert bundled == native
        assert native[0] == 0


def path(seed: int, i: int) -> str:
    return f"sub/m{seed}_{i}.mjs" if i % 2 else f"m{seed}_{i}.mjs"


REFUSED = {
    'import part from "./part.mjs";': "entry.mjs:2: a form that the bundle does not know: import part from",
    'import * as part from "./part.mjs";': "entry.mjs:2: a form",
    'import "./part.mjs";': "entry.mjs:2: a form",
    'import { one } from "elsewhere";': "entry.mjs:2: a form",
    '  import { one } from "./part.mjs";': "entry.mjs:2: a form",
    'import { one } from "./part.mjs"; // why': "entry.mjs:2: a form",
    'const part = await import("./part.mjs");': "entry.mjs:2: a form",
    "const here = import.meta.url;": "entry.mjs:2: a form",
    "export let one = 1;": "entry.mjs:2: a form",
    "export const { one } = {};": "entry.mjs:2: a form",
    'export { one } from "./part.mjs";': "entry.mjs:2: a form",
    'export * from "./part.mjs";': "entry.mjs:2: a form",
    "export default function one() {}": "entry.mjs:2: a form",
    'import { one } from "./missing.mjs";': r"entry.mjs:2: there is no ./missing.mjs",
    'import { one } from "../outside.mjs";': r"entry.mjs:2: there is no ../outside.mjs",
    'import { one, three, four } from "./part.mjs";': "entry.mjs:2: ./part.mjs does not export three, four",
    'import { one } from "./entry.mjs";': "entry.mjs:2: ./entry.mjs imports this file, in a cycle",
    'import { one } from "./sub/round.mjs";': "sub/round.mjs:1: ../entry.mjs imports this file, in a cycle",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_the_bundle_cannot_do_is_refused_with_its_place(files, tmp_path, line):
    (tmp_path / "outside.mjs").write_text("export const one = 1;", encoding="utf-8")
    texts = {
        "part.mjs": "export const one = 1, three = 3;",
        "sub/round.mjs": 'import { a } from "../entry.mjs";',
    }
    entry = files({"entry.mjs": f"\n{line}\nexport default one;\n", **texts})
    with pytest.raises(ValueError, match="^" + REFUSED[line].replace("(", r"\(")):
        bundle(entry)


def test_every_module_of_the_widgets_is_one_that_a_widget_uses():
    """Else nothing would try it out over a kernel."""
    scripts = [getattr(playbook_widgets, name).script for name in WIDGETS]
    used = "".join(bundle(STATIC / script) for script in scripts)
    for file in STATIC.glob("*/*.mjs"):
        assert f"// {file.relative_to(STATIC).as_posix()}\n" in used


@pytest.mark.browser
def test_the_text_of_every_widget_is_a_module_that_draws(open_page):
    page = open_page("")
    for name in WIDGETS:
        widget: type[Widget] = getattr(playbook_widgets, name)
        drawing = page.evaluate(f"async (text) => typeof (await ({EVALUATE})(text)).render", widget._esm)
        assert drawing == "function", name
