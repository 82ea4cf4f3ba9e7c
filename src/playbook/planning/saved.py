"""What autograd saves for backward, tensor by tensor: the activations of one micro-batch on one rank, in bytes.

Each term is one tensor that the book's model really keeps (an instrument counts them, and
tests hold the two equal to the byte, on one device and on many, with PyTorch's operators and with fused ones). Tensor
parallelism divides what lies inside its regions by t; sequence parallelism divides the rest; context parallelism divides
the tokens (Korthikanti et al. 2022, arXiv 2205.05198, sections 4.1 to 4.3).
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from playbook.block import DENSE, NORMS, Kind, linears
from playbook.layout import recomputed
from playbook.planning.fusion import NOTHING
from playbook.planning.terms import Make, Term
from playbook.planning.weights import keeps_inputs
from playbook.registry import lab
from playbook.shapes import ModelShape, MoE


def block_terms(
    shape: ModelShape,
    make: Make,
    *,
    recompute: str,
    attention: str,
    kind: Kind = DENSE,
    fused: frozenset[str] = NOTHING,
) -> list[Term]:
    """The tensors that one block keeps for one micro-batch.

    ``attention`` is "sdpa" (a flash kernel: no s × S matrix), "swapped" (that, by Ulysses) or "reference"; ``kind`` says
    what stands for its MLP, ``fused`` what runs as one kernel (`fusion.FUSED`). What is recomputed keeps its input and
    nothing else.
    """
    again = kind.again(recomputed(recompute))
    if "full" in again:
        return [make("norms", "block input", "b*s*h*x//r")]
    terms = [*_kept(shape, make, again, attention, kind, fused), *_adapters(shape, make, kind, again)]
    gone = {name for module in again for name in _DISCARDED.get(module, ())}
    gone |= {*_unread(shape, attention != "reference" and "core_attn" not in again, "mlp" in again)}
    return [t for t in terms if (t.part, t.name.removeprefix("scales of ")) not in gone]


def _unread(shape: ModelShape, flash: bool, mlp_again: bool) -> Iterator[tuple[str, str]]:
    """The inputs of linear layers that nobody keeps where these are frozen: a ``flash`` kernel keeps what it gives, ReLU
    its output, and what is computed ``again`` what it begins with."""
    if not keeps_inputs(shape, "attention"):
        if shape.norms != "parallel" or not keeps_inputs(shape, "mlp"):
            yield "attention", "projections input"
        if not flash or shape.v_dim < shape.qk_dim:
            yield "attention", "output projection input"
    if not keeps_inputs(shape, "mlp"):
        yield from [("mlp", "MLP input")] * (not mlp_again)
        yield from [("mlp", "down projection input")] * (shape.gated or shape.activation != "relu")


def second_products(shape: ModelShape, make: Make, kind: Kind) -> list[Term]:
    """What a block keeps under `fusion.KEPT`'s every-second-product."""
    terms = [
        make("norms", "block input", "b*s*h*x//r"),
        make("attention", "attention output", "b*s*a*e*c//t"),
    ]
    terms.append(make("attention", "log-sum-exp of the scores", "b*s*a*4//t"))
    products = linears(shape, kind)[::2]
    return terms + [make(o.part, f"output of {o.name}", f"b*s*{o.times}*({o.rows})*c") for o in products]


#: Outputs of norms, of experts' activations and of latents' projections, computed again from what lies before them.
_DISCARDED = {
    "layernorm": [("attention", "projections input"), ("router", "router input"), ("mlp", "MLP input"),
                  ("experts", "experts input"), ("shared experts", "MLP input")],
    "moe_act": [("experts", "activation output"), ("experts", "down projection input")],
    "mla_up_proj": [("attention", name) for name in ("queries", "keys", "values", "values, as wide as keys")],
}  # fmt: skip


