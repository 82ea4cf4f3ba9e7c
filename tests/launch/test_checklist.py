"""The list for a cluster on four ranks of which some are amiss, and what is said of measurements."""

from __future__ import annotations

import json
import os
import random
import re
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from playbook import launch
from playbook.cli import main
from playbook.launch import checklist
from playbook.launch.checklist import examine_cluster, rounds
from playbook.launch.verdicts import judge, links, odd, report, slow

TOPOLOGY = """\
\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tNV18\tPIX\t0-31\t0\tN/A
GPU1\tNV18\t X \tSYS\tNODE\t0-31\t0\tN/A
GPU2\tNV18\tSYS\t X \tSYS\t0-31\t0\tN/A
NIC0\tPIX\tNODE\tSYS\t X

Legend:

  X    = Self
"""


def by_name(found: dict) -> dict[str, dict]:
    return {check["name"]: check for check in found["checks"]}


def amiss(folder: str) -> dict:
    """Rank 1 does ten times the work, rank 2 has a clock of its own, rank 3 is in another folder."""

    def work(world):
        n = sum(i * i for i in range(200_000 if world.rank == 1 else 20_000))
        assert n

    if os.environ["RANK"] == "3":
        os.chdir(Path(folder, "other"))
        checklist.time = Clock(lambda: 20 * time.monotonic())  # it looks for five seconds
    return examine_cluster(".", 100.0, work, lambda world: time.time() + 5 * (world.rank == 2), mib=1)


