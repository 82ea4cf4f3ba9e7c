"""``playbook calibrate``: fits recover what was planted, and a short run of real ranks writes a file that reads back."""

from __future__ import annotations

import itertools
import json
import random
import tomllib
from typing import Any

import pytest
import torch

from playbook.bench import calibrate_fits, calibrate_ranks
from playbook.bench.calibrate import effort, to_toml
from playbook.bench.calibrate_fits import Rate, Timing, between, fit_rate, nonnegative
from playbook.cli import main
from playbook.collectives.links import AlphaBeta, ring
from playbook.errors import ConfigError

PLANTED = Rate(3e-6, 90e9, {"m": 5.0, "n": 0.0, "k": 20.0})
GRID = list(itertools.product((16, 128, 1024), repeat=3))


def timings(rate: Rate, noise: float = 0.0) -> list[Timing]:
    chance = random.Random(0)
    found = []
    for m, n, k in GRID:
        sizes = {"m": m, "n": n, "k": k}
        factor = 1 + noise * chance.uniform(-1, 1)
        found.append(Timing(2.0 * m * n * k, rate.seconds(2.0 * m * n * k, **sizes) * factor, sizes))
    return found


def test_a_planted_rate_is_recovered():
    found = fit_rate(timings(PLANTED))
    assert found.overhead_s == pytest.approx(3e-6)
    assert found.per_s == pytest.approx(90e9)
    assert found.halves == pytest.approx(PLANTED.halves, abs=1e-6)
    assert found.worst_error < 1e-9
    assert found.seconds(2.0 * 64**3, m=64, n=64, k=64) == pytest.approx(
        3e-6 + 2 * 64**3 / 90e9 * (1 + 5 / 64 + 20 / 64)
    )


def test_a_noisy_one_nearly_and_its_errors_are_those_of_the_noise():
    found = fit_rate(timings(PLANTED, 0.1))
    assert found.per_s == pytest.approx(90e9, rel=0.1)
    assert found.overhead_s == pytest.approx(3e-6, rel=0.2)
    assert 0.01 < found.median_error < found.worst_error < 0.25
    assert len(found.errors) == len(GRID)


def test_at_its_half_size_half_the_rate_is_reached():
    rate = Rate(0.0, 1e9, {"k": 32.0})
    assert rate.seconds(1e6, k=32) == 2 * rate.seconds(1e6, k=float("inf"))


def test_no_coefficient_is_negative():
    # The best line through these has an overhead below zero.
    found = nonnegative([[1, 1.0], [1, 2.0], [1, 4.0]], [0.5, 1.5, 4.0])
    assert found == [0.0, pytest.approx(39 / 61)]  # Σ x/t over Σ (x/t)²


def test_a_fit_needs_as_many_timings_as_numbers():
    with pytest.raises(ConfigError, match="needs as many timings, got 2"):
        fit_rate([Timing(1.0, 1.0, {"m": 1.0})] * 2)


def test_what_training_adds_to_its_operations_is_recovered():
    rows = [{"layers": n, "experts": e} for n, e in ((2, 0), (4, 0), (6, 0), (2, 0), (2, 4), (4, 8))]
    alone = [0.010, 0.040, 0.002, 0.100, 0.020, 0.003]
    for row, t in zip(rows, alone, strict=True):
        row["seconds"] = 1.2 * t + row["layers"] * (5e-4 + (3e-4 if row["experts"] else 0))
    found = between(rows, alone)
    wanted = {"slower": 1.2, "between_s": 5e-4, "experts_s": 3e-4}
    assert {name: found[name] for name in wanted} == pytest.approx(wanted)
    assert found["worst_error"] < 1e-9


