"""Which operations run as one kernel, and what frameworks keep otherwise, as far as that matters to memory.

`EVERYTHING` is what a model of `model.ops.Ops.fused()` has; the others describe runs of other frameworks.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pkgutil import get_data

from playbook._checks import unknown
from playbook.errors import ConfigError

_TABLES = tomllib.loads((get_data(__package__, "frameworks.toml") or b"").decode())
#: What can be fused, and what frameworks keep otherwise than the book's trainer, by name: what that means for memory.
FUSED, KEPT = _TABLES["fused"], _TABLES["kept"]
#: What the book's kernels do.
EVERYTHING = frozenset({"norms", "swiglu", "attention", "linear-cross-entropy"})
NOTHING: frozenset[str] = frozenset()
CHUNK = 2048  # tokens: by its datasheet an H100 multiplies them five times as long as it moves dW in fp32


def load_fused(what: bool | str | Iterable[str]) -> frozenset[str]:
    """A set of names of `FUSED`, from one, from names with commas between them, or from true or "all": `EVERYTHING`.

    Raises ConfigError for an unknown name, and for both kinds of cross-entropy.
    """
    if isinstance(what, bool) or what in ("all", "none", ""):
        return EVERYTHING if what in (True, "all") else NOTHING
    names = [name.strip() for name in what.split(",")] if isinstance(what, str) else what
    found = known_names(names, "fused", FUSED)
    if {"cross-entropy", "linear-cross-entropy"} <= found:
        raise ConfigError("fused has both cross-entropy and linear-cross-entropy: give one of them")
    return found


def known_names(names: Iterable[str], what: str, known: Iterable[str]) -> frozenset[str]:
    """A set of ``names``; raises ConfigError for one that is not ``known``, and for what is no list of names."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ConfigError(f"{what} must be a list of names, got {names!r}")
    for name in names:
        if name not in known:
            raise ConfigError(unknown(what, str(name), known))
    return frozenset(names)


def loss_of(fused: frozenset[str], tp: int) -> str:
    """What becomes of the loss: "linear-cross-entropy", "cross-entropy", or "" where PyTorch's operators compute it."""
    if "linear-cross-entropy" in fused:
        return "linear-cross-entropy" if tp == 1 else "cross-entropy"
    return "cross-entropy" if "cross-entropy" in fused else ""


def chunk_tokens(n: int, v: int, h: int) -> int:
    """Tokens of a chunk of linear cross-entropy: its logits (…, v) are as large as all hidden states (n, h), as in Liger
    Kernel (Hsu et al. 2024, arXiv 2410.10989, section 3.2), but they are at least `CHUNK`, or all ``n``."""
    return max(1 << max(0, -(-n // -(-v // h)) - 1).bit_length(), min(CHUNK, n))
