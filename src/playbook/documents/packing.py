"""Samples of packed documents: a row has several of them whole, and next to nothing that only fills it up.

Windows of one long text begin and end anywhere, and attention goes across whatever they have side by side. Documents
alone would be rows of all lengths. Packed, rows are of one length again, and attention and positions stay inside of each
document (`pieces.py`).
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from typing import NamedTuple

import torch
from torch import Tensor

from playbook.errors import ConfigError, DataError
from playbook.layout.tokens import OF_DOCUMENTS
from playbook.model.ops import IGNORE
from playbook.precision.recipes import load_fp8
from playbook.seeding import derive_seed
from playbook.training.config import TrainConfig
from playbook.training.data import Corpus, TokenBatches


class Stretch(NamedTuple):
    """``length`` tokens of a text, each with the one behind it as its target."""

    start: int
    length: int


def documents_of(corpus: Corpus, most: int) -> list[Stretch]:
    """The documents of a text, which end where a line is empty; those of more than ``most`` tokens in pieces.

    That is how BERT's texts were given (github.com/google-research/bert, "Pre-training"). A document's last target is the
    end of its last line; no token of it is lost by being cut.
    """
    text = corpus.tokens.numpy().tobytes()
    found = []
    for match in re.finditer(rb"[^\n](?:[^\n]|\n(?!\n))*", text):
        stop = min(match.end(), len(text) - 1)
        cuts = range(match.start(), stop, most)
        found += [Stretch(start, min(most, stop - start)) for start in cuts]
    return found


def best_fit(lengths: list[int], room: int) -> list[list[int]]:
    """Rows of at most ``room`` tokens: of each the indices of its documents, every one in one row.

    The longest first, each into the fullest row that has room for it (best-fit decreasing; Ding et al. 2024, "Fewer
    truncations improve language modeling", arXiv 2404.10830). A length above ``room`` finds no row.
    """
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # room that is left, and the row
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        place = bisect_left(free, (lengths[i], 0))
        left, row = free.pop(place) if place < len(free) else (room, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(i)
        insort(free, (left - lengths[i], row))
    return rows


class PackedBatches(TokenBatches):
    """Rows of documents of a corpus in place of its windows; ``batch(step)`` has their lengths beside inputs and targets.

    Every row comes once before any comes again, in an order of ``seed``. Raises DataError as `TokenBatches`, and for a
    text without a document.
    """

    def __init__(self, corpus: Corpus, global_batch: int, seq: int, seed: int = 0):
        super().__init__(corpus, global_batch, seq, seed)
        self.documents = documents_of(corpus, seq)
        if not self.documents:
            raise DataError(f"data {corpus.name!r} has no document: it is empty lines alone")
        self.rows = best_fit([document.length for document in self.documents], seq)

    def batch(self, step: int, rank: int = 0, ranks: int = 1) -> tuple[Tensor, Tensor, list[tuple[int, ...]]]:  # type: ignore[override]
        """Inputs and targets (B, s) as `TokenBatches.batch`, and the lengths of each row's documents, which fill it."""
        if self.global_batch % ranks:
            raise ConfigError(f"global_batch is {self.global_batch}, but must be a multiple of {ranks} ranks")
        share = self.global_batch // ranks
        first = step * self.global_batch + rank * share
        each = [self._row(i) for i in range(first, first + share)]
        inputs, targets, lengths = zip(*each, strict=True)
        return torch.stack(inputs), torch.stack(targets), list(lengths)

    def _row(self, i: int) -> tuple[Tensor, Tensor, tuple[int, ...]]:
        turn, place = divmod(i, len(self.rows))
        generator = torch.Generator().manual_seed(derive_seed(self.seed, f"rows {turn}"))
        order = torch.randperm(len(self.rows), generator=generator)
        some = [self.documents[document] for document in self.rows[int(order[place])]]
        rest = self.seq - sum(document.length for document in some)
        where = torch.cat([torch.arange(start, start + length) for start, length in some])
        tokens = self.corpus.tokens
        x = torch.cat([tokens[where].long(), torch.zeros(rest, dtype=torch.long)])
        y = torch.cat([tokens[where + 1].long(), torch.full((rest,), IGNORE)])
        return x, y, (*(document.length for document in some), *[rest] * bool(rest))


def check(config: TrainConfig) -> None:
    """Raise ConfigError for what does not go with packed documents, or without them."""
    if config.documents != "packed":
        raise ConfigError(
            f"placement is {config.layout.placement!r}, but documents are joined: make them packed, or take zigzag"
        )
    if config.layout.cp > 1 and config.fp8 and load_fp8(config.fp8).dtype == "fp4":
        raise ConfigError(
            f"documents are packed and cp={config.layout.cp}, but fp8={config.fp8} has blocks of neighbouring tokens, "
            "which pieces of documents cut: leave one out"
        )
    if config.compile:
        raise ConfigError(
            "compile is on, but blocks of packed documents are others in each step: leave one out"
        )
    for name in OF_DOCUMENTS if config.layout.cp == 1 else ():
        if config.layout.placement == name:
            raise ConfigError(f"placement is {name!r}, but cp is 1: leave it out")