def test_rows_of_planted_devices_give_their_numbers_back():
    rows: list[dict[str, Any]] = [
        {"dtype": "fp32", "m": m, "n": n, "k": k, "seconds": t.seconds, "backward_s": 3 * t.seconds}
        for (m, n, k), t in zip(GRID, timings(PLANTED), strict=True)
    ]
    assert calibrate_fits.product_rates(rows)["fp32"].per_s == pytest.approx(90e9)
    assert calibrate_fits.best_flops(rows)["fp32"] == pytest.approx(2 * 1024**3 / rows[-1]["seconds"])
    assert calibrate_fits.backward_ratio(rows) == pytest.approx(1.5)

    core = Rate(1e-5, 50e9, {"seq": 100.0, "head": 8.0})
    rows = []
    for s, d in itertools.product((64, 256, 1024), (16, 64)):
        seconds = [core.seconds(f * 2 * 4 * s * s * d, seq=s, head=d) for f in (4.0, 8.0)]
        row = {"batch": 2, "heads": 4, "seq": s, "head": d, "forward_s": seconds[0], "backward_s": seconds[1]}
        rows.append(row)
    for rate in calibrate_fits.attention_rates(rows).values():
        assert (rate.overhead_s, rate.per_s) == (pytest.approx(1e-5), pytest.approx(50e9))
        assert rate.halves == pytest.approx({"seq": 100.0, "head": 8.0})

    steps = [
        {"tensors": t, "parameters": t * each, "seconds": 1e-5 + 2e-5 * t + t * each / 5e8}
        for t, each in ((1, 100), (16, 100), (4, 10**6), (16, 10**5))
    ]
    found = calibrate_fits.optimizer_numbers(steps)
    wanted = {"overhead_s": 1e-5, "per_tensor_s": 2e-5, "parameters_per_s": 5e8, "bytes_per_s": 1.4e10}
    assert found == pytest.approx(wanted)


def test_links_of_planted_rings_are_recovered():
    link, rows = AlphaBeta(2e-4, 1e-9), []
    for collective, (n, group) in itertools.product(calibrate_ranks.COLLECTIVES, ((2, 2), (4, 2), (4, 4))):
        messages, volume = ring(collective, group)
        for size in (1024, 65536, 1 << 22):
            seconds = link.time(volume * size, messages)
            row = {"collective": collective, "ranks": n, "group": group, "bytes": size, "seconds": seconds}
            rows.append(row)
    found = calibrate_ranks.links(rows)
    assert [(row["collective"], (row["ranks"], row["group"])) for row in found] == list(
        itertools.product(calibrate_ranks.COLLECTIVES, ((2, 2), (4, 2), (4, 4)))
    )
    for row in found:
        assert (row["alpha_s"], row["beta_s_per_byte"]) == (pytest.approx(2e-4), pytest.approx(1e-9))
    by_name = {
        (row["collective"], row["ranks"], row["group"]): (row["messages"], row["volume"]) for row in found
    }
    assert (by_name["all_reduce", 4, 4], by_name["all_reduce", 4, 2]) == ((6, 1.5), (2, 1.0))
    for name in ("all_gather", "reduce_scatter", "all_to_all"):
        assert by_name[name, 4, 4] == (3, 0.75)
    assert by_name["send", 4, 4] == (1, 1.0)


@pytest.mark.parametrize(("ranks", "groups"), [(2, [2]), (3, [3]), (4, [2, 4]), (6, [2, 6]), (8, [2, 4, 8])])
def test_ranks_are_cut_into_groups_of_one_size(ranks, groups):
    assert calibrate_ranks.group_sizes(ranks) == groups


def test_a_call_adds_what_its_slowest_rank_waits_and_a_message_goes_one_way():
    def rank(*turns: tuple[float, float, float]) -> list[dict]:
        names = ("all_reduce", "send")
        return [{"collective": name, "group": 2, "bytes": 4, "seconds": list(turns)} for name in names]

    # In turns of (call alone, work, both) the slower of two ranks; then the median turn.
    one = rank((1.0, 5.0, 9.0), (1.0, 5.0, 8.0), (1.0, 6.0, 8.0))
    other = rank((2.0, 4.0, 9.0), (0.5, 5.0, 6.0), (1.0, 5.0, 8.5))
    rows = calibrate_ranks.collective_rows(2, [one, other])
    assert [(row["collective"], row["seconds"]) for row in rows] == [("all_reduce", 3.5), ("send", 1.75)]
    assert [row["alone_s"] for row in rows] == [1.0, 0.5]
    hidden = rank((2.0, 5.0, 5.5))  # never less than calls one after another
    assert calibrate_ranks.collective_rows(2, [hidden, hidden])[0]["seconds"] == 2.0