def test_what_is_amiss_is_named_with_its_rank(ranks, tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    found = ranks(amiss, str(tmp_path), ranks=4).values
    assert all(other == found[0] for other in found)
    checks = by_name(found[0])
    assert not found[0]["ok"]
    assert checks["speed"]["text"].startswith("rank 1 takes ")
    assert found[0]["seconds"][1] > 3 * statistics.median(found[0]["seconds"])
    assert re.match(r"the clock of rank 2 is (4\.9|5\.)\d+ s ahead of", checks["clocks"]["text"])
    assert checks["clocks"]["text"].count("rank") == 2
    assert checks["shared folder"] == {
        "name": "shared folder",
        "ok": False,
        "text": "rank 3 cannot see what rank 0 writes",
    }
    assert checks["versions"]["ok"]
    assert found[0]["nodes"] == [[0, 1, 2, 3]]
    assert {tuple(pair["pair"]) for pair in found[0]["pairs"]} == {(a, b) for b in range(4) for a in range(b)}
    assert found[0]["all_reduce"] > 0
    assert all(pair["bytes_per_s"] > 0 for pair in found[0]["pairs"])
    assert not list(tmp_path.glob(".playbook-doctor-*"))
    assert report(found[0]).count("\n") == len(checks) - 1


def hangs(part: str, waits: list[int]) -> None:
    """Rank 2 never does its own of a part of the list, and time is up once all but those who ``waits`` have."""
    up = Path("time-is-up")

    def hang(world, mine: str) -> float:
        if world.rank == 2 and mine == part:
            keys = [f"checklist/{part}/{r}/{'begun' if r in waits else 'done'}" for r in range(world.size)]
            while not dist.distributed_c10d._get_default_store().check(keys):
                time.sleep(0.01)
            up.touch()
            time.sleep(1000)
        return time.time()

    checklist.time = Clock(lambda: time.monotonic() + 3600 * up.exists())
    now = partial(hang, mine="the clock of rank 2")
    examine_cluster(".", 1800.0, lambda world: hang(world, "computing") and None, now, mib=1)


class Clock:
    """Another clock in the place of ``time``."""

    def __init__(self, monotonic: Callable[[], float]):
        self.monotonic = monotonic

    def __getattr__(self, name: str):
        return getattr(time, name)


@pytest.mark.parametrize(
    ("part", "waits", "said_so"),
    [
        ("computing", [2], "rank 2 has not done with 'computing'"),
        ("the clock of rank 2", [0, 2], "ranks 0 and 2 have not done with 'the clock of rank 2'"),
    ],
)
def test_a_rank_that_keeps_others_waiting_is_named(ranks, part, waits, said_so, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(launch.RankError) as failure:
        ranks(hangs, part, waits, ranks=4, timeout=200)
    assert f"{said_so} after 1800 s" in failure.value.ranks[0].output


def test_the_list_for_a_cluster_on_two_nodes(ranks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def work() -> int:
        os.environ["GROUP_RANK"] = os.environ["RANK"]
        return main(["doctor", "--cluster", "--json"])

    first, second = ranks(work, ranks=2)
    found = json.loads(first.output)
    assert (found["nodes"], [pair["pair"] for pair in found["pairs"]]) == ([[0], [1]], [[0, 1]])
    assert {name for name, check in by_name(found).items() if check["ok"]} >= {"shared folder", "clocks"}
    assert (first.value, second.value, second.output) == (int(not found["ok"]), first.value, "")


def test_alone_it_says_what_one_process_can_say(capsys, tmp_path):
    assert main(["doctor", "--cluster", "--json", "--folder", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["ranks"], found["pairs"]) == (True, 1, [])
    assert main(["doctor", "--cluster", "--folder", str(tmp_path / "none")]) == 1
    assert "none cannot be written (No such file or directory)" in capsys.readouterr().out
    assert main(["doctor", "--cluster", "--timeout", "0"]) == 2
    assert "timeout must be" in capsys.readouterr().err


def measured(ranks: int = 4, backend: str = "nccl") -> dict:
    facts = {
        "host": "a",
        "node": "0",
        "versions": {"torch": "2.13.0", "NCCL": "2.27", "backend": backend},
        "free_bytes": {"memory": 2**36, "GPU memory": 2**36},
        "topology": None,
    }
    return {
        "facts": [json.loads(json.dumps(facts)) for _ in range(ranks)],
        "shared": [True] * ranks,
        "clocks": [None, *[(0.001, 0.0001)] * (ranks - 1)],
        "seconds": [1.0, 1.01, 1.0, 0.99][:ranks],
        "all_reduce": 1e11,
        "pairs": {(a, b): 1e11 for b in range(ranks) for a in range(b)},
    }


NODES = [[0, 1], [2, 3]]
ALONE = [[0], [1], [2], [3]]


def test_nothing_is_said_of_a_cluster_that_is_well():
    found = judge(measured(), NODES, ALONE)
    assert found["ok"]
    assert [check["ok"] for check in found["checks"]] == [
        True,
        True,
        None,
        True,
        True,
        True,
        True,
        None,
        True,
    ]


def test_who_differs_is_named():
    given = measured()
    given["facts"][3]["versions"]["NCCL"] = "2.26"
    given["facts"][1]["free_bytes"]["GPU memory"] = 2**34
    given["facts"][2]["topology"], given["facts"][0]["topology"] = TOPOLOGY, TOPOLOGY.replace("SYS", "NV18")
    given["clocks"][2] = (-0.5, 0.001)
    given["seconds"][1] = 1.3
    given["pairs"][0, 2] = 3e10
    checks = by_name(judge(given, NODES, ALONE))
    assert {name for name, check in checks.items() if check["ok"] is False} == {
        "versions", "memory", "links of GPUs", "clocks", "speed", "pairs of ranks",
    }  # fmt: skip
    assert checks["versions"]["text"] == "NCCL is 2.27, but 2.26 on rank 3"
    assert checks["memory"]["text"] == "rank 1 has 16.0 GiB of GPU memory free, the median rank 64.0"
    assert "NV18 (3) between two GPUs; but ranks 2 to 3: NV18 (2), SYS (1)" in checks["links of GPUs"]["text"]
    assert checks["clocks"]["text"] == "the clock of rank 2 is 0.500 s behind that of rank 0"
    assert checks["speed"]["text"] == "rank 1 takes 1.3 times the median"
    assert checks["pairs of ranks"]["text"] == "rank 0 with rank 2: 30.00 GB/s, the median is 100.00"
    uneven = judge(measured(), [[0, 1, 2], [3]], [[0, 1, 2], [3]])
    assert by_name(uneven)["nodes"]["text"].startswith(
        "nodes have different numbers of ranks: a (ranks 0 to 2)"
    )


def test_clocks_that_cannot_be_told_apart_are_not_wrong():
    given = measured()
    given["clocks"][1] = (0.4, 0.35)
    assert by_name(judge(given, NODES, ALONE))["clocks"]["ok"]


@given(st.integers(4, 64), st.integers(0, 63), st.floats(1.6, 50), st.integers(0, 10**6))
def test_one_slow_rank_is_found_in_any_scatter_of_the_others(ranks, which, times, seed):
    chance = random.Random(seed)
    seconds = [1 + 0.02 * chance.random() for _ in range(ranks)]
    assert slow(seconds, 1.15) == {}
    seconds[which % ranks] *= times
    assert list(slow(seconds, 1.15)) == [which % ranks]


@given(st.integers(1, 33))
def test_in_a_tournament_every_two_meet_once(teams):
    found = rounds(teams)
    met = [pair for pairs in found for pair in pairs]
    assert sorted(met) == [(a, b) for a in range(teams) for b in range(a + 1, teams)]
    for pairs in found:
        players = [player for pair in pairs for player in pair]
        assert len(players) == len(set(players))


def test_links_and_odd_ones():
    assert links(TOPOLOGY) == "NV18 (2), SYS (1)"
    assert links(None) is None
    assert links("\tGPU0\nGPU0\t X \n") == "none"
    assert odd(["a", "b", "a"]) == ("a", {"b": [1]})
