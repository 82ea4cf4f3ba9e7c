"""The animator's function: its messages are the plan's, its states the replay's, its times the simulation's."""

import cProfile
import json
import pstats

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playbook_widgets.compute.animation import BYTES, DEFAULTS, NETWORKS, RANKS, compute, read, read_bytes

from playbook.errors import ConfigError
from playbook.planning.communication import bus_bandwidth
from playbook_book.collective_costs import seconds, simulate
from playbook_book.collectives.plans import ALGORITHMS, DEFAULT, plan
from playbook_book.replay import end, replay

ALL = [(collective, name) for collective, algorithms in ALGORITHMS.items() for name in algorithms]


@st.composite
def any_input(draw: st.DrawFn) -> dict:
    collective, algorithm = draw(st.sampled_from(ALL))
    ranks = draw(st.integers(*RANKS))
    return {
        "collective": collective,
        "algorithm": algorithm,
        "ranks": ranks,
        "bytes": draw(st.integers(*BYTES)),
        "cluster": draw(st.sampled_from(NETWORKS)),
        "ranks_per_node": draw(st.none() | st.integers(1, 8)),
        "root": draw(st.integers(0, ranks - 1)),
    }


def bits(held: list) -> list:
    return [[sum(1 << rank for rank in ranks) for ranks in chunks] for chunks in held]


def refusal(**inputs) -> tuple[str, str]:
    error = compute(inputs)["error"]
    return error["field"], error["message"]


@settings(max_examples=150, deadline=None)
@given(any_input())
def test_what_is_drawn_is_the_plan_replayed_and_timed(inputs):
    result = compute(inputs)
    if "error" in result:
        assert inputs["algorithm"] == "two_level"
        assert result["error"]["field"] == "ranks_per_node"
        return
    setting = read(inputs)
    whole, values = setting.plan(), result["values"]
    assert {key: values[key] for key in inputs if key not in ("root", "ranks_per_node")} == {
        key: inputs[key] for key in inputs if key not in ("root", "ranks_per_node")
    }
    drawn = [m for step in result["steps"] for m in step["messages"]]
    assert sorted((m["from"], m["to"], m["bytes"], m["adds"]) for m in drawn) == sorted(
        (m.source, m.target, m.bytes, m.reduce) for m in whole.messages
    )
    assert states(result) == [bits(held) for held in replay(whole)]
    assert result["wanted"] == bits(end(whole))
    check_steps(result, whole, simulate(whole, setting.network))
    check_totals(result, whole, simulate(whole, setting.network))
    json.dumps(result)


def states(result: dict) -> list:
    """What each rank holds before each step and at the end, as a page puts it together."""
    all_states = [result["start"]]
    for step in result["steps"]:
        after = [list(chunks) for chunks in all_states[-1]]
        for rank, chunk, ranks in step["changes"]:
            assert after[rank][chunk] != ranks
            after[rank][chunk] = ranks
        all_states.append(after)
    return all_states


def check_steps(result, whole, times):
    assert len(result["steps"]) == whole.steps
    for index, step in enumerate(result["steps"]):
        spans = [span for span in times.spans if span.message.step == index]
        assert [(m["start"], m["end"]) for m in step["messages"]] == [(s.start, s.end) for s in spans]
        assert step["start"] == min(span.start for span in spans)
        assert step["end"] == max(span.end for span in spans)
        busy = {rank for m in step["messages"] for rank in (m["from"], m["to"])}
        assert set(step["idle"]) == set(range(whole.ranks)) - busy
        for m, span in zip(step["messages"], spans, strict=True):
            check_chunks(m, span.message, whole)


def check_chunks(m, message, whole):
    """The chunks that a message takes, and where they land, are where the plan's elements are."""
    if whole.collective == "barrier":
        assert (m["first"], m["last"], m["into"]) == (0, 1, 0)
        return
    cuts = whole.cuts
    assert (cuts[m["first"]], cuts[m["last"]]) == (message.start, message.stop)
    assert m["into"] == (message.source if whole.collective == "all_to_all" else m["first"])


def check_totals(result, whole, times):
    ranks = range(whole.ranks)
    assert result["seconds"] == times.seconds
    assert result["sent"] == [whole.bytes_sent(rank) for rank in ranks]
    assert result["received"] == [whole.bytes_received(rank) for rank in ranks]
    assert result["busy"] == [times.busy(rank) for rank in ranks]
    assert {(a, b): size for a, b, size in result["links"]} == times.bytes_per_link
    assert [rank for node in result["nodes"] for rank in node] == list(ranks)
    if whole.collective != "barrier":
        assert result["algorithm_bandwidth"] == whole.elements / times.seconds
        wanted = bus_bandwidth(whole.collective, whole.ranks, whole.elements, times.seconds)
        assert result["bus_bandwidth"] == wanted


