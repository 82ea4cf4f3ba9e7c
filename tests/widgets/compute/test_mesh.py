"""The mesh explorer's function: `rank_view` in the order in which a page draws it, and the command that says the same."""

import contextlib
import io
import json
import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playbook_widgets.compute.mesh import DEFAULTS, GROUPS, LAYOUT, LIMITS, MOST_RANKS, compute, read
from playbook_widgets.mesh_explorer import EXAMPLES

from playbook.cli import main
from playbook.errors import ConfigError
from playbook.figures.units import format_size
from playbook.layout import Layout
from playbook.planning.rank_view import rank_view
from playbook.shapes import PRESETS

SIZES = st.sampled_from([1, 2, 4])
MESHES = st.fixed_dictionaries(
    {"dp": SIZES, "tp": SIZES, "cp": SIZES, "pp": SIZES},
    optional={
        "sp": st.booleans(), "zero": st.integers(0, 3), "per_node": st.integers(1, 9), "seq": st.sampled_from([64, 100]),
        "micro_batch": st.integers(1, 3), "grad_acc": st.integers(1, 5), "model": st.sampled_from(["tiny", "llama3-8b"]),
    },
)  # fmt: skip


def run_command(line: str) -> dict:
    """The JSON that a ``playbook …`` line prints."""
    program, *arguments = shlex.split(line)
    assert program == "playbook"
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([*arguments, "--json"])
    assert status == 0, err.getvalue()
    return json.loads(out.getvalue())


@given(MESHES, st.integers(0, 255))
@settings(max_examples=30)
def test_it_is_the_librarys_view_and_that_of_the_command(inputs, rank):
    inputs["sp"] = inputs.get("sp", False) and inputs["tp"] > 1
    values = {**DEFAULTS, **inputs}
    layout = Layout(**{name: values[name] for name in LAYOUT})
    rank %= layout.world_size
    found = compute({**inputs, "rank": rank})
    view = rank_view(
        PRESETS[values["model"]], layout, values["seq"], rank=rank, ranks_per_node=values["per_node"]
    )
    assert {group["name"]: tuple(group["ranks"]) for group in found["groups"]} == view.groups
    for group in found["groups"]:
        assert group["ranks"][group["place"]] == rank
        assert group["nodes"] == len({r // values["per_node"] for r in group["ranks"]})
    assert found["sent"] == [
        {"axis": axis, "within": sent.within, "across": sent.across} for axis, sent in view.sent.items()
    ]
    assert found["nodes"] == -(-layout.world_size // values["per_node"])
    told = run_command(found["command"])
    assert told == json.loads(json.dumps(view.to_json()))
    assert json.loads(json.dumps(found)) == found


def test_what_a_rank_holds_in_words():
    experts = compute({"model": "mixtral-8x7b", "ep": 4, "rank": 7})
    assert experts["holds"][1] == "experts 6 to 7 of 8 in each block that has them"
    assert [group["name"] for group in experts["groups"]] == ["tp", "cp", "dp", "pp", "ep", "replicas"]
    found = compute({"rank": 0})
    assert found["holds"] == [
        "stage 0 of 2: blocks 0 to 15, the embedding",
        "2.01B of the model's 8.03B parameters",
        "optimizer states of 502M: the optimizer is sharded",
    ]
    assert compute({"rank": 15, "zero": 0})["holds"][0] == "stage 1 of 2: blocks 16 to 31, the head"
    assert compute({"rank": 15, "zero": 0})["holds"][-1].endswith("parameters")


def test_what_it_sends_in_a_sentence():
    found = compute({})
    sent = {one["axis"]: one["within"] + one["across"] for one in found["sent"] if one["axis"] != "world"}
    across = sum(one["across"] for one in found["sent"])
    assert found["answer"] == (
        f"In a step rank 5 sends {format_size(sum(sent.values()))}, of which {format_size(across)} leaves its node (pp). "
        f"The largest part is tp, {format_size(sent['tp'])}."
    )
    assert ", all in its node." in compute({"pp": 1})["answer"]
    alone = {"dp": 1, "tp": 1, "cp": 1, "pp": 1, "rank": 0}
    assert compute(alone)["answer"] == "There is one rank: it sends nothing."


def test_a_rank_that_is_pointed_at_is_looked_at_and_not_chosen():
    found = compute({"rank": 3, "point": 12})
    assert (found["rank"], found["values"]["rank"]) == (12, 3)
    assert found["groups"] == compute({"rank": 12})["groups"]
    assert "point" not in found["values"]


@pytest.mark.parametrize(("name", "inputs", "note"), EXAMPLES, ids=[name for name, *_ in EXAMPLES])
def test_examples_are_as_large_as_their_names_say(name, inputs, note):
    setting = read(inputs)
    ranks = {"16 ranks": 16, "16,384": 16384, "CP 16": 16384, "2,048": 2048}
    assert setting.layout.world_size == next(size for words, size in ranks.items() if words in name)
    assert note
    if "CP 16" in name:
        assert (setting.layout.cp, setting.seq) == (16, 131072)
    if setting.shape.name == "llama3.1-405b":  # 16M tokens a step, table 4 of the paper
        assert setting.layout.global_batch * setting.seq == 2**24


REFUSED = [
    ({"dp": 0}, "dp", "dp must be at least 1, got 0"),
    ({"tp": 3}, "tp", "tp must divide heads = 32"),
    ({"pp": 64}, "pp", "pp * vpp must be at most layers = 32"),
    ({"dp": 4096}, "dp", f"dp * cp * tp * pp must be at most {MOST_RANKS} ranks here, got 32768"),
    ({"rank": 16}, "rank", "rank must be below the layout's 16 ranks, got 16"),
    ({"ep": 2}, "ep", "ep must be 1 for a model without experts"),
    ({"model": "llama9"}, "model", "unknown model 'llama9'"),
    ({"sp": "yes"}, "sp", "sp must be true or false"),
    ({"zero": 4}, "zero", "zero must be at most 3"),
    ({"per_node": "many"}, "per_node", "per_node must be an integer"),
    ({"nonsense": 1}, "nonsense", "is not a setting"),
    ({"point": 99}, "rank", "rank must be below"),
]


@pytest.mark.parametrize(("inputs", "field", "words"), REFUSED, ids=str)
def test_refusals_name_their_control(inputs, field, words):
    error = compute(inputs)["error"]
    assert error["field"] == field
    assert words in error["message"]


def test_read_refuses_in_python_too():
    with pytest.raises(ConfigError, match="zero must be at most 3"):
        read({"zero": 7})


def test_every_default_is_within_its_limits_and_every_group_has_a_letter_of_its_own():
    for name, (least, most) in LIMITS.items():
        assert least <= DEFAULTS[name] <= most
    assert len({letter for letter, *_ in GROUPS.values()}) == len(GROUPS)