def _kept(
    shape: ModelShape, make: Make, again: frozenset[str], attention: str, kind: Kind, fused: frozenset[str]
) -> list[Term]:
    first, then, second, last = NORMS[shape.norms]
    terms = _norm(make, first or then)
    if kind.recurrent:
        terms += lab("recurrent", "kept")(shape.recurrent, make)
    else:
        terms += _projections(shape, make)
        terms += _core(shape, make, "core_attn" in again, attention, padded="attention" not in fused)
        terms += read(make, "attention", "output projection input", "b*s", "a*e", "t")
        terms += lab("recurrent", "gated")(shape.recurrent, make, shape.qk_norm) if shape.recurrent else ()
    terms += _mask(shape, make, "attention")
    for name in (then if first else "", second or last, last if second else ""):
        terms += _norm(make, name) if name else []
    kept = bool(shape.gated) and not ("swiglu" in fused and shape.activation == "silu")
    if kind.experts and "moe" in again:
        return [*terms, make("experts", "experts input", "b*s*h*x//r")]
    if "mlp" in again and not kind.experts:
        return [*terms, make("mlp", "MLP input", "b*s*h*x//r")]
    if kind.experts:
        terms += _experts(shape, make, kept, "shared_experts" in again)
    elif second or last:
        terms += _mlp(shape, make, "f", kept)
    else:  # it reads what the projections read
        terms += _inside(shape, make, "b*s", "f", kept, "mlp")
    return [*terms, *_mask(shape, make, "mlp")]


def _adapters(shape: ModelShape, make: Make, kind: Kind, again: Set[str] = frozenset()) -> Iterator[Term]:
    """What A gives, scaled, of each adapter, which B reads: of all tokens of a region, or of a rank's own outside."""
    for row in linears(shape, kind) if shape.lora else ():
        if not (row.part == "mlp" and "mlp" in again):
            own = "" if row.cut else "//r"
            yield make(row.part, f"{row.name}, output of A", f"b*s*{shape.lora}*c{own}")


def embedding_terms(shape: ModelShape, make: Make) -> list[Term]:
    """What the embedding keeps, if it learns: its dropout mask. Token ids are the model's input, not an activation."""
    mask = shape.dropout and "embedding" in shape.trained
    return [make("embedding", "dropout mask", "b*s*h//r")] if mask else []


def angle_terms(shape: ModelShape, make: Make, cp: int, packed: int = 0) -> list[Term]:
    """The rotary angles of a rank's own tokens, picked from the table of all: without cp they are a part of it, unless
    documents are packed: then each token of so many micro-batches, those that are there at a time, has its own."""
    if (cp == 1 and not packed) or shape.positions != "rotary":
        return []
    tokens, dims = f"{packed}*b*s" if packed else "s", "p" if shape.mla else "d"
    return [make("positions", "cosines and sines of own tokens (fp32)", f"2*{tokens}*{dims}*4")]


def head_terms(make: Make, tp: int = 1, loss: str = "", learns: bool = True) -> list[Term]:
    """What the last norm, the output head, if it ``learns``, and the loss keep; over ``tp`` ranks that is the book's own.

    ``loss`` says how that is fused, as `fusion.loss_of`.
    """
    norm = [make("head", "final norm input", "b*s*h*x//r"), make("head", "final norm statistics", "b*s*n//r")]
    if loss == "linear-cross-entropy":
        gradients = (
            make("loss", "gradient of the head's input", "b*s*h*c"),
            make("loss", "gradient of the head's weight", "v*h*w"),
        )
        return [*norm, *gradients]
    head = [*norm, *[make("head", "head input", "b*s*h*c//r")] * learns]
    if loss == "cross-entropy":
        head.append(make("loss", "logits", "b*s*v*c//t"))
        head.append(make("loss", "log-sum-exp of the logits (fp32)", "b*s*4"))
        return head + ([make("loss", "targets among a rank's words (int64)", "b*s*8")] if tp > 1 else [])
    head += [make("loss", "log-probabilities (fp32)", "b*s*v*4//t")]
    return head + ([make("loss", "total weight", "4")] if tp == 1 else [])


def deferred_terms(shape: ModelShape, make: Make, *, kind: Kind = DENSE) -> list[Term]:
    """What the weight gradients of a block need between B and W: x and dy of every linear layer, as W works on both.

    Layers that read the same x keep it once; with sequence parallelism it is a rank's own tokens. dy of a row-parallel
    layer is whole on every rank.
    """
    terms, kept = [], set[tuple[str, str]]()
    for row in (row for row in linears(shape, kind) if keeps_inputs(shape, row.part)):
        tokens = "b*s" if row.times == "1" else f"b*s*{row.times}"
        if row.input not in kept:
            kept.add(row.input)
            own = "r" if row.times == "1" else "R"
            width, over = _whole(row.columns), "t" if row.cut == "row" else own
            terms += read(make, row.part, row.reads, tokens, width, over)
        width, share = _whole(row.rows), "//t" if row.cut == "column" else "//R" * (row.times != "1")
        terms.append(make(row.part, f"gradient of {row.name}", f"{tokens}*{width}*c{share}"))
    inside = _adapters(shape, make, kind)
    return [*terms, *(t for u in inside for t in (u, make(u.part, f"gradient of {u.name}", u.formula)))]


