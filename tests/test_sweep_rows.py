"""Lists and grids of layouts, as ``playbook sweep`` is given them."""

from __future__ import annotations

import pytest

from playbook.commands.sweep_rows import grid, named, read_layouts
from playbook.errors import ConfigError, LayoutError


def test_a_grid_has_every_combination():
    assert grid(["dp=1,2", "zero=0,1"]) == ["dp=1,zero=0", "dp=1,zero=1", "dp=2,zero=0", "dp=2,zero=1"]
    assert grid(["sp=false,true", "tp=2"]) == ["sp=false,tp=2", "sp=true,tp=2"]


def test_of_so_many_gpus_others_are_left_out():
    assert grid(["dp=1,2", "tp=1,2", "pp=1,2"], [4]) == ["dp=1,tp=2,pp=2", "dp=2,tp=1,pp=2", "dp=2,tp=2,pp=1"]
    assert len(grid(["dp=1,2", "tp=1,2"], [1, 4])) == 2


def test_dp_is_filled_in():
    assert grid(["tp=1,2,3", "cp=1,2"], [4]) == [
        "dp=4,tp=1,cp=1",
        "dp=2,tp=1,cp=2",
        "dp=2,tp=2,cp=1",
        "dp=1,tp=2,cp=2",
    ]


@pytest.mark.parametrize(
    ("axes", "gpus", "sentence"),
    [
        (["dp"], [], "grid has 'dp', but must be fields with values, such as dp=1,2 tp=1,2"),
        (["dp=1,,2"], [], "grid has 'dp=1,,2', but must be fields with values"),
        (["dp=1", "dp=2"], [], "grid has dp twice: give all its values at once"),
        (["dp=2"], [3, 5], "grid has no layout of 3 or 5 GPUs: give other values"),
        (["tp=two"], [4], "tp must be an integer, got 'two'"),
    ],
)
def test_what_is_no_grid(axes, gpus, sentence):
    with pytest.raises(ConfigError) as caught:
        grid(axes, gpus)
    assert str(caught.value).startswith(sentence)


def test_a_field_that_no_layout_has():
    with pytest.raises(LayoutError, match="unknown layout field 'dq'; did you mean dp"):
        named("tp=2,dq=2")
    assert named("") == {}
    assert named("tp=2, sp, dp=nonsense") == {
        "tp": "2",
        "sp": "True",
        "dp": "nonsense",
    }  # values are its own affair


def test_layouts_of_a_file(tmp_path):
    path = tmp_path / "layouts.txt"
    path.write_text("# two of them\n\n  dp=2,tp=2 \nzero=1\n")
    assert read_layouts(path) == ["dp=2,tp=2", "zero=1"]
    path.write_text("# none\n")
    with pytest.raises(ConfigError, match="holds no layout: write one a line"):
        read_layouts(path)
    with pytest.raises(ConfigError, match="cannot be read: no such file"):
        read_layouts(tmp_path / "other.txt")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read: it is not utf-8 text"):
        read_layouts(path)
