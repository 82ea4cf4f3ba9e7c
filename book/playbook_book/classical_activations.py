"""The classical activation formula, tensor by tensor: s·b·h·L·(34 + 5·a·s/h) bytes.

Korthikanti et al. 2022 (arXiv 2205.05198, section 4.1) add up what the backward pass of a GPT block needs
to find again. With s tokens per sample, b samples, h hidden, a heads, L layers, in 16-bit precision (2
bytes per element, 1 per element of a dropout mask)::

    attention   input of the query, key and value projections      2sbh   (one tensor, shared)
                queries and keys                                   4sbh
                softmax output                                          2as²b
                softmax dropout mask                                     as²b
                softmax after dropout                                   2as²b
                values                                             2sbh
                input of the output projection                     2sbh
                dropout mask                                        sbh
    MLP         input of the up projection                         2sbh
                input of GELU                                      8sbh
                input of the down projection                       8sbh
                dropout mask                                        sbh
    LayerNorms  two inputs                                         4sbh
                                                                  ------------
                                                                  34sbh + 5as²b

It leaves out the embedding, the last norm, the head and the loss, as well as the small statistics that
LayerNorm keeps. Selective recomputation drops the three as²b tensors: 34sbh. Full recomputation keeps each
block's input: 2sbh.

**It is a formula for one model on one implementation**: multi-head attention of total width h, an MLP of
width 4h with GELU, LayerNorm, dropout, and attention that writes its s × s matrices to memory.
FlashAttention never does, so its 5as²b are gone without any flag. For a Llama it is wrong by far.
"""

from __future__ import annotations

from playbook._checks import check_int, unknown
from playbook.errors import ConfigError, ShapeError
from playbook.layout import RECOMPUTE
from playbook.shapes import ModelShape

#: Tensors that selective recomputation computes again: those that grow with seq².
QUADRATIC = ("softmax output", "softmax dropout mask", "softmax after dropout")


def classical_layer_activations(
    shape: ModelShape, batch: int, seq: int, recompute: str = "none", *, check: bool = True
) -> dict[str, int]:
    """Bytes that one block saves for its backward pass, tensor by tensor (see the table above).

    ``recompute`` is none, selective or full. Raises :class:`ShapeError` where the formula does not hold for
    ``shape`` (``check=False`` applies it all the same), :class:`ConfigError` for sizes below 1 or an
    unknown ``recompute``.
    """
    if check:
        _check_assumptions(shape)
    if recompute not in RECOMPUTE:
        raise ConfigError(unknown("recompute", str(recompute), RECOMPUTE))
    sb = check_int("seq", seq, ConfigError) * check_int("batch", batch, ConfigError)
    if recompute == "full":
        return {"block input": 2 * sb * shape.hidden}
    tensors = _block_tensors(sb * shape.hidden, shape.heads * seq * sb)
    if recompute == "selective":
        return {name: size for name, size in tensors.items() if name not in QUADRATIC}
    return tensors


def _block_tensors(sbh: int, as2b: int) -> dict[str, int]:
    """Bytes by tensor, from the number of elements of a (b, s, h) and of a (b, a, s, s) tensor."""
    return {
        "norm 1 input": 2 * sbh,
        "qkv input": 2 * sbh,
        "queries and keys": 4 * sbh,
        "softmax output": 2 * as2b,
        "softmax dropout mask": as2b,
        "softmax after dropout": 2 * as2b,
        "values": 2 * sbh,
        "output projection input": 2 * sbh,
        "attention dropout mask": sbh,
        "norm 2 input": 2 * sbh,
        "up projection input": 2 * sbh,
        "gelu input": 8 * sbh,
        "down projection input": 8 * sbh,
        "mlp dropout mask": sbh,
    }


def classical_activation_bytes(
    shape: ModelShape, batch: int, seq: int, recompute: str = "none", *, check: bool = True
) -> int:
    """Bytes of all blocks: s·b·h·L·(34 + 5·a·s/h), 34·s·b·h·L (selective) or 2·s·b·h·L (full).

    ``batch`` samples of ``seq`` tokens on one device. Raises as :func:`classical_layer_activations`.
    """
    layer = classical_layer_activations(shape, batch, seq, recompute, check=check)
    return shape.layers * sum(layer.values())


def _check_assumptions(shape: ModelShape) -> None:
    """Raise for the first assumption of the formula that ``shape`` breaks."""
    needs = {
        "mla = none": shape.mla is None,
        "moe = none": shape.moe is None,
        "activation = gelu": shape.activation == "gelu",
        "gated = false": not shape.gated,
        "norm = layernorm": shape.norm == "layernorm",
        f"kv_heads = heads = {shape.heads}": shape.kv_heads == shape.heads,
        "head_dim = hidden / heads": shape.heads * shape.qk_dim == shape.hidden,
        f"ffn = 4 * hidden = {4 * shape.hidden}": shape.ffn == 4 * shape.hidden,
        "dropout > 0": shape.dropout > 0,
    }
    for need, met in needs.items():
        if not met:
            value = getattr(shape, need.split()[0])
            raise ShapeError(f"the classical activation formula needs {need}, got {value}")