def _whole(width: str) -> str:
    """A width, before tensor-parallel ranks share it, as a factor."""
    width = width.removesuffix("//t").removesuffix("//T")
    return f"({width})" if "+" in width and "(" not in width else width


def deferred_head(make: Make, loss: str = "", learns: bool = True) -> list[Term]:
    """What the weight gradient of the output head needs between B and W, if it has one that the loss does not make."""
    if loss == "linear-cross-entropy" or not learns:
        return []
    return [make("head", "head input", "b*s*h*c//r"), make("head", "gradient of the logits", "b*s*v*c//t")]


def _norm(make: Make, name: str) -> list[Term]:
    return [make("norms", f"{name} input", "b*s*h*x//r"), make("norms", f"{name} statistics", "b*s*n//r")]


def _quantised(make: Make) -> bool:
    """Whether inputs of linear layers are kept in another form than what others keep of them."""
    return _value(make, "l") != _value(make, "c")


def read(make: Make, part: str, name: str, tokens: str, width: str, over: str = "") -> list[Term]:
    """The input of linear layers, tokens × width, as they keep it; ``over`` t cuts its features, r its tokens."""
    return [
        make(part, name, f"{tokens}*{width}*l" + (f"//{over}" if over else "")),
        *_scales(make, part, name, tokens, width, over),
    ]


def _scales(make: Make, part: str, name: str, tokens: str, width: str, over: str = "") -> list[Term]:
    """And its scales, where it is kept in FP8."""
    if not _value(make, "z"):
        return []
    features = f"({width}//t)" if over == "t" else f"({width})"
    each = f"{tokens}*-(-{features}//j)*z" if _value(make, "j") else "z"
    each += f"//{over}" if over in ("r", "R") and _value(make, "j") else ""
    return [make(part, f"scales of {name}", each + " + o" * (_value(make, "o") > 0))]


def _mask(shape: ModelShape, make: Make, part: str) -> list[Term]:
    return [make(part, "dropout mask", "b*s*h//r")] if shape.dropout else []


def _projections(shape: ModelShape, make: Make) -> list[Term]:
    """The input of the projections, and what lies between them and the attention core."""
    terms = read(make, "attention", "projections input", "b*s", "h", "r")
    codes = "+l" * keeps_inputs(shape, "attention")
    if shape.mla:
        if shape.mla.q_rank:
            terms += [make("attention", "query latent, before and after its norm", f"b*s*q*(c{codes})//r")]
            terms += [*_scales(make, "attention", "query latent", "b*s", "q", "r")]
            terms += [make("attention", "query latent statistics", "b*s*4//r")]
        terms += [
            make("attention", "key/value latent, before and after its norm", f"b*s*(u*(c{codes})+p*c)//r")
        ]
        terms += [*_scales(make, "attention", "key/value latent", "b*s", "u", "r")]
        terms += [make("attention", "key/value latent statistics", "b*s*4//r")]
    if shape.qk_norm:
        rows, share = (("a", "g"), "//t") if shape.qk_norm_over == "head" else (("1", "1"), "")
        terms += [
            make("norms", "query norm input", "b*s*a*d*c//t"),
            make("norms", "query norm statistics", f"b*s*{rows[0]}*4{share}"),
        ]
        terms += [
            make("norms", "key norm input", "b*s*g*d*c//t"),
            make("norms", "key norm statistics", f"b*s*{rows[1]}*4{share}"),
        ]
    return terms


def _core(shape: ModelShape, make: Make, again: bool, attention: str, padded: bool) -> list[Term]:
    """Queries, keys, values and, unless they are computed ``again`` or never written, the matrices of s × S scores."""
    reference = attention == "reference" and not again
    padded = padded and shape.v_dim < shape.qk_dim and attention != "reference" and not again
    terms = [
        make("attention", "queries", "b*s*a*d*c//t"),
        make("attention", "keys", "b*s*g*d*c//t"),
        make(
            "attention",
            "values, as wide as keys" if padded else "values",
            f"b*s*g*{'d' if padded else 'e'}*c//t",
        ),
    ]
    if padded:  # what a flash kernel gives is cut to the values' width, which makes a copy
        terms += [make("attention", "attention output, as wide as keys", "b*s*a*d*c//t")]
    if again:
        return terms
    if not reference:
        if (_quantised(make) or attention == "swapped") and not padded:  # else it is the projection's input
            terms.append(make("attention", "attention output", "b*s*a*e*c//t"))
        return [*terms, make("attention", "log-sum-exp of the scores", "b*s*a*4//t")]
    terms += [make("scores", "softmax output", "b*a*s*S*c//t")]
    if shape.dropout:
        terms.append(make("scores", "dropout mask", "b*a*s*S//t"))
        terms.append(make("scores", "after dropout", "b*a*s*S*c//t"))
    return terms


