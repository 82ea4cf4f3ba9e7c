"""Code cells are coloured as what they are."""

from __future__ import annotations

import pytest
from playbook_widgets.site.code import BookLexer
from pygments.token import Keyword, Name, Text

CELL = "%%torchrun -n 3 --pass file\nimport torch\n\nwith torch.no_grad():\n    print(1)\n"


def kinds(text: str) -> dict[str, object]:
    return {value.strip(): kind for kind, value in BookLexer().get_tokens(text) if value.strip()}


def test_the_cell_of_a_torchrun_magic_is_python():
    found = kinds(CELL)
    assert found["torchrun"] is Keyword
    assert found["-n 3 --pass file"] is Text
    assert found["import"] is Keyword.Namespace
    assert found["with"] is Keyword
    assert found["print"] is Name.Builtin


@pytest.mark.parametrize("text", [CELL, "%load_ext playbook.launch\nx = 1\n", "def f():\n    return 1\n"])
def test_no_character_is_lost(text):
    assert "".join(value for _, value in BookLexer().get_tokens(text)) == text


def test_other_cells_are_as_ever():
    found = kinds("%load_ext playbook.launch\nimport os\n")
    assert found["load_ext"] is Keyword
    assert found["import"] is Keyword.Namespace


def test_a_magic_that_only_starts_alike_is_another_one():
    assert kinds("%%torchruns -n 3\nimport torch\n").get("import") is None
