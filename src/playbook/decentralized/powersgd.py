"""PowerSGD: gradients of matrices as products of two thin ones (Vogels et al. 2019).

Of a gradient M (a, b) two factors are sent, P (a, r) and Q (b, r): r·(a + b) numbers instead of a·b. One power iteration
a step, from the Q of the step before, follows the largest singular vectors. Sums of factors are factors of sums, P = mean
(M_i·Q) and Q = mean (M_iᵀ·P̂), so that no node needs the messages of single others. Error feedback keeps the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from playbook.decentralized.network import Gradient, Network
from playbook.errors import ConfigError
from playbook.seeding import derive_seed


def factors(shapes: Iterable[Sequence[int]], rank: int) -> tuple[int, int]:
    """Numbers in the two all-reduces of a step, for these ``shapes``: all P with what is sent whole, and all Q.

    r·a and r·b for a matrix (a, b): the longer its sides, the smaller a share of a·b this is. See :class:`PowerSGD`.
    """
    first = second = 0
    for a, b in map(_matrix, shapes):
        first += rank * a if _smaller(a, b, rank) else a * b
        second += rank * b if _smaller(a, b, rank) else 0
    return first, second


def _matrix(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of a tensor: of its first dim, and of all others."""
    return (shape[0], math.prod(shape[1:])) if len(shape) else (1, 1)


def _smaller(a: int, b: int, rank: int) -> bool:
    """Whether factors of a matrix (a, b) are smaller than it is."""
    return rank * (a + b) < a * b


class PowerSGD:
    """SGD on gradients of ``rank`` r; ``x`` (rows, d) are parameters of these ``shapes`` end to end, equal in all rows.

    Algorithms 1 and 2 of the paper: with e_i what is left, M_i = g_i + e_i; P̂ = orthonormal columns of mean (M_i·Q);
    Q = mean (M_iᵀ·P̂); M̂ = P̂·Qᵀ; e_i ← M_i − M̂; m ← β·m + M̂; x ← x − γ·(M̂ + m) for a ``momentum`` β above 0.
    Of a tensor the first dim is that of rows. Vectors, and matrices of which the factors are not smaller, are sent whole.
    """

    def __init__(
        self,
        network: Network,
        shapes: Sequence[Sequence[int]],
        x: Tensor,
        lr: float,
        rank: int = 4,
        momentum: float = 0.0,
        seed: int = 0,
    ):
        if rank < 1:
            raise ConfigError(f"rank is {rank}, but must be at least 1")
        sizes = [math.prod(shape) for shape in shapes]
        if sum(sizes) != x.shape[1]:
            raise ConfigError(f"shapes have {sum(sizes)} elements together, but x has {x.shape[1]} columns")
        self.network, self.rank, self.lr, self.momentum = network, rank, lr, momentum
        self.x, self.steps = x, 0
        self.left, self.found = torch.zeros_like(x), torch.zeros_like(x[0])
        self.m: Tensor | float = 0.0
        chance = torch.Generator().manual_seed(derive_seed(seed, "the first Q"))
        #: Of each tensor its matrix (a, b), and Qᵀ (r, b) of the last step, None for one that is sent whole.
        self.sizes = [_matrix(shape) for shape in shapes]
        self.q = [self._first_q(*size, x, chance) for size in self.sizes]

    def _first_q(self, a: int, b: int, x: Tensor, chance: torch.Generator) -> Tensor | None:
        if not _smaller(a, b, self.rank):
            return None
        return torch.randn(self.rank, b, generator=chance, dtype=x.dtype).to(x.device)

    def step(self, gradient: Gradient) -> None:
        """One step of all nodes here."""
        found = self.update(gradient(self.x, self.network.nodes, self.steps))
        if self.momentum:
            self.m = self.momentum * self.m + found
        self.x = self.x - self.lr * (found + self.m)
        self.steps += 1

    def update(self, g: Tensor) -> Tensor:
        """M̂ of all tensors, (d,), from the gradients (rows, d) of the nodes here: two all-reduces.

        Every step gives the same memory: nothing as large as the parameters is allocated. Thin factors are kept as rows,
        Pᵀ (r, a) and Qᵀ (r, b), with which a CPU multiplies up to twenty times as fast as with columns.
        """
        self.left += g  # M_i, until what is found is taken away
        lefts, found = self._matrices(self.left), self._matrices(self.found)  # (rows, a, b), (a, b)
        sent = self._mean([m if q is None else q @ m.mT for m, q in zip(lefts, self.q, strict=True)])
        p = [t if q is None else torch.linalg.qr(t.mT).Q.mT for t, q in zip(sent, self.q, strict=True)]
        low = [i for i, q in enumerate(self.q) if q is not None]
        for i, factor in zip(low, self._mean([p[i] @ lefts[i] for i in low]), strict=True):
            self.q[i] = factor
        for m, into, t, q in zip(lefts, found, p, self.q, strict=True):
            if q is None:
                into.copy_(t)
                m.zero_()
            else:
                m.sub_(torch.mm(t.mT, q, out=into))
        return self.found

    def _matrices(self, flat: Tensor) -> list[Tensor]:
        """Views (…, a, b) of values (…, d)."""
        parts = flat.split([a * b for a, b in self.sizes], dim=-1)
        return [part.unflatten(-1, size) for part, size in zip(parts, self.sizes, strict=True)]

    def _mean(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The mean over all nodes of each of some tensors (rows, …), in one message."""
        if not tensors:
            return []
        flat = torch.cat([t.flatten(1) for t in tensors], dim=1)
        mean = self.network.mean(flat)[0]
        sizes = [t[0].numel() for t in tensors]
        return [part.view(t.shape[1:]) for part, t in zip(mean.split(sizes), tensors, strict=True)]
