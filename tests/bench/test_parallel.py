"""``playbook bench parallel``: ours and torch's train alike, and the report says what was found."""

import json
from functools import partial
from itertools import product

import pytest
import torch

from playbook import launch
from playbook.cli import main
from playbook.layout import Layout
from playbook.layout.fields import MUON
from playbook.model.transformer import Transformer
from playbook.planning.memory import predict
from playbook.shapes import load
from playbook_book.bench.contest import TOLERANCE, report_groups, ways
from playbook_book.bench.muon_peers import DDPMuon, FSDP2Gathered, FSDP2Muon, start_muon
from playbook_book.bench.parallel import GROUPS, start_theirs
from playbook_book.bench.turns import Track, Work, compared
from playbook_book.replica_traffic import traffic

SHAPE = {
    "layers": 2,
    "hidden": 24,
    "heads": 3,
    "vocab": 61,
    "kv_heads": 1,
    "head_dim": 8,
    "ffn": 40,
    "max_seq": 32,
}
LLAMA = {
    "gated": True, "activation": "silu", "norm": "rmsnorm", "positions": "rotary", "bias": False, "tied": False,
}  # fmt: skip
PAIRS = [
    (name, pair.ours.name, pair.peer.name, pair.limit, pair.apart)
    for name, (_, rounds) in GROUPS.items()
    for turns in rounds
    for pair in turns
]


#: What is asked of each peer, by name.
SETTINGS = {
    one.name: one.settings
    for _, rounds in GROUPS.values()
    for turns in rounds
    for one in ways(turns)
    if one.settings
}


def bench(shape: dict, *more: str) -> int:
    arguments = ["--model", json.dumps(shape), "--seq", "16", "--steps", "1", "--device", "cpu", *more]
    return main(["bench", "parallel", *arguments])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    file = tmp_path_factory.mktemp("new") / "folder" / "parallel.json"
    shape = SHAPE | LLAMA | {"heads": 2, "kv_heads": 2}
    flags = ["--ranks", "2", "--grad-acc", "2", "--long-seq", "16", "--record", str(file)]
    assert bench(shape, *flags) == 0
    return json.loads(file.read_text(encoding="utf-8"))


def rows(result: dict, group: str | None = None) -> list[dict]:
    return [c for g in result["groups"] if group in (None, g["name"]) for c in g["comparisons"]]


def test_the_record_says_what_was_run_and_where(recorded):
    assert recorded["provenance"]["torch"] == torch.__version__
    assert (recorded["backend"], recorded["threads_per_rank"], recorded["steps"]) == ("gloo", 1, 1)
    assert recorded["peers"] == SETTINGS
    assert len(SETTINGS) == 13  # those of torch, and not of ours that stand beside ours
    runs = {g["name"]: (g["ranks"], g["micro_batch"], g["seq"], g["grad_acc"]) for g in recorded["groups"]}
    assert runs == {
        "data": (2, 1, 16, 2),
        "hybrid": (2, 1, 16, 2),
        "muon": (2, 1, 16, 2),
        "tensor": (2, 1, 16, 2),
        "context": (2, 1, 32, 2),
        "ring": (2, 1, 16, 1),
    }
    found = [
        (g["name"], c["ours"], c["peer"], c["limit"]) for g in recorded["groups"] for c in g["comparisons"]
    ]
    assert found == [pair[:-1] for pair in PAIRS]


@pytest.mark.parametrize(("group", "ours", "peer", "limit", "apart"), PAIRS)
def test_ours_and_the_peer_take_the_same_steps(recorded, group, ours, peer, limit, apart):
    row = next(c for c in rows(recorded, group) if (c["ours"], c["peer"]) == (ours, peer))
    assert (
        max(row["loss_difference"], row["norm_difference"])
        < apart
        <= (1e-4 if group == "muon" else TOLERANCE)
    )
    assert row["ratio"] == row["ours_s"] / row["peer_s"] > 0
    assert row["alike"]
    assert row["met"] == (None if limit is None else row["ratio"] <= limit)


def test_bytes_are_those_of_the_formulas(recorded):
    """From stage 1 on an all-reduced scalar comes on top, the squares of a norm: 4 bytes from each of two ranks."""
    sent = {c["ours"]: c["ours_sent"] for c in rows(recorded, "data")}
    shape = load(SHAPE | LLAMA | {"heads": 2, "kv_heads": 2})
    units = predict(shape, Layout(dp=2), seq=16, recipe="fp32", device="cpu").stages[0].counts.units
    stages = {"bucketed": 0, "ZeRO-1": 1, "ZeRO-2": 2, "ZeRO-3": 3}
    for name, zero in stages.items():
        found = traffic(units, 2, zero, weight_bytes=4, gradient_bytes=4, grad_acc=2)
        assert sent[name] == found.total + (4 if zero else 0)
    assert sent["naive"] == sent["overlapped"] == sent["bucketed"]
    assert sent["ZeRO-3, kept"] < sent["ZeRO-3"]


