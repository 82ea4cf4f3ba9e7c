"""``playbook bench checkpoint``: saving and loading a training state, beside ``torch.save`` and PyTorch's own checkpoint.

All of them write the same tensors (weights and both moments) and have them on disk (fsync) when they return; ours takes
checksums afterwards. ``exposed`` is how long training stands still when the state is saved in the background: while the
save is begun, and while the update of the next step waits for copies of what it is about to change.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from playbook.bench import provenance
from playbook.shapes import ModelShape
from playbook.training.config import TrainConfig
from playbook.training.data import load_corpus
from playbook.training.restore import load
from playbook.training.saving import Checkpoints, Saving, checkpoints
from playbook.training.trainer import Trainer, make_trainer
from playbook_book.instruments.measured import seconds_in_turns


def bench_checkpoint(
    shape: ModelShape, repeats: int, device: str, folder: str | None = None
) -> dict[str, Any]:
    """Seconds of each way to save and to load the state of a trainer of ``shape``, in turns; medians and ratios.

    ``folder`` is where files are written (None: where temporary files are).
    """
    config = TrainConfig(steps=10**6, global_batch=1, seq=8, device=device)
    trainer = make_trainer(shape, load_corpus(), config)
    trainer.step()  # from now on there are moments
    with tempfile.TemporaryDirectory(prefix="playbook-bench-", dir=folder) as name:
        root = Path(name)
        for kind in ("ours", "background", "dcp"):
            (root / kind).mkdir()
        background = Checkpoints(Saving(str(root / "background"), 1, keep=1, background=True), trainer)
        times = seconds_in_turns(_ways(trainer, background, root), repeats, device)
        times["exposed"] = background.exposed[-repeats:]
    del times["clear"]
    medians = {key: statistics.median(each) for key, each in times.items()}
    return {
        "provenance": provenance(device),
        "state_bytes": 12 * shape.num_parameters,
        "seconds": medians,
        "quartiles": {
            key: statistics.quantiles(each, n=4) if repeats > 1 else each * 3 for key, each in times.items()
        },
        "ratios": {
            "save / torch.save": medians["save"] / medians["save torch.save"],
            "save / DCP": medians["save"] / medians["save DCP"],
            "load / torch.load": medians["load"] / medians["load torch.load"],
            "load / DCP": medians["load"] / medians["load DCP"],
            "exposed / save": medians["exposed"] / medians["save"],
        },
    }


def _ways(trainer: Trainer, background: Checkpoints, root: Path) -> dict[str, Callable[[], Any]]:
    """What each turn does, in this order: first it clears away what the last one has saved."""
    model, optimizer = trainer.model, trainer.optimizer
    ours = Checkpoints(Saving(str(root / "ours"), 1, keep=1), trainer)
    file = root / "torch.pt"

    def clear() -> None:
        background.wait()
        for path in (*checkpoints(ours.folder), *checkpoints(background.folder), root / "dcp"):
            shutil.rmtree(path)

    def exposed() -> None:
        background.save()
        trainer.step()
        background.wait()

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()["state"]}

    def torch_save() -> None:
        with file.open("wb") as stream:
            torch.save(state(), stream)
            stream.flush()
            os.fsync(stream.fileno())

    def torch_load() -> None:
        found = torch.load(file, weights_only=True)
        model.load_state_dict(found["model"])
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": found["optimizer"], "param_groups": groups})

    def flat() -> dict[str, Any]:
        moments = {
            f"{kind}.{i}": each[kind]
            for i, each in state()["optimizer"].items()
            for kind in ("exp_avg", "exp_avg_sq")
        }
        return {**model.state_dict(), **moments}

    def dcp_save() -> None:
        dcp.save(flat(), storage_writer=dcp.FileSystemWriter(str(root / "dcp")), no_dist=True)

    def dcp_load() -> None:
        dcp.load(flat(), storage_reader=dcp.FileSystemReader(str(root / "dcp")), no_dist=True)

    return {
        "clear": clear,
        "save": ours.save,
        "save torch.save": torch_save,
        "save DCP": dcp_save,
        "exposed": exposed,
        "load": lambda: load(trainer, checkpoints(ours.folder)[-1]),
        "load torch.load": torch_load,
        "load DCP": dcp_load,
    }


def report_checkpoint(result: dict[str, Any]) -> str:
    """For people."""
    lines = [f"a state of {result['state_bytes'] / 1e6:,.0f} MB"]
    lines += [f"  {key:18} {seconds * 1e3:8,.1f} ms" for key, seconds in result["seconds"].items()]
    lines += [f"  {key:18} {ratio:8.3f}" for key, ratio in result["ratios"].items()]
    return "\n".join(lines)