def _mlp(shape: ModelShape, make: Make, width: str, kept: bool, part: str = "mlp") -> list[Term]:
    """A dense MLP of the given width."""
    return [*read(make, part, "MLP input", "b*s", "h", "r"), *_inside(shape, make, "b*s", width, kept, part)]


def _inside(shape: ModelShape, make: Make, tokens: str, width: str, kept: bool, part: str) -> list[Term]:
    """Between the matrices of an MLP; ``kept``: a gate's activation is.

    ReLU needs its output only, which the next layer keeps anyway, unless in FP8.
    """
    terms, elements = [], f"{tokens}*{width}"
    if shape.activation != "relu":
        terms += [make(part, "activation input", f"{elements}*c//t")]
    if kept or (shape.activation == "relu" and not shape.gated and _quantised(make)):
        terms += [make(part, "activation output", f"{elements}*c//t")]
    if shape.gated:
        terms += [make(part, "up", f"{elements}*c//t")]
    return [*terms, *read(make, part, "down projection input", tokens, width, "t")]


def _experts(shape: ModelShape, make: Make, kept: bool, again: bool) -> list[Term]:
    """A block with experts, when the router spreads the tokens evenly: each rank then works on b·s·K rows.

    All ranks of a tensor-parallel region route all of its tokens, so that sequence parallelism divides nothing here, but
    where experts are whole (``etp``): then each routes its own.
    """
    assert shape.moe is not None
    terms = [
        make("router", "router input", "b*s*h*x//R"),
        make("router", "scores (fp32)", "b*s*E*4//R"),
        make("router", "chosen experts (int64)", "b*s*K*8//R"),
    ]
    if shape.moe.normalized:
        terms += [make("router", "chosen scores and their sum (fp32)", "b*s*(K+1)*4//R")]
    terms += [
        *_router_losses(shape.moe, make),
        make("router", "weights (fp32)", "b*s*K*4//R"),
        make("experts", "order of rows (int64)", "b*s*K*8//R"),
    ]
    if _value(make, "m") < shape.moe.experts:
        terms += [make("experts", "order of rows from other ranks (int64)", "b*s*K*8//R")]
    terms += [
        make("experts", "where each expert's rows end (int32)", "m*4"),
        *read(make, "experts", "rows sent to experts", "b*s*K", "h", "R"),
        *_inside(shape, make, "b*s*K", "F", kept, "experts"),
        make("experts", "rows coming back, before they are weighted", "b*s*K*h*c//R"),
    ]
    if shape.moe.shared_experts:
        router_keeps_it = _value(make, "x") == _value(make, "l") and _value(make, "r") == _value(make, "R")
        if again:  # the same tensor as the router's, unless that one has all tokens of its region
            return [
                *terms,
                *[make("shared experts", "MLP input", "b*s*h*x//r")]
                * (_value(make, "r") != _value(make, "R")),
            ]
        terms += [] if router_keeps_it else read(make, "shared experts", "MLP input", "b*s", "h", "r")
        terms += _inside(shape, make, "b*s", "G", kept, "shared experts")
    return terms


def _value(make: Make, symbol: str) -> int:
    return make("", "", symbol).value


def _router_losses(moe: MoE, make: Make) -> list[Term]:
    """What the losses keep that the load is balanced by."""
    terms = []
    if moe.balance_loss:
        of = "of each sample" if moe.balance_over == "sample" else "of the batch"
        terms += [make("router", f"loads {of} (fp32)", "b*E*4" if moe.balance_over == "sample" else "E*4")]
        if moe.scores == "sigmoid":
            terms += [make("router", "sums of scores (fp32)", "b*s*4//R")]
    if moe.z_loss:
        terms += [make("router", "logits and their log-sum-exp (fp32)", "b*s*(E+1)*4//R")]
    return terms
