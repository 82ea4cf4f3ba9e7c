"""What layers with a state in place of attention (`recurrent.Recurrent`) keep, compute and read, for the planner.

What backward needs is what the kernels' sources say that they keep: ``causal_conv1d`` its input,
``MambaSplitConv1dScanCombinedFn`` of mamba_ssm what its projection gave and its output,
``ChunkGatedDeltaRuleFunction`` and ``ChunkKDAFunction`` of flash-linear-attention normalised queries and keys, values,
decays and the inverse of each chunk. Times are a roofline of the products of chunks, held to no published time. Standard
library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from playbook.block import Linear, evaluate
from playbook.planning.operations import Operation
from playbook.planning.saved import read
from playbook.planning.terms import Make, Term
from playbook.recurrent import DELTA, GIVES, MIXED, READS, Recurrent

#: Tokens that kernels take together: of a chunk products are matrices, from chunk to chunk a state is handed on.
CHUNK = {"mamba2": 256, "delta": 64, "kda": 64, "lightning": 256}
_STATE = {"output of the state": "H*P*c", "gate": "H*P*c"}
_NORMAL = {
    "convolution input": f"{MIXED}*c", "queries and keys, normalised": "2*J*N*c", "their norms (fp32)": "2*J*4",
    "values": "H*P*c", "strength": "H*c", **_STATE, "norm statistics": "H*4",
}  # fmt: skip
#: Bytes of a token that autograd keeps beside the inputs of linear layers; of what ranks have WHOLE no share.
KEPT = {
    "mamba2": {
        "what the projection gave": "(2*H*P+2*J*N+H)*c", "output of the state": "H*P*c", "norm statistics": "J*4",
    },
    "delta": {**_NORMAL, "decay, its input and its sums (fp32)": "3*H*4", "inverse of each chunk": "H*64*c"},
    "kda": {
        **_NORMAL, "latents of decay and gate": "2*P*c", "decay, before its activation": "J*N*c",
        "scores and inverse of each chunk": "2*H*64*c",
    },
    "lightning": {
        "activation input": f"{MIXED}*c", "queries, keys, values": f"{MIXED}*c", **_STATE, "norm output": "H*P*c",
        "norm statistics of all heads": "4",
    },
    "convolution": {"what the projection gave": "3*H*P*c", "convolution, in and out": "2*H*P*c"},
}  # fmt: skip
WHOLE = ("latents of decay and gate", "norm statistics of all heads")


def kept(of: Recurrent, make: Make) -> list[Term]:
    """What autograd keeps of a micro-batch, with the kernels named above."""
    terms = read(make, "attention", READS, "b*s", "h", "r")
    for name, formula in KEPT[of.rule].items():
        terms.append(make("attention", name, f"b*s*{formula}" + "//t" * (name not in WHOLE)))
    # The kernel of Mamba 2 computes all else again, the output projection's input too.
    return terms if of.rule == "mamba2" else [*terms, *read(make, "attention", GIVES, "b*s", "H*P", "t")]


def gated(of: Recurrent, make: Make, normed: bool) -> list[Term]:
    """What the gate of the other blocks' attention keeps: queries that are ``normed`` are a view of a tensor that
    holds the gate as it was before its activation, too."""
    names = ("attention output, before its gate", "gate", *["gate, before its activation"] * normed)
    return [make("attention", name, "b*s*a*e*c//t") for name in names if of.gate]


def backward(of: Recurrent, make: Make) -> list[Term]:
    """What its backward has at once: gradients of what goes in and comes out, and the states of all chunks again."""
    terms = [
        make("attention", "gradient of the residual stream", "b*s*h*x//r"),
        make("attention", "gradient of the state's output", "b*s*H*P*c//t"),
        make("attention", "gradients of queries, keys, values", f"b*s*{MIXED}*c//t"),
    ]
    if of.rule in CHUNK:
        states = f"2*b*(s//{CHUNK[of.rule]}+1)*H*N*P*c//t"
        terms.append(make("attention", "states of the chunks, and their gradients", states))
    return terms


def flops(of: Recurrent, tokens: int) -> int:
    """FLOPs forward of what is no linear layer, as Megatron-LM counts them (``num_floating_point_operations``, 2026:
    the scan of Mamba 2, and four products of Gated DeltaNet beside its convolution)."""
    each = of.heads * of.head_dim
    delta = 2 * (4 * each * of.state + of.kernel * (2 * of.groups * of.state + each))
    forms = {
        "mamba2": 7 * each * of.state,
        "lightning": 4 * each * of.state,
        "convolution": 2 * of.kernel * each,
    }
    return tokens * forms.get(of.rule, delta)


def passes(of: Recurrent, made: Any, sizes: Any, rows: Sequence[Linear]) -> None:
    """Add the operations of a block to those ``made``: projections, convolution, chunks, norm and gate."""
    *projections, output = rows
    made.linears(projections, sizes, sizes.tokens)
    each, mixed = (evaluate(f"{width}//t", sizes.values) for width in ("H*P", MIXED))
    stream = float(sizes.tokens * sizes.recipe.compute)
    if of.rule == "convolution":  # with the products before and after it
        made.over("convolution", 6 * stream * each, 9 * stream * each, kernels=3)
    else:
        made.over("convolution", 2 * stream * mixed, 3 * stream * mixed)
        _chunks(of, made, sizes, stream * (mixed + each))
        made.over("norm and gate", 3 * stream * each, 5 * stream * each)
    made.linears([output], sizes, sizes.tokens)


def _chunks(of: Recurrent, made: Any, sizes: Any, moved: float) -> None:
    """Products within chunks of Q tokens and with their states; backward computes the forward's states again."""
    heads, q, n, p = of.heads // sizes.layout.tp, CHUNK[of.rule], of.state, of.head_dim
    scores = 2 * q * n * (of.groups / of.heads if of.rule == "mamba2" else 1)
    inside = scores + 2 * q * p + 4 * n * p
    if (
        of.rule in DELTA
    ):  # and what a chunk takes away: its keys with each other, the inverse, the values that are left
        inside += 2 * scores + q * q + 2 * q * p + 2 * n * p
    work = sizes.tokens * heads * inside
    states = sizes.tokens / q * heads * n * p * sizes.recipe.compute
    one = Operation("state", "attention", sizes.tokens, q, n, heads, work)
    made.forward.append(one)
    made.inputs.append(one._replace(name="state, backward", flops=3 * work))
    made.over("states of chunks", moved + 2 * states, 2 * moved + 6 * states, kernels=2)
