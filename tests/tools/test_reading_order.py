"""The order in which the core is read: what the check finds, and that it finds nothing in ARCHITECTURE.md."""

from __future__ import annotations

from pathlib import Path

import pytest
import reading_order
from closure import ROOT, Modules

FILES = {
    "__init__.py": "",
    "errors.py": "class E(Exception): ...\n",
    "layout/__init__.py": "from playbook.layout.layout import Layout\n",
    "layout/layout.py": "from playbook.errors import E\nclass Layout: ...\n",
    "layout/tokens.py": "from playbook.layout import Layout\ndef later():\n    from playbook.errors import E\n",
    "schedules/solver/__init__.py": "",
    "figures.py": "import playbook.layout.tokens\n",
}


@pytest.fixture
def modules(tmp_path: Path) -> Modules:
    for name, text in FILES.items():
        file = tmp_path / "playbook" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return Modules([tmp_path])


@pytest.mark.parametrize(
    ("order", "wrong"),
    [
        ("errors layout/layout layout/tokens", []),
        ("errors layout/layout", ["layout/tokens.py is not in the list"]),
        (
            "layout/tokens errors layout/layout",
            [
                "layout/tokens.py:1 uses Layout of layout/layout.py, which comes later",
                "layout/tokens.py:3 uses E of errors.py, which comes later",
            ],
        ),
        ("errors errors layout/layout layout/tokens", ["errors.py is listed twice"]),
        ("errors layout/layout layout/tokens figures", ["figures.py is listed, but is no file of the core"]),
        ("errors layout/layout layout/tokens gone", ["gone.py is listed, but is no file of the core"]),
    ],
)
def test_what_is_wrong_with_an_order(modules: Modules, order: str, wrong: list[str]) -> None:
    text = "# Words\n\n" + "".join(f"- `{name}.py` — what it is\n" for name in order.split())
    assert list(reading_order.complaints(reading_order.listed(text), modules)) == wrong


def test_architecture_lists_the_core_so_that_nothing_is_used_before_it_is_read() -> None:
    order = reading_order.listed((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    assert not list(reading_order.complaints(order, Modules()))
