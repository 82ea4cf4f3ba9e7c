"""Which operations run as one kernel, as far as that changes what is kept in memory, and what they work with.

`EVERYTHING` is what a model of `model.ops.Ops.fused()` has; the others describe runs of other frameworks.
"""

from __future__ import annotations

from collections.abc import Iterable

from playbook._checks import unknown
from playbook.errors import ConfigError

#: What can be fused, by name, and what that means for memory.
FUSED = {
    "norms": "a norm keeps its input and statistics in fp32, on every device",
    "swiglu": "silu(gate)·up keeps gate and up, and no activation (Megatron-LM does so for --swiglu unless told "
    "--no-bias-swiglu-fusion)",
    "attention": "values narrower than keys are not padded, and backward adds up no gradient of the queries in fp32",
    "cross-entropy": "the loss keeps the logits in the precision of matrix products, and their gradient takes their "
    "place (Megatron-LM: --cross-entropy-loss-fusion --cross-entropy-fusion-impl te)",
    "linear-cross-entropy": "head and loss go over the tokens in chunks and keep no logits, but the gradients of the "
    "head's input and weight; over tp ranks it is cross-entropy",
    "weight-gradients": "a weight's gradient is added inside the product that makes it, with no matrix of its own "
    "(Megatron-LM, unless told --no-gradient-accumulation-fusion)",
}
#: What frameworks keep otherwise than the book's trainer, by name.
KEPT = {
    "logits": "logits stay until backward ends, beside their gradient (LLM Foundry: Composer's state has them, and "
    "flash-attn's CrossEntropyLoss leaves them as they are)",
    "remainders": "of a master weight, the 16 bits that its weight in bf16 lacks (apex's DistributedFusedAdam with "
    "store_param_remainders, as NeMo sets it)",
    "dummy-gradients": "an empty matrix for each shape of a block's weights, which autograd gets where a product has "
    "added the gradient already (Transformer Engine 2, get_dummy_wgrad)",
    "attention-output": "what attention gives to Ulysses' exchange, and what that gives to the next product "
    "(Transformer Engine from 2.8 on, cp_comm_type a2a)",
    "gathered-input": "the head's input, gathered from sequence-parallel ranks into a buffer that stays (Megatron-LM, "
    "GlobalMemoryBuffer)",
}
#: What the book's kernels do.
EVERYTHING = frozenset({"norms", "swiglu", "attention", "linear-cross-entropy"})
NOTHING: frozenset[str] = frozenset()
CHUNK = 2048  # tokens: by its datasheet an H100 multiplies them five times as long as it moves dW in fp32


def load_kept(names: Iterable[str]) -> frozenset[str]:
    """A set of names of `KEPT`. Raises ConfigError for an unknown one."""
    for name in names:
        if name not in KEPT:
            raise ConfigError(unknown("keeps", str(name), KEPT))
    return frozenset(names)


def load_fused(what: bool | str | Iterable[str]) -> frozenset[str]:
    """A set of names of `FUSED`, from one, from names with commas between them, or from true or "all": `EVERYTHING`.

    Raises ConfigError for an unknown name, and for both kinds of cross-entropy.
    """
    if isinstance(what, bool) or what in ("all", "none", ""):
        return EVERYTHING if what in (True, "all") else NOTHING
    names = [name.strip() for name in what.split(",")] if isinstance(what, str) else list(what)
    for name in names:
        if name not in FUSED:
            raise ConfigError(unknown("fused", str(name), ("all", "none", *FUSED)))
    if {"cross-entropy", "linear-cross-entropy"} <= set(names):
        raise ConfigError("fused has both cross-entropy and linear-cross-entropy: give one of them")
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
