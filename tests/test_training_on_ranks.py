"""``playbook train`` on the ranks of a layout: launched by itself, interrupted, with a rank that dies."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import terminal
import torch
from leftovers import remaining, remaining_folders, sign_in, signed_in

from playbook import launch, shapes
from playbook.cli import _parser as parser
from playbook.cli import main
from playbook.commands.train import prepared
from playbook.commands.training import Run, check, train_here, train_on_ranks
from playbook.errors import ConfigError
from playbook.launch.logs import read_json_log
from playbook.layout import Layout
from playbook.parallel.mesh import Mesh
from playbook.schedules.catalogue import make
from playbook.shapes import load
from playbook.training.config import TrainConfig
from playbook.training.data import load_corpus
from playbook.training.trainer import make_trainer

SMALL = '{"layers":2,"hidden":16,"heads":2,"vocab":256,"max_seq":64,"dropout":0.0}'
FLAGS = ["--model", SMALL, "--seq", "16", "--global-batch", "12", "--device", "cpu", "--quiet"]


#: As a reader's own: another name, and four micro-batches whatever the batch.
ZB_OWN = dataclasses.replace(make("zb-h2", 2, 4), name="own")


def run(layout: str = "", **settings) -> Run:
    options = {name: settings.pop(name) for name in Layout().options if name in settings}
    config = TrainConfig(
        **{"steps": 3, "global_batch": 12, "seq": 16, "device": "cpu", **settings},
        layout=Layout.parse(layout).replace(**options),
    )
    return Run(load(SMALL), config)


@pytest.mark.parametrize(
    "layout", ["dp=3", "dp=2,zero=1,micro_batch=3", "dp=4,zero=2", "dp=2,zero=3,grad_acc=3"]
)
def test_the_same_numbers_as_one_device(layout, capsys):
    reference = train_here(run())
    settings = {"micro_batch": 1} if "zero=2" in layout else {}
    given = run(layout, **settings)
    assert given.config.grad_acc == {"zero=1": 2, "zero=2": 3, "zero=3": 3}.get(layout[5:11], 1)
    outcome = train_on_ranks(given)
    ranks = Layout.parse(layout).world_size
    for mine, other in zip(outcome.results, reference.results, strict=True):
        assert mine.loss == pytest.approx(other.loss, rel=1e-5)
        assert mine.grad_norm == pytest.approx(other.grad_norm, rel=1e-5)
        assert (mine.step, mine.lr, mine.tokens) == (other.step, other.lr, other.tokens)
    assert len(outcome.peak_bytes) == ranks
    assert min(outcome.peak_bytes) > 4 * load(SMALL).num_parameters / ranks
    assert outcome.bytes_sent.keys() == {"dp"}
    assert not outcome.interrupted
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("layout", "settings"),
    [
        ("tp=2,sp", {"tensor_overlap": "chunked"}),
        ("cp=2", {"context": "ulysses", "recompute": "selective"}),
        ("tp=2,cp=2,sp,zero=1,grad_acc=3", {"recompute": "full"}),
        ("pp=2,tp=2,schedule=zb-h1,micro_batch=3", {"stage_layers": (1, 1)}),
        ("pp=2", {"own_schedule": ZB_OWN, "recompute": "selective"}),
    ],
)
def test_layers_and_samples_cut_in_pieces_give_the_same_numbers(layout, settings):
    """Of samples with 14 tokens, which neither a zigzag nor tp ranks of each of two parts can shard evenly."""
    reference = train_here(run(seq=14))
    outcome = train_on_ranks(run(layout, seq=14, **settings))
    for mine, other in zip(outcome.results, reference.results, strict=True):
        assert mine.loss == pytest.approx(other.loss, rel=1e-5)
        assert mine.grad_norm == pytest.approx(other.grad_norm, rel=1e-5)
        assert mine.tokens == other.tokens
    axes = {axis for axis in ("dp", "tp", "cp", "pp") if f"{axis}=" in layout}
    # Replicas of the weights add up gradients, and all ranks with other samples or tokens their losses.
    assert {axis for axis, sent in outcome.bytes_sent.items() if sent} == axes | (
        {"dp"} if "cp" in axes else set()
    )


@pytest.mark.parametrize("layout", ["dp=2,ep=2,zero=1", "cp=2,tp=2,ep=2"])
def test_experts_on_other_ranks_give_the_same_numbers(layout):
    """With losses and biases that keep the load even; what travels to experts has an axis of its own."""
    moe = {
        "experts": 4,
        "top_k": 2,
        "ffn": 8,
        "balance_loss": 0.1,
        "balance_over": "sample",
        "bias_rate": 0.01,
    }
    shape = load(SMALL).replace(moe=moe)
    reference = train_here(Run(shape, run().config))
    outcome = train_on_ranks(Run(shape, run(layout).config))
    for mine, other in zip(outcome.results, reference.results, strict=True):
        assert mine.loss == pytest.approx(other.loss, rel=1e-5)
        assert mine.grad_norm == pytest.approx(other.grad_norm, rel=1e-5)
    assert outcome.bytes_sent["ep"] > 0


@pytest.mark.parametrize(
    ("layout", "same"), [("dp=2", False), ("tp=2", True), ("tp=2,sp", False), ("pp=2", False)]
)
def test_ranks_with_other_tokens_draw_other_numbers(ranks, layout, same):
    """Else they, or layers of two stages, would drop the same elements; and ranks with the same tokens must."""

    def after_a_step() -> float:
        with launch.process_group():
            given = run(layout)
            trainer = make_trainer(SMALL, load_corpus(), given.config, Mesh(given.config.layout))
            trainer.step()
            return torch.rand(()).item()

    first, second = ranks(after_a_step, ranks=2).values
    assert (first == second) is same


def test_dropout_repeats_with_the_seed():
    shape = load(SMALL).replace(dropout=0.3)
    runs = [Run(shape, run("dp=2", seed=seed).config) for seed in (1, 1, 2)]
    first, second, other = ([r.loss for r in train_on_ranks(r).results] for r in runs)
    assert first == second != other


def test_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = ["--layout", "dp=3,zero=1", "--steps", "3", "--json", "--log", "a.jsonl"]
    assert main(["train", *FLAGS, *flags]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["losses"] == pytest.approx([r.loss for r in train_here(run(steps=3)).results], rel=1e-5)
    assert len(found["peak_bytes"]) == 3
    # Two thirds of the parameters each way, the norm, the loss, and the number of targets.
    whole = 4 * -(-load(SMALL).num_parameters // 3) * 3
    assert found["bytes_sent"]["dp"] == pytest.approx(2 * whole * 2 / 3, abs=40)
    assert "on 3 ranks (dp=3,zero=1), cpu" in err
    events = [json.loads(line)["event"] for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert events == ["start", "step", "step", "step", "finished"]


@pytest.mark.parametrize(
    ("flags", "micro_batch", "recompute"),
    [
        ([], 8, "none"),
        (["--layout", "dp=2,micro_batch=1"], 1, "none"),
        (["--layout", "dp=2,micro_batch=4,recompute=full", "--micro-batch", "4"], 4, "full"),
        (["--layout", "dp=2", "--recompute", "selective", "--micro-batch", "2"], 2, "selective"),
    ],
)
def test_what_the_text_of_a_layout_says_is_said(flags, micro_batch, recompute):
    parsed = parser().parse_args(["train", *(flags or ["--layout", "dp=2"])])
    _, config = prepared(parsed)
    for said in (config, config.layout):
        assert (said.micro_batch, said.recompute) == (micro_batch, recompute)


def test_a_layout_is_checked_once_and_a_model_read_once(monkeypatch, tmp_path):
    counts = Counter()
    for place, name in ((Layout, "check"), (shapes, "_from_table")):
        real = getattr(place, name)

        def counted(*given, real=real, name=name, **options):
            counts.update([name])
            return real(*given, **options)

        monkeypatch.setattr(place, name, counted)
    log = str(tmp_path / "log.jsonl")
    assert main(["train", *FLAGS, "--layout", "dp=2,tp=2", "--steps", "1", "--log", log]) == 0
    assert counts == {"check": 1, "_from_table": 1}


def test_ctrl_c_keeps_what_was_done(tmp_path):
    """As in a terminal, where every process of the group gets the signal."""
    process = subprocess.Popen(
        [sys.executable, "-m", "playbook", "train", *FLAGS, "--layout", "pp=2", "--steps", "100000", "--json",
         "--log", "a.jsonl"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path)}, preexec_fn=terminal.listen,
    )  # fmt: skip
    log, limit = tmp_path / "a.jsonl", time.monotonic() + 600
    while not log.exists() or log.read_text().count('"step"') < 8:
        assert time.monotonic() < limit
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    found = json.loads(out)
    assert found["interrupted"] is True
    assert found["losses"] == [r["loss"] for r in read_json_log(log)]
    assert len(found["peak_bytes"]) == 2
    # The first of two stages sends 12 micro-batches of one sample a step, and the tied table's gradient.
    assert found["bytes_sent"]["pp"] == pytest.approx(4 * (12 * 16 * 16 + 256 * 16), abs=40)
    assert json.loads(log.read_text().splitlines()[-1]) == {"event": "interrupted"}
    assert remaining_folders(tmp_path, seconds=0) == []
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


class Deadly:
    """A log that kills the rank which keeps it, in the third step."""

    def __init__(self, folder: Path):
        self.folder = folder

    def start(self, header: dict) -> None:
        sign_in(self.folder)

    def step(self, record: dict) -> None:
        if record["step"] == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    def close(self, outcome: str) -> None:
        pass


def test_a_rank_that_dies_is_named(tmp_path):
    log = tmp_path / "a.jsonl"
    deadly = Run(
        load(SMALL),
        run("pp=2,dp=2,zero=2", steps=1000).config,
        logs=(str(log),),
        watch=lambda: Deadly(tmp_path),
    )
    with pytest.raises(launch.RankError, match="rank 0 was killed by SIGKILL"):
        train_on_ranks(deadly)
    assert remaining(signed_in(tmp_path)) == []
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert events == ["start", "step", "step", "step", "failed"]


def test_a_rank_that_refuses_says_one_sentence(tmp_path, capfd):
    (tmp_path / "file").write_text("")
    refused = Run(load(SMALL), run("dp=2").config, logs=(str(tmp_path / "file" / "a.jsonl"),))
    with pytest.raises(ConfigError, match="cannot be written"):
        train_on_ranks(refused)


def test_what_every_rank_would_refuse_is_refused_at_once():
    with pytest.raises(ConfigError, match="device is 'cuda', but 4000 ranks here have"):
        check(run("dp=4000", global_batch=4000, device="cuda"))
    with pytest.raises(ConfigError, match="on many ranks a trainer needs their mesh"):
        make_trainer(SMALL, load_corpus(), run("dp=2").config)


def test_config_and_mesh_of_two_layouts(ranks):
    """What the config has checked for its own layout (batches, fp16 and ZeRO) would not hold for the mesh's."""

    def work() -> str:
        with launch.process_group(), pytest.raises(ConfigError) as error:
            make_trainer(SMALL, load_corpus(), run().config, Mesh(Layout(dp=2, zero=2)))
        return str(error.value)

    said = "layout is '' in the config, but 'dp=2,zero=2' in the mesh: give both the same"
    assert ranks(work, ranks=2)[0].value == said
