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
from playbook.bench.calibrate_fits import Rate, Timing, cores, fit_rate, nonnegative
from playbook.cli import main
from playbook.errors import ConfigError
from playbook.planning.links import AlphaBeta

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


def test_cores_are_those_whose_work_is_done_at_once():
    assert cores({1: 1.0, 2: 1.0, 4: 2.0, 8: 4.0}) == 2
    assert cores({1: 1.0, 2: 1.25, 4: 2.5}) == 1.6


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
    for collective, n in itertools.product(calibrate_ranks.COLLECTIVES, (2, 4)):
        cost = calibrate_ranks.ring(collective, n)
        for size in (1024, 65536, 1 << 22):
            seconds = link.time(float(cost.volume) * size, cost.messages)
            rows.append({"collective": collective, "ranks": n, "bytes": size, "seconds": seconds})
    found = calibrate_ranks.links(rows)
    assert [(row["collective"], row["ranks"]) for row in found] == list(
        itertools.product(calibrate_ranks.COLLECTIVES, (2, 4))
    )
    for row in found:
        assert (row["alpha_s"], row["beta_s_per_byte"]) == (pytest.approx(2e-4), pytest.approx(1e-9))
    by_name = {(row["collective"], row["ranks"]): (row["messages"], row["volume"]) for row in found}
    assert by_name["all_reduce", 4] == (6, 1.5)
    assert by_name["all_gather", 4] == by_name["reduce_scatter", 4] == by_name["all_to_all", 4] == (3, 0.75)
    assert by_name["send", 4] == (1, 1.0)


def test_a_call_is_as_slow_as_its_slowest_rank_and_a_message_goes_one_way():
    def rank(*seconds: float) -> list[dict]:
        names = ("all_reduce", "send")
        return [{"collective": name, "bytes": 4, "seconds": list(seconds)} for name in names]

    rows = calibrate_ranks.collective_rows(2, [rank(1.0, 2.0, 9.0), rank(4.0, 2.0, 1.0)])
    assert [(row["collective"], row["seconds"]) for row in rows] == [("all_reduce", 4.0), ("send", 2.0)]


def test_ranks_that_share_two_cores():
    def ranks(n: int) -> list[list[dict]]:
        slower = max(1.0, n / 2)
        return [
            [
                {"work": name, "seconds": [slower * t, 9 * slower * t]}  # another program had its turn, too
                for name, t in (("product", 2.0), ("copy", 1.0))
            ]
        ] * n

    found = calibrate_ranks.sharing({n: ranks(n) for n in (1, 2, 4)})
    assert found == {
        "ranks": [1, 2, 4],
        "product_slowdown": [1.0, 1.0, 2.0],
        "copy_slowdown": [1.0, 1.0, 2.0],
        "product_cores": 2.0,
        "copy_cores": 2.0,
    }


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
    device, network, grid = read["device"], read["network"], effort("cpu", True).grid
    assert device["kind"] == "cpu"
    assert set(device) == set(said["device"]) == FIELDS
    assert set(device["passes"]) >= {"gelu", "gelu_backward", "rms_norm_backward", "cross_entropy"}
    assert device["sharing"]["ranks"] == [1, 2]
    assert min(device["peak_flops"]["fp32"], device["memory_bandwidth"], device["cores"]) > 0
    assert network["backend"] == "gloo"
    assert [row["collective"] for row in network["collectives"]] == list(calibrate_ranks.COLLECTIVES)
    assert len(read["raw"]["products"]) == len(grid.tokens) * len(grid.widths) ** 2
    assert all(row["seconds"] > 0 for row in [*read["raw"]["products"], *read["raw"]["collectives"]])


FIELDS = {
    *(
        "name",
        "kind",
        "memory_bytes",
        "cores",
        "peak_flops",
        "gemm_overhead_s",
        "gemm_flops",
        "gemm_half",
        "gemm_error",
    ),
    *("gemm_backward_ratio", "memory_bandwidth", "cache_bandwidth", "op_overhead_s", "op_and_backward_s"),
    *("attention", "passes", "optimizer", "sharing"),
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