@pytest.mark.parametrize(("collective", "algorithm"), ALL, ids=".".join)
def test_formula_closed_form_and_rivals(collective, algorithm):
    for ranks in (2, 5, 8, 16):
        inputs = {"collective": collective, "algorithm": algorithm, "ranks": ranks, "bytes": 840_000}
        result, setting = compute(inputs), read(inputs)
        if result["formula"]:
            assert result["formula"]["bytes"] == pytest.approx(max(result["sent"]), abs=ranks)
        closed = seconds(collective, 840_000, ranks, setting.network, algorithm)
        if result["closed_form"]:
            assert result["seconds"] == pytest.approx(closed, rel=1e-4)
        assert [rival["algorithm"] for rival in result["algorithms"]] == list(ALGORITHMS[collective])
        assert result["algorithms"][0]["algorithm"] == "naive"
        for rival in result["algorithms"]:
            other = compute({**inputs, "algorithm": rival["algorithm"]})
            assert (rival["seconds"], rival["steps"], rival["sent"]) == (
                other["seconds"],
                len(other["steps"]),
                max(other["sent"]),
            )


def test_the_closed_form_in_symbols():
    assert compute({})["closed_form"] == "8·α + 8/5·K·β"
    across = compute({"algorithm": "two_level", "ranks": 8, "ranks_per_node": 4})
    assert across["closed_form"] == "6·α + 3/2·K·β + 2·α′ + 1/4·K·β′"
    assert compute({"collective": "broadcast", "ranks": 2})["closed_form"] == "α + K·β"
    assert compute({"collective": "broadcast", "ranks": 16, "root": 3})["closed_form"] is None


def test_the_code_makes_the_same_messages():
    for inputs in (
        {},
        {"collective": "broadcast", "root": 3},
        {"algorithm": "two_level", "ranks": 12, "ranks_per_node": 4},
    ):
        made = eval(compute(inputs)["code"], {"plan": plan})
        assert made == read(inputs).plan().messages


def test_defaults_are_the_libraries():
    values = compute({})["values"]
    assert {**values, "step": 0} == {**DEFAULTS, "algorithm": "ring", "ranks_per_node": 8}
    for collective, algorithm in DEFAULT.items():
        assert compute({"collective": collective})["values"]["algorithm"] == algorithm


REFUSED = [
    ({"ranks": 17}, "ranks", "ranks must be at most 16, got 17"),
    ({"ranks": "1"}, "ranks", "ranks must be at least 2, got 1"),
    ({"ranks": "many"}, "ranks", "ranks must be an integer, got 'many'"),
    ({"bytes": 999}, "bytes", "bytes must be at least 1000, got 999"),
    ({"bytes": "2 GB"}, "bytes", f"bytes must be at most {2**30}, got 2000000000"),
    ({"bytes": "much"}, "bytes", "bytes must be a size such as 64 MB or 1 KiB, got 'much'"),
    ({"bytes": True}, "bytes", "bytes must be a size such as 64 MB or 1 KiB, got True"),
    ({"collective": "all_reduces"}, "collective", "unknown collective 'all_reduces'; did you mean"),
    ({"algorithm": "rings"}, "algorithm", "unknown algorithm of all_reduce 'rings'; did you mean ring"),
    ({"cluster": "h100"}, "cluster", "unknown cluster 'h100'; did you mean h100-8"),
    ({"ranks_per_node": 9}, "ranks_per_node", "ranks_per_node must be at most 8 on h100-8, got 9"),
    ({"ranks_per_node": 0}, "ranks_per_node", "ranks_per_node must be at least 1, got 0"),
    ({"algorithm": "two_level", "ranks": 10, "ranks_per_node": 4}, "ranks_per_node", "ranks_per_node must divide the 10"),
    ({"collective": "reduce", "root": 5}, "root", "root must be one of the ranks, 0 to 4, got 5"),
    ({"rank": 5}, "rank", "rank is not a setting of the collectives animator"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("inputs", "field", "sentence"), REFUSED, ids=[sentence for _, _, sentence in REFUSED]
)
def test_a_refusal_is_one_sentence_that_names_its_control(inputs, field, sentence):
    named, message = refusal(**inputs)
    assert named == field
    assert message.startswith(sentence)


def test_a_root_matters_to_rooted_collectives_alone():
    assert compute({"root": 9})["values"]["root"] == 0
    assert compute({"collective": "gather", "root": 4})["wanted"][4] == [1, 2, 4, 8, 16]


def test_two_levels_that_do_not_fit_are_refused_among_the_rivals_only():
    rivals = {r["algorithm"]: r for r in compute({"ranks": 10, "ranks_per_node": 4})["algorithms"]}
    assert rivals["two_level"]["error"].startswith("ranks_per_node must divide the 10 ranks")
    assert rivals["naive"]["seconds"] > rivals["ring"]["seconds"] > 0


@pytest.mark.parametrize(
    ("text", "size"),
    [("64 MB", 64_000_000), ("1 KiB", 1024), ("1.5mib", 3 * 2**19), ("2e6", 2_000_000), (4096, 4096), ("1 GiB", 2**30),
     ("10kB", 10_000), ("5000 bytes", 5000)],
)  # fmt: skip
def test_sizes_as_people_write_them(text, size):
    assert read_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-5", "1 TB", "1e12", "1,000", "nan", None, [1]])
def test_what_is_no_size(text):
    with pytest.raises(ConfigError, match="bytes must be"):
        read_bytes(text)


def test_the_largest_answer_is_little_work():
    """A frame has 16 ms, in which Python makes some hundred thousand calls; time itself would be that of the machine."""
    profile = cProfile.Profile()
    profile.runcall(compute, {"ranks": 16, "bytes": 10**6})
    assert pstats.Stats(profile).total_calls < 100_000
