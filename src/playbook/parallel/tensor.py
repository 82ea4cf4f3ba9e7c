"""Tensor parallelism: each rank has some heads of attention, some columns of the MLP, some entries of the vocabulary.

A product of two matrices after one another is cut down the middle (Shoeybi et al. 2019, arXiv 1909.08053, section 3): the
first by columns, so that each rank computes some of the hidden features from the whole input; the second by rows, so that
it takes just those features in, and its output is a partial sum of the result. Between the two nothing is sent. What
comes in and what goes out is the business of a *region* (``regions.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from playbook.model.attention import Attention
from playbook.model.linear import TORCH, Linear, LinearFunction, cast_once, linear_layers
from playbook.model.mla import LatentAttention
from playbook.model.mlp import MLP
from playbook.model.moe import MoE
from playbook.model.ops import IGNORE, TORCH_OPS, Ops, check_words
from playbook.model.transformer import Transformer
from playbook.parallel.mesh import Mesh
from playbook.parallel.placement import Placements, Shard
from playbook.parallel.regions import ChunkedRows, Region, f
from playbook.parallel.sequence import embed_own_tokens, g
from playbook.parallel.stages import own_blocks

if TYPE_CHECKING:
    from playbook.model.linear import Taken


#: Parameters of a linear layer that have its outputs as rows.
KINDS = ("weight", "bias", "lora_B.weight")


def _own(shard: Shard, whole: Tensor) -> nn.Parameter:
    """A rank's slice of a parameter: frozen if that was."""
    return nn.Parameter(shard.of(whole.detach()).clone(), requires_grad=whole.requires_grad)


class _CutLinear(Linear):
    """A rank's slice of a linear layer, at a border of ``region``."""

    def __init__(self, whole: nn.Linear, shard: Shard, region: Region, bias: nn.Parameter | None):
        nn.Module.__init__(self)
        self.region, self.weight = region, _own(shard, whole.weight)
        self.products = getattr(whole, "products", TORCH)
        self.products.over(region.group, "weight", "dy" if shard.dim == 0 else "x")
        if region.sequence and shard.dim == 0:
            self.products.over(region.group, "x")  # a rank's own tokens
        self.bias = bias  # type: ignore[assignment]
        if adapter := getattr(whole, "adapter", None):
            adapter.cut(shard).onto(self)
        self.out_features, self.in_features = self.weight.shape


class ColumnLinear(_CutLinear):
    """Some of the outputs of a linear layer, of all its inputs: it stands at the entry of a region."""

    def __init__(self, whole: nn.Linear, shard: Shard, region: Region):  # weight (out/t, in), bias (out/t,)
        super().__init__(whole, shard, region, None if whole.bias is None else _own(shard, whole.bias))

    def forward(self, x: Tensor) -> Tensor:  # (b, s, in), or (b, s/t, in) -> (b, s, out/t)
        return self.region.enter((self,), x)[0]

    def forward_all(self, layers: Sequence[Linear], x: Tensor) -> Iterator[Tensor]:
        """The outputs of ``layers``, of which this is the first: x enters the region once for all of them."""
        return iter(self.region.enter(layers, x))


class RowLinear(_CutLinear):
    """A linear layer of some of its inputs. The outputs of all ranks add up to the layer's; the bias is added once."""

    def __init__(self, whole: nn.Linear, shard: Shard, region: Region):  # weight (out, in/t), bias (out,)
        super().__init__(whole, shard, region, whole.bias)

    def forward(self, x: Tensor) -> Tensor:  # (b, s, in/t) -> (b, s, out), or (b, s/t, out)
        if self.region.overlap == "chunked":
            y = ChunkedRows.apply(cast_once(x), self.weight, self, self.region)
        else:
            x = cast_once(x)
            y = LinearFunction.apply(x, self.weight, None, self)
            y = self.region.leave(self.adapter(y, self.adapter.down(x)) if self.adapter else y)
        return y if self.bias is None else y + self.bias

    def output(self, x: Taken) -> Tensor:
        """x·Wᵀ, this rank's partial sum: (…, in/t) -> (…, out)."""
        return self.products.output(x, self.weight)


