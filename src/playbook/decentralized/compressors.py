"""Gradients in few bits: what is sent is packed to the byte, and what arrives differs in a known way.

*Unbiased*: E[C(x)] = x and E‖C(x) − x‖² ≤ ω·‖x‖². *Contractive*: E‖C(x) − x‖² ≤ (1 − δ)·‖x‖², 0 < δ ≤ 1. A compressor
says which it is and its constant for vectors of d values. Unbiased ones can be used as they are (noise averages out over
nodes and steps), contractive ones that are biased need error feedback (``feedback.py``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from playbook.errors import ConfigError


class Compressor(Protocol):
    """``encode`` turns a vector (d,) in fp32 into ``size(d)`` bytes, ``decode`` these into a vector again."""

    unbiased: bool

    def encode(self, x: Tensor, chance: torch.Generator) -> Tensor: ...
    def decode(self, packed: Tensor, d: int) -> Tensor: ...
    def size(self, d: int) -> int: ...

    def constant(self, d: int) -> float:
        """ω of an unbiased compressor, δ of another."""


@dataclass(frozen=True)
class TopK:
    """The k = ⌈``share``·d⌉ largest values by magnitude, as they are (Aji and Heafield 2017, Stich et al. 2018). δ = k/d.

    Sent: ⌈log₂ d⌉ bits and 4 bytes for each.
    """

    share: float = 0.01
    unbiased = False

    def __post_init__(self) -> None:
        check_share(self.share)

    def encode(self, x: Tensor, chance: torch.Generator) -> Tensor:
        at = x.abs().topk(kept(self.share, len(x))).indices
        return torch.cat([raw_bytes(x[at]), pack(at, _index_bits(len(x)))])

    def decode(self, packed: Tensor, d: int) -> Tensor:
        k = kept(self.share, d)
        at = unpack(packed[4 * k :], _index_bits(d), k)
        return torch.zeros(d, device=packed.device).index_copy(0, at, floats(packed[: 4 * k]))

    def size(self, d: int) -> int:
        k = kept(self.share, d)
        return 4 * k + packed_bytes(k, _index_bits(d))

    def constant(self, d: int) -> float:
        return kept(self.share, d) / d


# ---- bits


def pack(codes: Tensor, bits: int) -> Tensor:
    """Numbers (n,) below 2^bits end to end in ⌈n·bits/8⌉ bytes, each with its lowest bit first."""
    if bits == 8:
        return codes.to(torch.uint8)
    each = ((codes[:, None] >> _counting(bits, codes)) & 1).to(torch.uint8)
    flat = torch.nn.functional.pad(each.view(-1), (0, -each.numel() % 8)).view(-1, 8)
    return (flat << _counting(8, flat)).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, bits: int, n: int) -> Tensor:
    """The first ``n`` numbers of what ``pack`` made."""
    if bits == 8:
        return packed[:n].long()
    each = ((packed[:, None] >> _counting(8, packed)) & 1).view(-1)[: n * bits].long()
    return each if bits == 1 else (each.view(n, bits) << _counting(bits, each)).sum(1)


def _counting(n: int, like: Tensor) -> Tensor:
    return torch.arange(n, device=like.device, dtype=like.dtype)


def packed_bytes(n: int, bits: int) -> int:
    """Bytes of ``n`` numbers that are packed in so many bits each."""
    return -(-n * bits // 8)


def raw_bytes(x: Tensor) -> Tensor:
    """Numbers (n,) in fp32 as 4·n bytes."""
    return x.float().contiguous().view(torch.uint8)


def floats(packed: Tensor) -> Tensor:
    """What ``raw_bytes`` made, as numbers."""
    return packed.clone().view(torch.float32)  # a copy begins where floats may


def kept(share: float, d: int) -> int:
    """How many of ``d`` values a share of them is: at least one."""
    return max(1, math.ceil(share * d))


def _index_bits(d: int) -> int:
    return max(1, (d - 1).bit_length())


def check_share(value: float) -> None:
    """Raises ConfigError unless it is above 0 and at most 1."""
    if not 0 < value <= 1:
        raise ConfigError(f"share is {value}, but must be above 0 and at most 1")