def test_a_probe_is_as_slow_as_its_slowest_rank():
    probe = calibrate_ranks.Probe(2, 64, 1, 16)
    ranks = [[{"probe": probe, "seconds": list(seconds)}] for seconds in ((1.0, 2.0, 9.0), (4.0, 2.0, 1.0))]
    (row,) = calibrate_ranks.probe_rows(2, ranks)
    assert row == {"layers": 2, "hidden": 64, "batch": 1, "seq": 16, "experts": 0, "ranks": 2, "seconds": 4.0}


def test_toml_reads_back():
    tables = {
        "a": {"text": 'a "quoted" ü\\', "whole": 3, "yes": True, "none": None, "list": [1.0, 2.5e-9]},
        "b": {"c": {"one": 1e20, "two": 0.5}, "d": {"name": "x", "rows": [{"k": 1, "t": 2e-6}]}},
    }
    read = tomllib.loads("\n".join(to_toml(tables)))
    del tables["a"]["none"]
    assert read == tables
    assert isinstance(read["a"]["list"][0], float)


def test_a_short_run_writes_a_file_that_reads_back(tmp_path, capsys):
    path = tmp_path / "new" / "machine.toml"
    flags = ["--quick", "--device", "cpu", "--ranks", "2", "--out", str(path), "--json"]
    before = torch.get_num_threads()
    assert main(["calibrate", *flags]) == 0
    assert torch.get_num_threads() == before
    said, read = json.loads(capsys.readouterr().out), tomllib.loads(path.read_text(encoding="utf-8"))
    assert set(read) == {*said, "raw"} == {"provenance", "device", "network", "raw"}
    assert read["provenance"]["torch"] == torch.__version__
    assert read["provenance"]["threads"] == 1
    device, network, grid = read["device"], read["network"], effort("cpu", True)[0]
    assert device["kind"] == "cpu"
    assert set(device) == set(said["device"]) == FIELDS
    assert set(device["passes"]) >= {"gelu", "gelu_backward", "rms_norm_backward", "cross_entropy"}
    assert [row["ranks"] for row in device["blocks"]] == [1, 2]
    assert min(device["peak_flops"]["fp32"], device["memory_bandwidth"], device["blocks"][0]["slower"]) > 0
    assert network["backend"] == "gloo"
    assert [row["collective"] for row in network["collectives"]] == list(calibrate_ranks.COLLECTIVES)
    assert len(read["raw"]["products"]) == len(grid.tokens) * len(grid.widths) ** 2
    assert all(row["seconds"] > 0 for row in [*read["raw"]["products"], *read["raw"]["collectives"]])


FIELDS = {
    *(
        "name",
        "kind",
        "memory_bytes",
        "peak_flops",
        "gemm_overhead_s",
        "gemm_flops",
        "gemm_half",
        "gemm_error",
    ),
    *("gemm_backward_ratio", "memory_bandwidth", "cache_bandwidth", "op_overhead_s"),
    *("attention", "passes", "optimizer", "blocks"),
}


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--ranks two", "ranks must be numbers separated by commas, such as 2,4,8, got 'two'"),
        ("--ranks 1,2", "ranks must be at least 2, got 1: one alone is measured anyway"),
        ("--threads 0", "threads is 0, but must be at least 1"),
        ("--device tpu", "device is 'tpu', but must be cpu or cuda"),
        ("--out .", "out is '.', which is a folder: name a file, such as calibration.toml"),
    ],
)
def test_bad_input_is_answered_in_one_sentence(capsys, flags, sentence):
    assert main(["calibrate", *flags.split()]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"playbook calibrate: {sentence}\n")