class VocabEmbedding(nn.Module):
    """The vectors of some vocabulary entries; a token of another rank's is zero here, and the sum over ranks has it."""

    def __init__(self, whole: nn.Embedding, shard: Shard, region: Region):
        super().__init__()
        self.region, self.start, self.vocab = region, shard.start, shard.size
        self.weight = _own(shard, whole.weight)  # (vocab/t, h)

    def forward(self, tokens: Tensor) -> Tensor:  # (b, s) -> (b, s, h), or (b, s/t, h)
        check_words(tokens, self.vocab)
        return self.region.leave(_Lookup.apply(self.weight, tokens, self.start))


class _Lookup(torch.autograd.Function):
    """The rows of some vocabulary entries, zero for others. Backward finds out again which: the tokens are there."""

    @staticmethod
    def forward(ctx, weight: Tensor, tokens: Tensor, start: int) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.start, ctx.words = start, len(weight)
        index, elsewhere = _among(tokens, start, len(weight))
        return F.embedding(index, weight).masked_fill_(elsewhere[..., None], 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        (tokens,) = ctx.saved_tensors
        index, elsewhere = _among(tokens, ctx.start, ctx.words)
        gradient = gradient.masked_fill(elsewhere[..., None], 0.0)
        return torch.ops.aten.embedding_dense_backward(gradient, index, ctx.words, -1, False), None, None


def _among(tokens: Tensor, start: int, words: int) -> tuple[Tensor, Tensor]:
    """Where each token is in a table of ``words`` from ``start`` on, 0 for those that are elsewhere; and which are."""
    index = tokens - start
    elsewhere = (index < 0) | (index >= words)
    return index.masked_fill_(elsewhere, 0), elsewhere


class _VocabLosses(torch.autograd.Function):
    """−log softmax(z)[target], each rank having some columns of z: three numbers per token travel, never logits."""

    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor, start: int, group: dist.ProcessGroup) -> Tensor:
        peak = logits.amax(-1)  # (n,)
        dist.all_reduce(peak, dist.ReduceOp.MAX, group)
        logits = logits - peak[:, None]
        index, elsewhere = _among(targets, start, logits.shape[1])
        of_target = logits.gather(1, index[:, None]).squeeze(1).masked_fill_(elsewhere, 0.0)
        both = torch.stack([logits.exp().sum(-1), of_target])  # (2, n): denominator, the target's logit
        dist.all_reduce(both, group=group)
        denominator = both[0].log_()
        ctx.save_for_backward(logits.sub_(denominator[:, None]), targets)
        ctx.start = start
        return (denominator - both[1]).masked_fill_(targets == IGNORE, 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        log_probabilities, targets = ctx.saved_tensors
        index, elsewhere = _among(targets, ctx.start, log_probabilities.shape[1])
        dz = log_probabilities.exp()
        dz.scatter_add_(1, index[:, None], elsewhere[:, None].to(dz.dtype) - 1)
        return dz.mul_(((targets != IGNORE) * gradient)[:, None]), None, None, None


def vocab_losses(
    logits: Tensor, targets: Tensor, shard: Shard, group: dist.ProcessGroup, ops: Ops = TORCH_OPS
) -> Tensor:
    """As ``model.ops.token_losses``: (n, vocab/t) of this rank and (n,) -> the sum over all words and tokens."""
    check_words(targets, shard.size, IGNORE)
    if ops.vocab_losses is not None:
        words = max(0, min(shard.stop, shard.size) - shard.start)
        return ops.vocab_losses(logits, targets, range(shard.start, shard.start + words), group)
    logits = logits.float()
    padding = shard.stop - max(shard.start, shard.size)
    if padding > 0:  # columns that stand for no word
        logits = F.pad(logits[:, : logits.shape[1] - padding], (0, padding), value=float("-inf"))
    return _VocabLosses.apply(logits, targets, shard.start, group)


def shard_tensors(model: Transformer, mesh: Mesh, before: Placements, overlap: str = "async") -> Placements:
    """Leave this rank of the axis tp its slice of every matrix of ``model``, and put regions around what is cut.

    The model starts as the whole one, so that the slices are those of the same weights whatever their number is. With
    ``sp`` in the layout a rank has (s / tp) tokens of the residual stream; ``overlap`` is one of
    ``layout.fields.TENSOR_OVERLAP``. Returns where parameters are now.
    """
    cutter = _Cutter(model, mesh, overlap)
    for i, block in own_blocks(model):
        cutter.attention(f"blocks.{i}.attention", block.attention)
        cutter.mlp(f"blocks.{i}.mlp", block.mlp)
    cutter.vocabulary()
    for layer in linear_layers(model) if mesh.layout.sp else ():
        if isinstance(layer, Linear) and not isinstance(layer, _CutLinear):
            layer.products.over(mesh.group("tp"), "x", "dy")  # of a rank's own tokens
    found = dict(before)
    for name, placement in before.items():
        shard, partial = cutter.shards.get(name), cutter.partial.get(name)
        if mesh.layout.sp and shard is None and partial is None:
            partial = "tp"  # each rank sees its own tokens alone
        found[name] = placement.cut(shard, partial or None)
    return found


class _Cutter:
    """Replaces the layers of a model by those of one rank, and notes what it did, by name of the parameter."""

    def __init__(self, model: Transformer, mesh: Mesh, overlap: str):
        self.model, self.mesh, self.group = model, mesh, mesh.group("tp")
        self.sequence, self.overlap = mesh.layout.sp, overlap
        self.rank, self.ranks = mesh.index("tp"), mesh.size("tp")
        self.shards: dict[str, Shard] = {}
        self.partial: dict[str, str] = {}  # the ranks whose gradients are partial sums

    def attention(self, name: str, attention: Attention | LatentAttention) -> None:
        attention.core = varied(attention.core, self.rank)
        if isinstance(attention, LatentAttention):
            self.latent(name, attention)
        else:
            self.heads(name, attention)

    def latent(self, name: str, attention: LatentAttention) -> None:
        """Latents are on every rank, or with sp those of its tokens; what comes out of them is cut by heads."""
        region = self._region()
        of_q, of_kv = attention.q_up.out_features, attention.kv_up.out_features
        attention.q_up = self._column(f"{name}.q_up", attention.q_up, self._share(0, of_q), region)
        attention.kv_up = self._column(f"{name}.kv_up", attention.kv_up, self._share(0, of_kv), region)
        rows = self._share(1, attention.out.in_features)
        attention.out = self._row(f"{name}.out", attention.out, rows, region)
        attention.enter = partial(g if self.sequence else f, group=self.group)  # the key that heads share

    def heads(self, name: str, attention: Attention) -> None:
        """Query heads are sharded; so are key/value heads or, where there are fewer than ranks, copies of them."""
        shape, region = self.model.shape, self._region()
        width, d = shape.heads * shape.qk_dim, shape.qk_dim
        kv, copies = shape.n_kv_heads, max(1, self.ranks // shape.n_kv_heads)
        start = self.rank * kv // self.ranks * d
        heads = self._share(0, width)
        kv_heads = Shard("tp", 0, start, start + max(1, kv // self.ranks) * d, kv * d, copies)
        attention.q = self._column(f"{name}.q", attention.q, heads, region)
        attention.k = self._column(f"{name}.k", attention.k, kv_heads, region)
        attention.v = self._column(f"{name}.v", attention.v, kv_heads, region)
        attention.out = self._row(f"{name}.out", attention.out, self._share(1, width), region)
        if shape.qk_norm:
            self.partial |= {f"{name}.{norm}.weight": "tp" for norm in ("q_norm", "k_norm")}
        if copies > 1:  # each copy has the gradient of its own query heads
            same = self.mesh.neighbours("tp", copies)
            self.partial |= {f"{name}.{layer}.{kind}": same for layer in "kv" for kind in KINDS}

    def mlp(self, name: str, mlp: MLP | MoE) -> None:
        if isinstance(mlp, MoE):
            return self.experts(name, mlp)
        region, width = self._region(), mlp.up.out_features
        columns, rows = self._share(0, width), self._share(1, width)
        mlp.up = self._column(f"{name}.up", mlp.up, columns, region)
        if mlp.gate is not None:
            mlp.gate = self._column(f"{name}.gate", mlp.gate, columns, region)
        mlp.down = self._row(f"{name}.down", mlp.down, rows, region)

    def experts(self, name: str, moe: MoE) -> None:
        """Of each expert some columns and rows. All ranks of the region route all of its tokens, alike; what each adds to
        their outputs is a partial sum, and so is then what the router learns; so it is where experts stay whole (``etp``)
        and each rank routes its own."""
        self.partial[f"{name}.router.weight"] = "tp"
        if moe.shared is not None:
            self.mlp(f"{name}.shared", moe.shared)
        if self.mesh.layout.etp:  # rows travel from a rank's own tokens to whole experts
            self.partial |= {f"{name}.experts.{key}": "" for key, _ in moe.experts.named_parameters()}
            return
        region, experts = self._region(), moe.experts
        moe.enter, moe.leave = partial(g if self.sequence else f, group=self.group), region.leave
        for layer, dim in (("up", 1), ("gate", 1), ("down", 2)):
            if (whole := getattr(experts, layer)) is None:
                continue
            whole.products.over(self.group, "weight", "dy" if dim == 1 else "x")
            shard = self._share(dim, whole.weight.shape[dim])
            for kind in ("weight",) if dim == 2 or whole.bias is None else ("weight", "bias"):
                setattr(whole, kind, _own(shard, getattr(whole, kind)))
                self.shards[f"{name}.experts.{layer}.{kind}"] = shard
            if dim == 2 and whole.bias is not None:  # added once, by the first rank
                whole.share_of_bias = float(self.rank == 0)
                self.partial[f"{name}.experts.{layer}.bias"] = "tp"

    def vocabulary(self) -> None:
        """Embedding and head have the same entries; both tables are padded until they can be sharded evenly."""
        model: Any = self.model
        vocab = model.shape.vocab
        each = -(-vocab // self.ranks)
        shard = Shard("tp", 0, self.rank * each, (self.rank + 1) * each, vocab)
        embedding = model.embedding  # of several stages, the first has the embedding, the last the head
        head = model.head
        own_embedding = embedding and VocabEmbedding(embedding, shard, self._region())
        own_head = head and ColumnLinear(head, shard, self._region())
        if embedding and head and embedding.weight is head.weight:
            own_head.weight = own_embedding.weight
        model.embedding, model.head = own_embedding, own_head
        self.shards |= {"embedding.weight": shard, "head.weight": shard}
        model.token_losses = partial(vocab_losses, shard=shard, group=self.group, ops=model.ops)
        if self.sequence:
            model.embed = partial(embed_own_tokens, model, self.group)

    def _region(self) -> Region:
        return Region(self.group, self.sequence, self.overlap)

    def _share(self, dim: int, width: int) -> Shard:
        each = width // self.ranks
        return Shard("tp", dim, self.rank * each, (self.rank + 1) * each, width)

    def _column(self, name: str, layer: nn.Linear, shard: Shard, region: Region) -> ColumnLinear:
        self.shards |= {f"{name}.{kind}": shard for kind in KINDS}
        self.partial[f"{name}.lora_A.weight"] = "tp"
        return ColumnLinear(layer, shard, region)

    def _row(self, name: str, layer: nn.Linear, shard: Shard, region: Region) -> RowLinear:
        self.shards |= {f"{name}.weight": shard, f"{name}.lora_A.weight": shard}
        self.partial[f"{name}.lora_B.weight"] = "tp"
        return RowLinear(layer, shard, region)


def varied(core: Callable[..., Tensor], rank: int) -> Callable[..., Tensor]:
    """An attention core that drops other weights on each rank: the heads are not the same.

    All ranks draw one number, from generators that are alike; with their rank it is a seed. So the residual stream, which
    is the same on all ranks, goes on with masks that are, and what is computed again draws again.
    """

    def attend(
        q: Tensor, k: Tensor, v: Tensor, p: float = 0.0, training: bool = False, causal: bool = True
    ) -> Tensor:
        if not (p and training):
            return core(q, k, v, p, training, causal)
        seed = int(torch.randint(2**31, ())) * 4096 + rank
        with torch.random.fork_rng(devices=[q.device] if q.is_cuda else []):
            torch.manual_seed(seed)
            return core(q, k, v, p, training, causal)

    return attend
