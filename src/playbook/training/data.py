"""Text to token batches. The global batch of a step depends on the seed and the step alone; ranks take slices of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from playbook.errors import ConfigError, DataError
from playbook.seeding import derive_seed

BYTES = 256  # vocabulary of byte-level text


@dataclass(frozen=True)
class Corpus:
    """A text as one long row of tokens: ``tokens`` (n,) uint8, here the bytes of its UTF-8 form."""

    name: str
    tokens: Tensor
    vocab: int = BYTES

    def __len__(self) -> int:
        return len(self.tokens)


def load_corpus(path: str | Path | None = None) -> Corpus:
    """The text at ``path``, or the English documentation that ships with Python itself (about 466 kB).

    Raises DataError when the file cannot be read, or has less than two bytes.
    """
    name, raw = ("pydoc_data.topics", _python_topics()) if path is None else (str(path), _read(Path(path)))
    if len(raw) < 2:
        raise DataError(f"data file {name!r} holds {len(raw)} bytes of text: training needs at least 2")
    return Corpus(name, torch.frombuffer(bytearray(raw), dtype=torch.uint8))


def _python_topics() -> bytes:
    """Chapters of the Python language reference: on every machine that has Python."""
    from pydoc_data import topics

    return "\n\n".join(topics.topics[name] for name in sorted(topics.topics)).encode()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DataError(
            f"data file {str(path)!r} cannot be read ({reason}): give the path of a text file"
        ) from error


class TokenBatches:
    """Random windows of a corpus: ``batch(step)`` gives inputs and targets, both (global_batch, seq) int64.

    Step ``n`` of seed ``k`` is the same batch on every machine and for every layout, so a run can be repeated, resumed in
    the middle, or cut over any number of ranks. Raises DataError when the text is shorter than one window.
    """

    def __init__(self, corpus: Corpus, global_batch: int, seq: int, seed: int = 0):
        for field, value in (("global_batch", global_batch), ("seq", seq)):
            if value < 1:
                raise ConfigError(f"{field} is {value}, but must be at least 1")
        if len(corpus) < seq + 1:
            raise DataError(
                f"data {corpus.name!r} has {len(corpus)} tokens, but seq={seq} needs at least {seq + 1}: "
                f"take a longer text or a shorter seq"
            )
        self.corpus, self.global_batch, self.seq, self.seed = corpus, global_batch, seq, seed

    def batch(self, step: int, rank: int = 0, ranks: int = 1) -> tuple[Tensor, Tensor]:
        """Inputs (B, s) and, one token further on, targets (B, s); of ``ranks`` replicas each gets its B / ranks rows.

        Raises ConfigError when the rows cannot be shared out evenly.
        """
        if self.global_batch % ranks:
            raise ConfigError(
                f"global_batch is {self.global_batch}, but must be a multiple of the {ranks} ranks"
            )
        # Seeded by both numbers: no state to save, nothing to replay.
        generator = torch.Generator().manual_seed(derive_seed(self.seed, f"batch {step}"))
        starts = torch.randint(len(self.corpus) - self.seq, (self.global_batch, 1), generator=generator)
        starts = starts.chunk(ranks)[rank]
        windows = self.corpus.tokens[starts + torch.arange(self.seq + 1)].long()  # (B, s + 1)
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    def __repr__(self) -> str:
        return f"TokenBatches({self.corpus.name!r}, global_batch={self.global_batch}, seq={self.seq}, seed={self.seed})"


class Sampler:
    """Which samples a rank takes in a step, from ``length`` samples: its share of a shuffled epoch.

    Every epoch is a permutation drawn from (seed, epoch) alone, cut into batches of ``global_batch``; what is left over
    at its end waits for another epoch. Nothing has to be saved to resume at step n: ask for step n. Every sample is used
    at most once in an epoch; torch's DistributedSampler repeats some so that the shares come out even.

    Raises ConfigError when the ranks cannot have equal shares, ``rank`` is none of them, or ``length`` does not fill a
    batch.
    """

    def __init__(self, length: int, global_batch: int, rank: int = 0, ranks: int = 1, seed: int = 0):
        if not 0 <= rank < ranks:
            raise ConfigError(f"rank is {rank}, but must be from 0 to {ranks - 1}: there are {ranks} ranks")
        if global_batch < 1 or global_batch % ranks:
            raise ConfigError(f"global_batch is {global_batch}, but must be a multiple of the {ranks} ranks")
        if length < global_batch:
            raise ConfigError(f"length is {length} samples, but one batch needs global_batch={global_batch}")
        self.length, self.global_batch, self.seed = length, global_batch, seed
        self.rank, self.ranks = rank, ranks
        self._epoch: tuple[int, Any] = (-1, None)

    def indices(self, step: int) -> Tensor:
        """The samples of this rank in a step, (global_batch / ranks,) int64. Raises ConfigError for a step below 0."""
        if step < 0:
            raise ConfigError(f"step is {step}, but must be at least 0")
        epoch, place = divmod(step, self.length // self.global_batch)
        start = place * self.global_batch + self.rank * self.share
        return self._order(epoch)[start : start + self.share]

    @property
    def share(self) -> int:
        """Samples of one rank in a step."""
        return self.global_batch // self.ranks

    def _order(self, epoch: int) -> Tensor:
        if self._epoch[0] != epoch:
            generator = torch.Generator().manual_seed(derive_seed(self.seed, f"epoch {epoch}"))
            self._epoch = epoch, torch.randperm(self.length, generator=generator)
        return self._epoch[1]
