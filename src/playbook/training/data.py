"""Text to token batches. The global batch of a step depends on the seed and the step alone; ranks take slices of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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
