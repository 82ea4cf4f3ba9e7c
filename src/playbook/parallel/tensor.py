"""Tensor parallelism: each rank has some heads of attention, some columns of the MLP, some words of the vocabulary.

A product of two matrices after one another is cut down the middle (Shoeybi et al. 2019, arXiv 1909.08053, section 3): the
first by columns, so that each rank computes some of the hidden features from the whole input; the second by rows, so that
it takes just those features in, and its output is one addend of the result. Between the two nothing is sent. What comes
in and what goes out is the business of a *region* (``regions.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from playbook.model.transformer import IGNORE, Transformer, token_losses
from playbook.parallel.pieces import Piece, Pieces
from playbook.parallel.regions import Region
from playbook.parallel.sequence import embed_own_tokens
from playbook.parallel.stages import own_blocks


def _own(piece: Piece, whole: Tensor) -> nn.Parameter:
    """A rank's piece of a parameter: frozen if that was."""
    return nn.Parameter(piece.of(whole.detach()).clone(), requires_grad=whole.requires_grad)


class ColumnLinear(nn.Module):
    """Some of the outputs of a linear layer, of all its inputs: it stands at the entry of a region."""

    def __init__(self, whole: nn.Linear, piece: Piece, region: Region):
        super().__init__()
        self.region = region
        self.weight = _own(piece, whole.weight)  # (out/t, in)
        self.bias = None if whole.bias is None else _own(piece, whole.bias)
        region.columns.append(self)

    def forward(self, x: Tensor) -> Tensor:  # (b, s, in), or (b, s/t, in) -> (b, s, out/t)
        return self.region.column(self, x)


class RowLinear(nn.Module):
    """A linear layer of some of its inputs. The outputs of all ranks add up to the layer's; the bias is added once."""

    def __init__(self, whole: nn.Linear, piece: Piece, region: Region):
        super().__init__()
        self.region = region
        self.weight = _own(piece, whole.weight)  # (out, in/t)
        self.bias = whole.bias

    def forward(self, x: Tensor) -> Tensor:  # (b, s, in/t) -> (b, s, out), or (b, s/t, out)
        y = self.region.row(x, self.weight)
        return y if self.bias is None else y + self.bias


class VocabEmbedding(nn.Module):
    """The vectors of some of the words; a token of another rank's is zero here, and the sum over ranks has it."""

    def __init__(self, whole: nn.Embedding, piece: Piece, region: Region):
        super().__init__()
        self.region, self.start, self.vocab = region, piece.start, piece.size
        self.weight = _own(piece, whole.weight)  # (vocab/t, h)

    def forward(self, tokens: Tensor) -> Tensor:  # (b, s) -> (b, s, h), or (b, s/t, h)
        _check_words(tokens, self.vocab)
        return self.region.leave(_Lookup.apply(self.weight, tokens, self.start))


class _Lookup(torch.autograd.Function):
    """The rows of some of the words, zero for others. Backward finds out again which they were: the tokens are there."""

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


def _check_words(tokens: Tensor, vocab: int, ignored: int | None = None) -> None:
    """Raise IndexError for a word that no rank has. Not on a GPU: to look there is to wait for it."""
    if tokens.is_cuda or not tokens.numel():
        return
    low, high = (int(t) for t in tokens.aminmax())
    if high >= vocab or (low < 0 and low != ignored):
        raise IndexError(f"word {high if high >= vocab else low} is out of range: the vocabulary has {vocab}")


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
        return (denominator - both[1])[targets != IGNORE].sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        log_probabilities, targets = ctx.saved_tensors
        index, elsewhere = _among(targets, ctx.start, log_probabilities.shape[1])
        dz = log_probabilities.exp()
        dz.scatter_add_(1, index[:, None], elsewhere[:, None].to(dz.dtype) - 1)
        return dz.mul_(((targets != IGNORE) * gradient)[:, None]), None, None, None


def gathered_losses(logits: Tensor, targets: Tensor, piece: Piece, group: dist.ProcessGroup) -> Tensor:
    """The naive twin of `vocab_losses`: every rank gets all logits, (n, vocab) on each, and works out the same loss."""
    parts = [torch.empty_like(logits) for _ in range(group.size())]
    dist.all_gather(parts, logits.detach().contiguous(), group=group)
    parts[group.rank()] = logits  # the way back of the gradient
    return token_losses(torch.cat(parts, 1)[:, : piece.size], targets)


def vocab_losses(logits: Tensor, targets: Tensor, piece: Piece, group: dist.ProcessGroup) -> Tensor:
    """As ``model.transformer.token_losses``: (n, vocab/t) of this rank and (n,) -> the sum over all words and tokens."""
    _check_words(targets, piece.size, IGNORE)
    logits = logits.float()
    padding = piece.stop - max(piece.start, piece.size)
    if padding > 0:  # columns that stand for no word
        logits = F.pad(logits[:, : logits.shape[1] - padding], (0, padding), value=float("-inf"))
    return _VocabLosses.apply(logits, targets, piece.start, group)


