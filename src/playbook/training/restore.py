"""Go on from a checkpoint: a rank reads what it has of every tensor, whatever boxes other ranks wrote these in.

PyTorch's distributed checkpoint finds the overlaps and reads them, file by file, into the tensors that training goes on
with: no rank has a whole tensor of which it keeps a part.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from playbook.errors import CheckpointError
from playbook.parallel.engine import Engine
from playbook.parallel.placement import Placement
from playbook.parallel.replicas import Leaf, ReplicaSet
from playbook.parallel.state import give_states
from playbook.training.boxes import Sizes, boxes
from playbook.training.checkpoint import SAME, TRAINING, identity, read_manifest
from playbook.training.trainer import Trainer

#: Optimizer states with an element for each of the parameter's.
STATES = ("exp_avg", "exp_avg_sq", "master")


class Reader:
    """Boxes of whole tensors, from the files of a checkpoint, whatever boxes these were written in.

    What is wanted is said first, each box with the tensor that it goes to, and then read file by file. Raises
    CheckpointError for a box that the checkpoint does not have.
    """

    def __init__(self, path: Path):
        self.path = path
        self.storage = HuggingFaceStorageReader(str(path))
        metadata = self.storage.read_metadata()
        self.storage.set_up_storage_reader(metadata, is_coordinator=True)
        self.tensors: Mapping[str, Any] = metadata.state_dict_metadata
        self.items: list[ReadItem] = []
        self.targets: dict[MetadataIndex, Tensor] = {}

    def stretch(
        self, name: str, placement: Placement, shape: Sequence[int], start: int, target: Tensor
    ) -> None:
        """Want the elements from ``start`` on of a slice of ``shape``, as many as the ``target`` (n,) has."""
        for box in boxes(placement, shape, start, start + len(target)):
            self.box(name, box.offsets, box.of(target))

    def box(self, name: str, offsets: Sizes, target: Tensor) -> None:
        """Want the box at ``offsets`` in the size of ``target``."""
        chunk = ChunkStorageMetadata(torch.Size(offsets), target.shape)
        known = self.tensors.get(name)
        items = create_read_items_for_chunk_list(name, known, [chunk]) if known else []
        if sum(math.prod(item.lengths) for item in items) != target.numel():
            raise CheckpointError(f"checkpoint {str(self.path)!r} does not have all of {name}")
        self.items += items
        self.targets[items[0].dest_index] = target

    def read(self) -> int:
        """Read all that is wanted, and want nothing more. Returns the bytes that were read."""
        self.storage.read_data(LoadPlan(self.items), self)  # type: ignore[arg-type]
        count = sum(
            math.prod(item.lengths) * self.tensors[item.dest_index.fqn].properties.dtype.itemsize
            for item in self.items
        )
        self.items, self.targets = [], {}
        return count

    def resolve_tensor(self, item: ReadItem) -> Tensor:
        """Where a part of a box goes: what a storage reader asks a planner."""
        found = self.targets[item.dest_index]
        for dim, (offset, length) in enumerate(zip(item.dest_offsets, item.lengths, strict=True)):
            found = found.narrow(dim, offset, length)
        return found

    def commit_tensor(self, item: ReadItem, tensor: Tensor) -> None:
        """Nothing is left to be done: it was copied to its place."""


@torch.no_grad()
def load(trainer: Trainer, path: Path) -> int:
    """Take up this rank's part of a checkpoint of any layout; returns the bytes that were read. Not a collective.

    Of one that has weights alone the optimizer keeps none: its moments begin at 0, masters as the weights.

    Raises CheckpointError for one that does not belong to this model, text or batches.
    """
    manifest = read_manifest(path)
    check(trainer, manifest, path)
    engine, reader = trainer.engine, Reader(path)
    states = [_want(engine, one, reader) for one in engine.sets]
    for name, p in engine.frozen():
        _want_parameter(reader, engine.placements[name], p, p.shape, 0)
    for name, buffer in engine.buffers().items():
        reader.box(f"buffer/{name}", (0,) * buffer.dim(), buffer)
    history = engine.amax_history()
    kept = [name for name in reader.tensors if name.startswith("amax/")]
    amax = [torch.empty_like(history.steps) for _ in kept] if history else []
    for name, target in zip(kept, amax, strict=False):
        reader.box(name, (0,) * target.dim(), target)
    count = reader.read()
    for one, found in zip(engine.sets, states, strict=True):
        give_states(one, partial(_counted, found, engine, manifest["optimizer_steps"]))
    if history:
        history.count = manifest["amax_count"] or 0
    if history and amax:
        history.steps.copy_(torch.stack(amax).amax(0))
    if trainer.loss_scale and manifest["loss_scale"]:
        trainer.loss_scale.value = manifest["loss_scale"]["value"]
        trainer.loss_scale.good_steps = manifest["loss_scale"]["good_steps"]
    if trainer.guard and manifest["guard"]:
        trainer.guard.restore(manifest["guard"])
    trainer.step_count, trainer.skipped = manifest["step"], manifest["skipped_batches"]
    return count


def _want(engine: Engine, one: ReplicaSet, reader: Reader) -> dict[Leaf, dict[str, Tensor]]:
    """Have a set's parameters read into their places, and its optimizer's states into new tensors."""
    one.wait()
    one.forget_gathered()
    if one.gathers_weights:
        for leaf in one.leaves:
            placement = engine.placements[leaf.name]
            _want_parameter(reader, placement, leaf.tensor, leaf.parameter.shape, leaf.start)
    else:
        for name, p in one.parameters:
            _want_parameter(reader, engine.placements[name], p, p.shape, 0)
    found: dict[Leaf, dict[str, Tensor]] = {}
    for leaf in one.leaves:
        placement = engine.placements[leaf.name]
        found[leaf] = {}
        for kind in STATES:
            if f"{kind}/{placement.name}" in reader.tensors:
                flat = torch.zeros(leaf.tensor.numel(), device=leaf.tensor.device)
                reader.stretch(f"{kind}/{placement.name}", placement, leaf.parameter.shape, leaf.start, flat)
                found[leaf][kind] = flat.view(leaf.tensor.shape)
    return found


def _want_parameter(
    reader: Reader, placement: Placement, tensor: Tensor, shape: Sequence[int], start: int
) -> None:
    name = f"parameter/{placement.name}"
    if (
        name in reader.tensors or ".lora_" not in name
    ):  # new adapters of a model that had none stay as they are
        reader.stretch(name, placement, shape, start, tensor.detach().view(-1))


def _counted(
    states: Mapping[Leaf, dict[str, Tensor]], engine: Engine, steps: Mapping[str, float], leaf: Leaf
) -> dict[str, Tensor] | None:
    """The states of a leaf with the steps that the optimizer has made of it; None for one that it never updated."""
    step = steps.get(engine.placements[leaf.name].name)
    return None if step is None else {**states[leaf], "step": torch.tensor(float(step))}


def check(trainer: Trainer, manifest: Mapping[str, Any], path: Path) -> None:
    """Raise CheckpointError unless a checkpoint belongs to this model, text and batches.

    One of weights alone, of another program, belongs to any text and batches, and to any way of training the model.
    """
    shape, weights = json.loads(json.dumps(dataclasses.asdict(trainer.model.shape))), is_weights(manifest)
    saved = manifest["shape"]
    for field in shape:
        own, theirs = shape[field], saved.get(field, shape[field])
        if weights and field == "moe" and own and theirs:
            own, theirs = ({k: v for k, v in one.items() if k not in TRAINING} for one in (own, theirs))
        if field != "name" and not (weights and field in TRAINING) and own != theirs:
            raise CheckpointError(
                f"checkpoint {str(path)!r} is of a model with {field}={saved.get(field)!r}, but this one has "
                f"{field}={shape[field]!r}"
            )
    if weights:
        return
    own = trainer.config.optimizer
    if (theirs := manifest["config"].get("optimizer", "adamw")) != own:
        raise CheckpointError(f"checkpoint {str(path)!r} has states of {theirs}, but optimizer is {own}")
    for field in SAME:
        own, theirs = getattr(trainer.config, field), manifest["config"].get(field, "joined")
        if own != theirs:
            raise CheckpointError(
                f"checkpoint {str(path)!r} was made with {field}={theirs!r}, but this run has {field}={own!r}: its steps "
                "would have other batches"
            )
    if manifest["corpus"] != identity(trainer):
        raise CheckpointError(
            f"checkpoint {str(path)!r} was made with another text of {manifest['corpus']['tokens']:,} tokens: give the "
            "same --data"
        )


def is_weights(manifest: Mapping[str, Any]) -> bool:
    """Whether a checkpoint has weights alone, with which a run begins at step 0 and with a new optimizer."""
    return manifest["corpus"] is None
