"""``playbook bench collectives``: what it reports of times that are known, and one short run of real ranks."""

import json

import pytest
import torch

from playbook.cli import main
from playbook.errors import ConfigError
from playbook_book.bench import collectives as bench
from playbook_book.bench.collectives import bench_collectives, measure, report_collectives

KINDS = {"broadcast", "reduce", "gather", "scatter", "all_gather", "reduce_scatter", "all_to_all", "barrier"}


def test_two_ranks_measure_and_the_record_says_where(tmp_path, capsys):
    record = tmp_path / "new" / "collectives.json"
    arguments = ["--ranks", "2", "--sizes", "1K,4K,16K,64K", "--repeats", "2", "--device", "cpu"]
    assert main(["bench", "collectives", *arguments, "--json", "--record", str(record)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads(record.read_text(encoding="utf-8"))
    assert result["provenance"]["torch"] == torch.__version__
    assert result["backend"] == "gloo"
    assert [row["bytes"] for row in result["all_reduce"]] == [1 << 10, 1 << 12, 1 << 14, 1 << 16]
    for row in [*result["all_reduce"], *result["others"]]:
        assert row["ranks"] == 2
        assert row["ratio"] == row["ours_s"] / row["peer_s"] > 0
    assert {row["collective"] for row in result["others"]} == KINDS
    assert [(f["who"], f["held_back"]) for f in result["fits"]] == [("ours", [1 << 12]), ("peer", [1 << 12])]
    assert result["worst_error"] == max(abs(e) for f in result["fits"] for e in f["errors"])
    assert all(row["seconds"] > 0 for row in result["point_to_point"])


def known(n: int, sizes: list[int], *_) -> dict:
    """Times as an α–β ring of 5 µs and 1 GB/s takes them, ours twice as slow; one of three calls is disturbed."""
    volume = 2 * (n - 1) / n

    def times(size: int) -> dict[str, list[float]]:
        peer = 2 * (n - 1) * 5e-6 + volume * size / 1e9
        return {"ours": [2 * peer, 9.0, 2 * peer], "peer": [peer, peer, 9.0]}

    return {
        **{("all_reduce", size): times(size) for size in sizes},
        ("broadcast", 1 << 20): {"ours": [3.0], "peer": [2.0]},
        **{("message", size): {"there and back": [2e-3]} for size in sizes},
    }


def test_medians_ratios_and_fits_of_known_times(monkeypatch):
    monkeypatch.setattr(bench, "_run", known)
    sizes = [1 << i for i in range(10, 27)]
    result = bench_collectives([4, 8], [*reversed(sizes), 1024], 3)
    assert [(row["ranks"], row["bytes"]) for row in result["all_reduce"]] == [
        (n, k) for n in (4, 8) for k in sizes
    ]
    assert all(row["ratio"] == pytest.approx(2) for row in result["all_reduce"])
    assert result["all_reduce"][-1]["peer_bus"] == pytest.approx(1e9, rel=0.01)
    assert [row["ratio"] for row in result["others"]] == [1.5, 1.5]
    for f in result["fits"]:
        slower = 2 if f["who"] == "ours" else 1
        assert f["alpha_s"] == [pytest.approx(slower * 5e-6)]
        assert f["bandwidth"] == [pytest.approx(1e9 / slower)]
        assert f["held_back"] == sizes[1:-1:2]
        assert f["fitted_on"] == sizes[::2]
    assert result["worst_error"] < 1e-9
    assert {row["seconds"] for row in result["point_to_point"]} == {1e-3}
    report = report_collectives(result)
    assert "8  67,108,864" in report
    assert "4 ranks, gloo: 5.0 µs + 1.00 GB/s" in report


def test_too_few_sizes_to_hold_one_back(monkeypatch):
    monkeypatch.setattr(bench, "_run", known)
    result = bench_collectives([2], [1024, 4096], 3)
    assert result["fits"] == []
    assert result["worst_error"] is None
    assert "2 broadcast" in report_collectives(result)


def test_a_call_is_as_slow_as_its_slowest_rank(ranks, monkeypatch):
    run = ranks(measure, [4096], 3, ranks=2)
    monkeypatch.setattr(bench.launch, "run", lambda *_, **__: run)
    found, by_rank = bench._run(2, [4096], 3, "cpu"), [value["all_reduce", 4096] for value in run.values]
    assert len(by_rank[0]["peer"]) >= 3
    for who, times in found["all_reduce", 4096].items():
        assert times == [max(call) for call in zip(*(rank[who] for rank in by_rank), strict=True)]
    assert {kind for kind, _ in found} == {*KINDS, "all_reduce", "message"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--ranks", "1"], "ranks must be at least 2, got 1: one rank has nobody to talk to"),
        (["--ranks", "two"], "ranks must be numbers such as 512, 4K or 64M, separated by commas, got 'two'"),
        (["--sizes", "1K,"], "sizes must be numbers such as 512, 4K or 64M, separated by commas, got ''"),
        (["--sizes", "1022"], "sizes must be multiples of 4 bytes, an fp32 number, got 1022"),
        (["--repeats", "0"], "repeats must be at least 1, got 0"),
    ],
)
def test_bad_flags_end_with_one_sentence(arguments, sentence, capsys):
    assert main(["bench", "collectives", "--device", "cpu", *arguments]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="this machine has GPUs for two ranks")
def test_gpus_that_are_not_there():
    with pytest.raises(ConfigError, match="2 ranks on cuda need a GPU each, and this machine has"):
        bench_collectives([2], [1024], 1, "cuda")


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_on_gpus():
    result = bench_collectives([2], [1 << 20, 1 << 22, 1 << 24], 3, "cuda")
    print(report_collectives(result))
    assert result["backend"] == "nccl"
