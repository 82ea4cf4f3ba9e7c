"""Compressors that the chapter on less communication compares with top-k, and what it does with them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from playbook.decentralized.compressors import (
    Compressor,
    check_share,
    floats,
    kept,
    pack,
    packed_bytes,
    raw_bytes,
    unpack,
)
from playbook.errors import ConfigError


def compress(compressor: Compressor, x: Tensor, chance: torch.Generator) -> Tensor:
    """C(x): what arrives of ``x`` (d,)."""
    return compressor.decode(compressor.encode(x, chance), len(x))


@dataclass(frozen=True)
class Identity:
    """All 32 bits."""

    unbiased = True

    def encode(self, x: Tensor, chance: torch.Generator) -> Tensor:
        return raw_bytes(x)

    def decode(self, packed: Tensor, d: int) -> Tensor:
        return floats(packed)

    def size(self, d: int) -> int:
        return 4 * d

    def constant(self, d: int) -> float:
        return 0.0


@dataclass(frozen=True)
class QSGD:
    """Random quantisation (Alistarh et al. 2017): ‖x‖₂·sign(x_i)·ξ_i, with ξ_i ∈ {0, 1/s, …, 1} and E[ξ_i] = |x_i|/‖x‖₂.

    ``levels`` is s. A value between two levels goes to the nearer one more often, just so that its mean is right. Sent:
    the norm in fp32, and ⌈log₂(2s + 1)⌉ bits a value. ω = min(d/s², √d/s).
    """

    levels: int = 4
    unbiased = True

    def __post_init__(self) -> None:
        _at_least_one("levels", self.levels)

    @property
    def bits(self) -> int:
        """Bits of a value: sign and level, 2s + 1 of them."""
        return (2 * self.levels).bit_length()

    def encode(self, x: Tensor, chance: torch.Generator) -> Tensor:
        norm = x.norm()
        scaled = x.abs() / norm.clamp(min=torch.finfo(x.dtype).tiny) * self.levels
        below = scaled.floor()
        level = below + (torch.rand(x.shape, generator=chance) < scaled - below)
        codes = (level.clamp(max=self.levels) * x.sign()).long() + self.levels
        return torch.cat([raw_bytes(norm[None]), pack(codes, self.bits)])

    def decode(self, packed: Tensor, d: int) -> Tensor:
        levels = unpack(packed[4:], self.bits, d) - self.levels
        return floats(packed[:4]) * levels / self.levels

    def size(self, d: int) -> int:
        return 4 + packed_bytes(d, self.bits)

    def constant(self, d: int) -> float:
        return min(d / self.levels**2, math.sqrt(d) / self.levels)


@dataclass(frozen=True)
class Natural:
    """Natural compression (Horváth et al. 2022): to one of the two powers of two around a value, at random. ω = 1/8.

    Sent: sign and exponent, 9 bits a value. Values below the smallest normal number of fp32 become 0.
    """

    unbiased = True

    def encode(self, x: Tensor, chance: torch.Generator) -> Tensor:
        mantissa, exponent = torch.frexp(x.abs())  # |x| = mantissa · 2^exponent, mantissa in [1/2, 1)
        up = torch.rand(x.shape, generator=chance) < 2 * mantissa - 1
        # Of 2^(e − 1) and 2^e; 0 stands for 0, the rest for exponents from -126 on.
        codes = (exponent + up - 1 + 127).clamp(0, 255).long()
        codes = torch.where(x.abs() < torch.finfo(torch.float32).tiny, 0, codes)
        return pack(codes * 2 + (x < 0), 9)

    def decode(self, packed: Tensor, d: int) -> Tensor:
        codes = unpack(packed, 9, d)
        size = torch.ldexp(torch.ones(d), (codes // 2 - 127).int())
        return torch.where(codes // 2 == 0, 0.0, size * (1 - 2 * (codes % 2)))

    def size(self, d: int) -> int:
        return packed_bytes(d, 9)

    def constant(self, d: int) -> float:
        return 1 / 8


@dataclass(frozen=True)
class Sign:
    """One bit a value: mean(|x|)·sign(x) (Seide et al. 2014; scaled as Karimireddy et al. 2019). δ ≥ 1/d.

    δ is ‖x‖₁²/(d·‖x‖₂²) of the vector at hand: 2/π for normally distributed values.
    """

    unbiased = False

    def encode(self, x: Tensor, chance: torch.Generator) -> Tensor:
        return torch.cat([raw_bytes(x.abs().mean()[None]), pack((x >= 0).long(), 1)])

    def decode(self, packed: Tensor, d: int) -> Tensor:
        return floats(packed[:4]) * (2 * unpack(packed[4:], 1, d) - 1)

    def size(self, d: int) -> int:
        return 4 + packed_bytes(d, 1)

    def constant(self, d: int) -> float:
        return 1 / d


@dataclass(frozen=True)
class RandK:
    """k = ⌈``share``·d⌉ values drawn at random. With ``scaled`` times d/k, and so unbiased: ω = d/k − 1; else δ = k/d.

    Sent: 4 bytes for each, and the 8 of the seed from which the receiver draws the same places.
    """

    share: float = 0.01
    scaled: bool = True

    def __post_init__(self) -> None:
        check_share(self.share)

    @property
    def unbiased(self) -> bool:
        """Whether what arrives is right on average."""
        return self.scaled

    def encode(self, x: Tensor, chance: torch.Generator) -> Tensor:
        seed = torch.randint(2**62, (1,), generator=chance)
        return torch.cat([seed.view(torch.uint8), raw_bytes(x[self._places(seed, len(x))])])

    def decode(self, packed: Tensor, d: int) -> Tensor:
        values = floats(packed[8:])
        at = self._places(packed[:8].clone().view(torch.int64), d)
        return torch.zeros(d).index_copy(0, at, values * (d / len(values) if self.scaled else 1))

    def _places(self, seed: Tensor, d: int) -> Tensor:
        chance = torch.Generator().manual_seed(int(seed.item()))
        return torch.randperm(d, generator=chance)[: kept(self.share, d)]

    def size(self, d: int) -> int:
        return 8 + 4 * kept(self.share, d)

    def constant(self, d: int) -> float:
        share = kept(self.share, d) / d
        return 1 / share - 1 if self.scaled else share


@dataclass(frozen=True)
class FP8:
    """Blocks of E4M3 with an fp32 scale each, rounded to nearest: 8 bits a value. δ = 1 − 2⁻⁸ but for what underflows.

    A value is off by at most 1/16 of itself, one below 2⁻⁶/448 of its block's largest by at most 2⁻¹⁰/448 of that.
    """

    block: int = 128
    unbiased = False

    def __post_init__(self) -> None:
        _at_least_one("block", self.block)

    def encode(self, x: Tensor, chance: torch.Generator) -> Tensor:
        padded = torch.nn.functional.pad(x, (0, -len(x) % self.block)).view(-1, self.block)
        scale = (padded.abs().amax(1) / 448).clamp(min=torch.finfo(torch.float32).tiny)
        codes = (padded / scale[:, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
        return torch.cat([raw_bytes(scale), codes.view(torch.uint8).view(-1)[: len(x)]])

    def decode(self, packed: Tensor, d: int) -> Tensor:
        blocks = -(-d // self.block)
        scale = floats(packed[: 4 * blocks]).repeat_interleave(self.block)[:d]
        return packed[4 * blocks :].view(torch.float8_e4m3fn).float() * scale

    def size(self, d: int) -> int:
        return d + 4 * -(-d // self.block)

    def constant(self, d: int) -> float:
        return 1 - 2**-8 - self.block * (2**-10 / 448) ** 2


@dataclass(frozen=True)
class MultiStep:
    """``rounds`` = R messages instead of one: each has what the ones before have left (Huang et al. 2022, FCC).

    v ← v + C(x − v), from v = 0. Of a contractive C: δ becomes 1 − (1 − δ)^R.
    """

    compressor: Compressor
    rounds: int = 2
    unbiased = False

    def __post_init__(self) -> None:
        _at_least_one("rounds", self.rounds)
        if self.compressor.unbiased:
            raise ConfigError(
                f"compressor is {self.compressor}, but must be contractive: TopK, Sign, FP8, RandK unscaled"
            )

    def encode(self, x: Tensor, chance: torch.Generator) -> Tensor:
        messages = []
        for _ in range(self.rounds):
            messages.append(self.compressor.encode(x, chance))
            x = x - self.compressor.decode(messages[-1], len(x))
        return torch.cat(messages)

    def decode(self, packed: Tensor, d: int) -> Tensor:
        messages = packed.view(self.rounds, -1)
        return torch.stack([self.compressor.decode(message, d) for message in messages]).sum(0)

    def size(self, d: int) -> int:
        return self.rounds * self.compressor.size(d)

    def constant(self, d: int) -> float:
        return 1 - (1 - self.compressor.constant(d)) ** self.rounds


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} is {value}, but must be at least 1")
