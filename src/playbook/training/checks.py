"""What can be refused before anything large is allocated: a text or a device that does not fit the model."""

from __future__ import annotations

import torch

from playbook._checks import system_memory_bytes
from playbook.errors import ConfigError
from playbook.precision.recipes import load_fp8
from playbook.registry import lab
from playbook.shapes import ModelShape
from playbook.training.config import TrainConfig
from playbook.training.data import Corpus


def check_fit(shape: ModelShape, corpus: Corpus, config: TrainConfig) -> None:
    """Raise ConfigError unless text and samples fit the model."""
    name = shape.name or "this model"
    if shape.vocab < corpus.vocab:
        raise ConfigError(
            f"vocab is {shape.vocab}, but the text has tokens from 0 to {corpus.vocab - 1}: "
            f"it must be at least {corpus.vocab}"
        )
    for field, value in (("kernels", "fused"), ("fp8", config.fp8)) if shape.train != "full" else ():
        if value and getattr(config, field) == value:
            raise ConfigError(f"{field} is {value}, but train={shape.train} goes without: leave it out")
    if config.documents == "packed" and shape.dropout:
        raise ConfigError(
            f"documents are packed, but {name} has dropout={shape.dropout}: make one of them joined or 0"
        )
    if config.fp8 and (recipe := load_fp8(config.fp8)).dtype == "fp4":
        lab("fp4", "check")(shape, config.layout, config.seq, recipe)
    if config.seq > shape.max_seq:
        raise ConfigError(
            f"seq is {config.seq}, but {name} has positions for at most max_seq={shape.max_seq} tokens"
        )


def check_device(shape: ModelShape, device: str, ranks: int = 1) -> None:
    """Raise ConfigError unless the device is here and can hold what a model has whatever the batch.

    ``ranks`` on one machine share the memory of its CPU; each begins with whole parameters.
    """
    if device not in ("cpu", "cuda"):
        raise ConfigError(f"device is {device!r}, but must be cpu or cuda")
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device is {device!r}, but PyTorch finds no CUDA device: leave it out, or say cpu")
    # The angles of rotary positions are worked out in fp64: 24 bytes per position and dim at the worst moment.
    angles = 24 * shape.max_seq * shape.qk_dim * (shape.positions == "rotary")
    learn = sum(n for part, n in shape.parameters().items() if part in shape.trained)
    each = 4 * shape.num_parameters + 12 * learn * (ranks == 1) + angles
    need, have = each * (ranks if device == "cpu" else 1), memory_bytes(device)
    if have is not None and need > have:
        positions, states = f"max_seq={shape.max_seq} positions", "parameters, gradients and optimizer states"
        what = positions if angles > need / 2 else states
        raise ConfigError(
            f"model {shape.name or 'shape'!r} needs {need / 2**30:,.0f} GiB for {what} alone, but {device} has "
            f"{have / 2**30:,.0f} GiB: choose a smaller preset"
        )


def memory_bytes(device: str) -> int | None:
    """All the memory of a device, in bytes; None where the system does not tell."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return system_memory_bytes()