def shard_tensors(
    model: Transformer, group: dist.ProcessGroup, sequence: bool = False, overlap: str = "async"
) -> Pieces:
    """Leave this rank of ``group`` its piece of every matrix of ``model``, and put regions around what is cut.

    The model starts as the whole one, so that the pieces are those of the same weights whatever their number is. With
    ``sequence`` a rank has (s / ranks) tokens of the residual stream; ``overlap`` is one of ``regions.OVERLAP``.
    """
    found = Pieces(group)
    cut = _Cutter(model, found, sequence, overlap)
    for i, block in own_blocks(model):
        cut.attention(f"blocks.{i}.attention", block.attention)
        cut.mlp(f"blocks.{i}.mlp", block.mlp)
    cut.vocabulary()
    if sequence:
        whole = [n for n, _ in model.named_parameters() if n not in found.pieces and n not in found.partial]
        found.partial.update(dict.fromkeys(whole, group))  # each rank sees its own tokens alone
    return found


class _Cutter:
    """Replaces the layers of a model by those of one rank, and notes what it did."""

    def __init__(self, model: Transformer, found: Pieces, sequence: bool, overlap: str):
        self.model, self.found, self.group = model, found, found.group
        self.sequence, self.overlap = sequence, overlap
        self.rank, self.ranks = found.group.rank(), found.group.size()

    def attention(self, name: str, attention: Any) -> None:
        """Query heads are dealt out; so are key/value heads or, where there are fewer than ranks, copies of them."""
        shape, region = self.model.shape, self._region()
        heads = Piece(0, *self._share(shape.heads * shape.qk_dim))
        kv, copies = shape.n_kv_heads, max(1, self.ranks // shape.n_kv_heads)
        start = self.rank * kv // self.ranks * shape.qk_dim
        kv_heads = Piece(0, start, start + max(1, kv // self.ranks) * shape.qk_dim, kv * shape.qk_dim, copies)
        attention.q = self._column(f"{name}.q", attention.q, heads, region)
        attention.k = self._column(f"{name}.k", attention.k, kv_heads, region)
        attention.v = self._column(f"{name}.v", attention.v, kv_heads, region)
        attention.out = self._row(
            f"{name}.out", attention.out, Piece(1, *self._share(shape.heads * shape.qk_dim)), region
        )
        attention.core = varied(attention.core, self.rank)
        if shape.qk_norm:
            self.found.partial |= {f"{name}.{norm}.weight": self.group for norm in ("q_norm", "k_norm")}
        if copies > 1:  # each copy has the gradient of its own query heads
            same = self._copies_of_mine(copies)
            kinds = ["weight", "bias"] if attention.k.bias is not None else ["weight"]
            self.found.partial |= {f"{name}.{layer}.{kind}": same for layer in "kv" for kind in kinds}

    def _copies_of_mine(self, copies: int) -> dist.ProcessGroup:
        if not hasattr(self, "_same"):
            ranks = dist.get_process_group_ranks(self.group)
            mine = self.rank // copies * copies
            self._same = dist.new_group(ranks[mine : mine + copies], use_local_synchronization=True)
        return self._same

    def mlp(self, name: str, mlp: Any) -> None:
        region, width = self._region(), self.model.shape.ffn_dim
        columns, rows = Piece(0, *self._share(width)), Piece(1, *self._share(width))
        mlp.up = self._column(f"{name}.up", mlp.up, columns, region)
        if mlp.gate is not None:
            mlp.gate = self._column(f"{name}.gate", mlp.gate, columns, region)
        mlp.down = self._row(f"{name}.down", mlp.down, rows, region)

    def vocabulary(self) -> None:
        """Embedding and head have the same words; both tables are padded until they can be shared out evenly."""
        model: Any = self.model
        vocab = model.shape.vocab
        each = -(-vocab // self.ranks)
        piece = Piece(0, self.rank * each, (self.rank + 1) * each, vocab)
        ends: list[Any] = [layer for layer in (model.embedding, model.head) if layer is not None]
        tied = len(ends) == 2 and ends[0].weight is ends[1].weight
        region = self._region()
        if model.embedding is not None:  # of several stages, the first has the embedding, the last the head
            model.embedding = VocabEmbedding(model.embedding, piece, self._region())
        if model.head is not None:
            model.head = ColumnLinear(model.head, piece, region)
        if tied:
            model.head.weight = model.embedding.weight  # type: ignore[union-attr]
        self.found.pieces |= {"embedding.weight": piece, "head.weight": piece}
        model.token_losses = lambda logits, targets: vocab_losses(logits, targets, piece, self.group)
        if self.sequence:
            model.embed = partial(embed_own_tokens, model, self.group)

    def _region(self) -> Region:
        return Region(self.group, self.sequence, self.overlap)

    def _share(self, width: int) -> tuple[int, int, int]:
        each = width // self.ranks
        return self.rank * each, (self.rank + 1) * each, width

    def _column(self, name: str, layer: nn.Linear, piece: Piece, region: Region) -> ColumnLinear:
        self.found.pieces[f"{name}.weight"] = piece
        if layer.bias is not None:
            self.found.pieces[f"{name}.bias"] = piece
        return ColumnLinear(layer, piece, region)

    def _row(self, name: str, layer: nn.Linear, piece: Piece, region: Region) -> RowLinear:
        self.found.pieces[f"{name}.weight"] = piece
        return RowLinear(layer, piece, region)


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