def test_other_blocks_and_numbers_of_ranks_train_alike(capsys):
    """GPT-2's, with a tied head; its dropout is turned off. DTensor's plan is for others, which is said at once."""
    gpt = SHAPE | {"layers": 1, "kv_heads": 3, "dropout": 0.1}
    assert bench(gpt, "--ranks", "3", "--only", "data", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert [g["name"] for g in result["groups"]] == ["data"]
    assert all(c["alike"] for c in rows(result))
    assert bench(gpt, "--ranks", "3", "--only", "tensor") != 0
    assert "tied is True, but DTensor's plan needs False" in capsys.readouterr().err
    assert bench(gpt, "--ranks", "3", "--only", "hybrid") != 0
    assert "replicate must divide dp = 3, got 2" in capsys.readouterr().err
    assert bench(gpt, "--ranks", "4", "--grad-acc", "2", "--only", "hybrid", "--json") == 0
    assert all(c["alike"] for c in rows(json.loads(capsys.readouterr().out)))


def in_fp32(shape):
    """Whole weights after four steps of Muon with products in fp32, ours and torch's, of each way on this rank."""
    torch.set_num_threads(1)
    work = Work(shape, 1, 16)
    torch.Tensor.bfloat16 = torch.Tensor.clone  # what torch.optim.Muon narrows to
    with launch.process_group() as world:
        starts = {
            (way, layout): partial(start_muon, way, layout, torch.float32)
            for way, layout in product(MUON, ("dp=N,zero=3", "dp=N"))
        }
        starts |= {one: partial(start_theirs, one) for one in (FSDP2Muon, FSDP2Gathered, DDPMuon)}
        weights = {}
        for name, start in starts.items():
            run = start(work, world.device)
            for i in range(4):
                run.step(work.batch(i, world.device))
            model = getattr(run.engine.model, "module", run.engine.model)
            ours = isinstance(name, tuple)
            whole = run.engine.state_dict()["model"] if ours else dict(model.named_parameters())
            full = {key: getattr(p, "full_tensor", lambda p=p: p)() for key, p in whole.items()}
            weights[str(name)] = torch.cat([full[key].detach().flatten() for key in sorted(full)]).numpy()
        return weights


@pytest.mark.parametrize("ranks", [2, 3])
def test_muon_moves_weights_as_torchs_does(ranks):
    shape = load(SHAPE | LLAMA | {"layers": 1}).replace(dropout=0.0)
    start = torch.cat(
        [p.detach().flatten() for _, p in sorted(Transformer(shape).named_parameters())]
    ).numpy()
    for weights in launch.run(in_fp32, shape, ranks=ranks, backend="gloo", timeout=100).values:
        judge = weights[str(DDPMuon)]
        assert len(weights) == 9
        for name, found in weights.items():
            assert abs(found - judge).max() < 2e-6 < 1e-4 < abs(found - start).max(), name


def test_those_who_are_compared_take_turns():
    for _, rounds in GROUPS.values():
        for turns in rounds:
            names = [one.name for one in ways(turns)]
            assert len(names) == len(set(names))
            assert {one.name for pair in turns for one in (pair.ours, pair.peer)} == set(names)


def test_a_step_is_as_slow_as_its_slowest_rank():
    ours = [
        Track([1.0, 5.0, 2.0], [1.0, 1.0, 2.0], [8.0], [4.0], 10),
        Track([3.0, 1.0, 1.0], [3.0, 1.0, 1.0], [8.0], [4.0], 11),
    ]
    peer = [
        Track([4.0, 4.0, 4.0], [4.0, 4.0, 4.0], [8.0], [5.0], 20),
        Track([1.0, 1.0, 8.0], [1.0, 1.0, 5.0], [8.0], [5.0], 21),
    ]
    row = compared(ours, peer)  # steps of 3, 5 and 2 seconds against 4, 4 and 8
    assert (row["ours_s"], row["peer_s"], row["ratio"]) == (3, 4, 0.75)
    assert (row["ours_cpu_s"], row["peer_cpu_s"], row["cpu_ratio"]) == (2, 4, 0.5)
    assert row["turn_ratio_quartiles"] == [0.5, 0.75, 1.0]  # of 3/4, 5/4 and 2/8
    assert (row["ours_sent"], row["peer_sent"]) == (10, 20)
    assert row["loss_difference"] == 0
    assert row["norm_difference"] == pytest.approx(0.2)


def test_the_report_shows_every_pair_the_verdicts_and_the_settings(recorded):
    report = report_groups(recorded)
    assert "2 gloo ranks, 2 × 1 × 16 tokens on each; medians of 1 steps" in report
    assert "2 gloo ranks, 2 × 1 × 32 tokens together" in report
    for _, ours, peer, limit, _ in PAIRS:
        line = next(line for line in report.splitlines() if line.split(f" {peer} ")[0].strip() == ours)
        assert line.endswith((" met", " missed")) == (limit is not None)
    assert all(f"\n{name}: {text}" in report for name, text in SETTINGS.items())


def test_a_fast_wrong_step_meets_no_limit(recorded):
    wrong = json.loads(json.dumps(recorded))
    rows(wrong, "tensor")[0].update(alike=False, met=False)
    assert "other steps than the peer's" in report_groups(wrong)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--ranks", "1"], "ranks is 1, but must be at least 2"),
        (["--steps", "0"], "steps must be at least 1, got 0"),
        (["--grad-acc", "0"], "grad_acc must be at least 1, got 0"),
        (["--seq", "33"], "seq is 33, but this model has positions for at most max_seq=32 tokens"),
        (["--only", "data,tensors"], "unknown group 'tensors'; did you mean tensor?"),
        (
            ["--ranks", "3", "--only", "tensor"],
            "kv_heads is 1, but DTensor's plan needs a multiple of 3 ranks",
        ),
        (["--device", "tpu"], "device is 'tpu', but must be cpu or cuda"),
    ],
)
def test_what_cannot_be_run_is_said_at_once(flags, message, capsys):
    assert bench(SHAPE | LLAMA, *flags) != 0
    assert message in capsys.readouterr().err
