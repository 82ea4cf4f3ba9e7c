"""Text to token batches. The global batch of a step depends on the seed and the step alone; ranks take slices of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from playbook.errors import ConfigError, DataError, LayoutError
from playbook.model.transformer import IGNORE
from playbook.parallel.context import RankTokens
from playbook.parallel.mesh import Mesh
from playbook.seeding import derive_seed
from playbook.text import python_topics

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
    """The text at ``path``, or the English documentation of Python's language (466 kB).

    Raises DataError when the file cannot be read, or has less than two bytes.
    """
    name, raw = ("pydoc_data.topics", python_topics()) if path is None else (str(path), _read(Path(path)))
    if len(raw) < 2:
        raise DataError(f"data file {name!r} holds {len(raw)} bytes of text: training needs at least 2")
    return Corpus(name, torch.frombuffer(bytearray(raw), dtype=torch.uint8))


def _read(path: Path) -> bytes:
    try:
        if path.is_char_device():
            raise OSError("a device, which may have no end")
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

        Raises ConfigError when the rows cannot be sharded evenly.
        """
        if self.global_batch % ranks:
            raise ConfigError(f"global_batch is {self.global_batch}, but must be a multiple of {ranks} ranks")
        # Seeded by both numbers: no state to save, nothing to replay.
        generator = torch.Generator().manual_seed(derive_seed(self.seed, f"batch {step}"))
        starts = torch.randint(len(self.corpus) - self.seq, (self.global_batch, 1), generator=generator)
        starts = starts.chunk(ranks)[rank]
        windows = self.corpus.tokens[starts + torch.arange(self.seq + 1)].long()  # (B, s + 1)
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    def __repr__(self) -> str:
        return f"TokenBatches({self.corpus.name!r}, global_batch={self.global_batch}, seq={self.seq}, seed={self.seed})"


def own_tokens(
    inputs: Tensor, targets: Tensor, mesh: Mesh, placement: str, causal: bool = True
) -> tuple[Tensor, Tensor, Tensor | None]:
    """This rank's tokens of inputs and targets (b, s), and where in their sample they are: None is from its beginning on.

    A sample that ``Layout.padded`` makes longer ends in tokens that count in no loss and that no other token sees.
    Without a ``causal`` mask they would be seen: then LayoutError is raised.
    """
    layout, seq = mesh.layout, inputs.shape[1]
    padded = layout.padded(seq)
    if layout.cp == 1 and padded == seq:
        return inputs, targets, None
    if padded != seq and not causal:
        raise LayoutError(
            f"seq is {seq}, but without a causal mask all tokens see the {padded - seq} that pad it: make it {padded}"
        )
    inputs, targets = F.pad(inputs, (0, padded - seq)), F.pad(targets, (0, padded - seq), value=IGNORE)
    kind = placement if layout.cp > 1 else "contiguous"  # an odd number of tokens has no zigzag
    positions = RankTokens(kind, padded, layout.cp).positions(mesh.index("cp"), inputs.device)
    # A position behind the sample has no angle of its own in a table that ends with it.
    return inputs[:, positions], targets[:, positions], positions.clamp(max=seq - 1)
