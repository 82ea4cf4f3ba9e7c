"""Rows of packed documents: a rank's tokens of them, and attention inside each.

Documents are cut over context-parallel ranks as `pieces.py` says, and what of their attention a rank computes
are blocks, as of a whole sample: rings, gathered keys and swapped heads work as ever, and one device is a ring of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from playbook.documents.pieces import Documents
from playbook.layout import Layout
from playbook.model.attention import Positions
from playbook.model.ops import IGNORE, Ops
from playbook.parallel.context import RingCore
from playbook.parallel.mesh import Mesh


def own_documents(
    inputs: Tensor,
    targets: Tensor,
    lengths: Sequence[Sequence[int]],
    micro_batch: int,
    mesh: Mesh | None = None,
) -> tuple[Tensor, Tensor, list[Positions]]:
    """As `training.data.own_tokens`, of rows (B, s) of documents of these ``lengths``.

    The rows of a micro-batch become one: inputs and targets are (B / micro_batch, micro_batch·s / cp), and where they
    stand is a list, of each micro-batch its own. What is added to a sample (`Layout.padded`) is its last document.
    """
    layout = mesh.layout if mesh else Layout()
    more = layout.padded(inputs.shape[1]) - inputs.shape[1]
    x, y = F.pad(inputs, (0, more)), F.pad(targets, (0, more), value=IGNORE)
    x, y = (rows.reshape(len(rows) // micro_batch, -1) for rows in (x, y))
    fits = "contiguous" if layout.context == "ulysses" or layout.cp == 1 else "documents"
    found: list[tuple[Tensor, Tensor, Positions]] = []
    for i in range(len(x)):
        rows = lengths[i * micro_batch : (i + 1) * micro_batch]
        filled = tuple(n for row in rows for n in (*row, *[more] * bool(more)))
        documents = Documents(layout.placement or fits, x.shape[1], layout.cp, lengths=filled)
        pieces = documents.pieces[mesh.index("cp") if mesh else 0]
        own = torch.cat([torch.arange(p.start, p.stop) for p in pieces]).to(x.device)
        within = torch.cat([torch.arange(p.start, p.stop) - p.document for p in pieces]).to(x.device)
        found.append((x[i, own], y[i, own], (within, documents)))
    xs, ys, where = zip(*found, strict=True)
    return torch.stack(xs), torch.stack(ys), list(where)


class _Alone:
    """A ring of one rank."""

    rank, ranks = 0, 1

    def source(self, step: int) -> int:
        return 0

    def arrive(self) -> None:
        """Nothing was sent."""


class _OneDevice(RingCore):
    def __init__(self, ops: Ops):
        self.ring: Any = _Alone()
        self.ops = ops


def attention(q: Tensor, k: Tensor, v: Tensor, documents: Documents, ops: Ops) -> Tensor:
    """Attention of each token to those of its document before it and itself, as `Ops.attention`, on one device."""
    return _OneDevice(ops)(q, k, v, causal=documents)


@lru_cache(maxsize=64)
def ends(documents: Documents, device: torch.device) -> tuple[Tensor, int]:
    """Where each document ends, (documents + 1,) int32 from 0 on, and the longest: for kernels that take all at once."""
    whole = [0, *accumulate(documents.lengths)]
    return torch.tensor(whole, dtype=torch.int32, device=device), max(documents.lengths)


def hidden(documents: Documents, device: Any) -> Tensor:
    """Which pairs of query and key are of two documents, (s, s): the naive way, with all scores in memory."""
    of = torch.arange(len(documents.lengths)).repeat_interleave(torch.tensor(documents.lengths)).to(device)
    return of[:, None] != of
