"""What a new replica gets from a peer: all on which its next step depends, rank to rank, in pieces.

Replicas have the same layout inside, so that the tensors of a rank and of its peer correspond one to one, shards as well:
nothing is gathered, and no file is read. How many bytes that is follows from the layout.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from playbook.parallel.replicas import ReplicaSet
from playbook.training.trainer import Trainer

#: The most bytes that are under way at a time: what a GPU's copy would need beside the state.
PIECE = 4 << 20
#: Starts to send bytes (n,), or to receive them in place; gives back once they are there.
Carry = Callable[[Tensor], None]


def give(trainer: Trainer, send: Carry) -> int:
    """Send what this rank has of the state. Returns the bytes of its tensors."""
    text = json.dumps(_about(trainer)).encode()
    send(torch.tensor([len(text)]).view(torch.uint8))
    send(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    tensors = _tensors(trainer)
    for lot in pieces(tensors, PIECE):
        send(together(lot))
    return sum(map(len, tensors))


def take(trainer: Trainer, receive: Carry) -> int:
    """Receive it in the place of what this rank has. Returns the bytes of its tensors."""
    size = torch.empty(1, dtype=torch.int64)
    receive(size.view(torch.uint8))
    text = torch.empty(int(size), dtype=torch.uint8)
    receive(text)
    _prepare(trainer, json.loads(text.numpy().tobytes()))
    tensors = _tensors(trainer)
    for lot in pieces(tensors, PIECE):
        vector = together(lot)
        receive(vector)
        apart(vector, lot)
    return sum(map(len, tensors))


def pieces(tensors: list[Tensor], most: int) -> Iterator[list[Tensor]]:
    """Flat views of tensors, in lots of at most ``most`` elements of one dtype."""
    lot, room = list[Tensor](), most
    for part in (part for tensor in tensors for part in tensor.detach().view(-1).split(most)):
        if lot and (part.numel() > room or part.dtype != lot[0].dtype):
            yield lot
            lot, room = [], most
        lot.append(part)
        room -= part.numel()
    if lot:
        yield lot


def together(lot: list[Tensor]) -> Tensor:
    """One vector of a lot: a copy, unless it is one already."""
    return lot[0] if len(lot) == 1 else torch.cat(lot)


def apart(vector: Tensor, lot: list[Tensor]) -> None:
    """Put what has come of the vector back into its lot."""
    if len(lot) > 1:
        torch._foreach_copy_(lot, list(vector.split([part.numel() for part in lot])))


def _tensors(trainer: Trainer) -> list[Tensor]:
    """Weights, the optimizer's states of each leaf, buffers, magnitudes seen in FP8: as bytes, in one order on peers."""
    engine = trainer.engine
    for one in engine.sets:
        one.wait()
        one.forget_gathered()
    found = [*engine.tensors()["parameters"], *engine.buffers().values()]
    for one in engine.sets:
        found += [state[kind] for state in _states(one) for kind in sorted(state)]
    found += [history.steps for history in engine.histories]
    return [tensor.detach().view(-1).view(torch.uint8) for tensor in found if tensor.numel()]


def _states(one: ReplicaSet) -> list[dict[str, Tensor]]:
    optimizer = getattr(one, "optimizer", None)
    return [optimizer.state[leaf.tensor] for leaf in one.leaves] if optimizer else []


def _about(trainer: Trainer) -> dict[str, Any]:
    """What is no tensor, and what tensors there are that a new optimizer does not have yet."""
    scale, history = trainer.loss_scale, trainer.engine.amax_history()
    return {
        "states": [
            [
                {k: (str(t.dtype).removeprefix("torch."), list(t.shape)) for k, t in s.items()}
                for s in _states(one)
            ]
            for one in trainer.engine.sets
        ],
        "skipped": trainer.skipped,
        "loss_scale": scale and (scale.value, scale.good_steps),
        "amax": history and (history.count, history.ended),
    }


def _prepare(trainer: Trainer, about: dict[str, Any]) -> None:
    """Take up what is no tensor, and make room for the tensors."""
    for one, states in zip(trainer.engine.sets, about["states"], strict=True):
        for own, kinds in zip(_states(one), states, strict=True):
            for kind, (dtype, shape) in kinds.items():
                if kind not in own or list(own[kind].shape) != shape:
                    own[kind] = torch.empty(shape, dtype=getattr(torch, dtype))
    trainer.skipped = about["skipped"]
    if trainer.loss_scale:
        trainer.loss_scale.value, trainer.loss_scale.good_steps = about["loss_scale"]
    for history in trainer.engine.histories:
        history.count, history.ended = about["amax"]
