"""Lists and grids of layouts, and the specification of a sweep's folder."""

from __future__ import annotations

import dataclasses

import pytest

from playbook.errors import ConfigError, LayoutError
from playbook.launch.sweep.layouts import Spec, check_names, grid, read_layouts

SPEC = Spec({"name": "tiny", "layers": 2}, seq=64, global_batch=4, steps=6, warmup=2, repeat=1)


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
        check_names(["tp=2", "dq=2"])
    check_names(["", "tp=2, sp", "dp=nonsense"])  # the value is the layout's own affair


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


def test_a_key_is_that_of_a_layout_in_a_sweep():
    assert SPEC.key("dp=2") == dataclasses.replace(SPEC).key("dp=2") != SPEC.key("dp=4")
    assert SPEC.key("dp=2") != dataclasses.replace(SPEC, seq=32).key("dp=2")


def test_a_folder_holds_one_sweep(tmp_path):
    SPEC.settle(tmp_path)
    SPEC.settle(tmp_path)
    for change, sentence in (
        ({"seq": 32}, "seq is 32, but .* holds a sweep with 64"),
        ({"model": {"name": "other"}}, "model is 'other', but .* holds a sweep with 'tiny'"),
        ({"train": ("--dtype", "bfloat16")}, "train is --dtype bfloat16, but .* holds a sweep with none"),
        ({"data": "/a.txt"}, "data is '/a.txt', but .* holds a sweep with None"),
    ):
        with pytest.raises(ConfigError, match=f"{sentence}: name another folder"):
            dataclasses.replace(SPEC, **change).settle(tmp_path)
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(ConfigError, match="is not valid JSON"):
        SPEC.settle(tmp_path)
