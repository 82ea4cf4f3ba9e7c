"""The book's transformer: a GPT-2 block or a Llama block, by configuration. It knows nothing of parallelism."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from playbook.errors import ConfigError, ShapeError
from playbook.layout import recomputed
from playbook.layout.fields import blocks_again
from playbook.model.attention import ATTENTION, Attention, Positions, places, rotary_table
from playbook.model.linear import Linear
from playbook.model.mla import LatentAttention
from playbook.model.mlp import MLP
from playbook.model.moe import MoE, routers
from playbook.model.norms import LayerNorm, RMSNorm, make_norm
from playbook.model.ops import IGNORE, TORCH_OPS, Ops, dropout, token_losses
from playbook.model.recompute import RUN, checkpoint
from playbook.registry import lab
from playbook.seeding import derive_seed
from playbook.shapes import ModelShape, load


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)): the pre-norm block of GPT-2, of Llama, of mixtures of experts."""

    def __init__(
        self,
        shape: ModelShape,
        attention: str = "sdpa",
        recompute: str = "none",
        causal: bool = True,
        layer: int = 0,
        ops: Ops = TORCH_OPS,
    ):
        super().__init__()
        self.ops = ops
        self.p = shape.dropout
        given = attention, causal, ops
        self.norm1 = make_norm(shape, ops)
        self.attention = LatentAttention(shape, shape.mla, *given) if shape.mla else Attention(shape, *given)
        self.norm2 = make_norm(shape, ops)
        moe = shape.moe if shape.is_moe(layer) else None
        self.mlp = MoE(shape, moe, ops) if moe else MLP(shape, ops=ops)
        self.recompute(recomputed(recompute))

    def recompute(self, modules: frozenset[str]) -> None:
        """Have backward compute these again, of those that the block has."""
        self.recomputes_all, self.attention.recompute = "full" in modules, "core_attn" in modules
        self.offloads, experts = "offload" in modules, isinstance(self.mlp, MoE)
        self.recomputes_mlp = ("moe" if experts else "mlp") in modules
        if experts:
            self.mlp.recompute_shared = "shared_experts" in modules

    def forward(self, x: Tensor, *rotary: Any) -> Tensor:
        x, y = self.ops.add_norm(x, self.attention(self.norm1(x), *rotary), self.norm2)  # (b, s, h)
        if self.recomputes_mlp:
            return x + checkpoint(self.mlp, y, preserve_rng=self.p > 0)
        return x + self.mlp(y)


class Head(Linear):
    """The output head, from a token's vector to a logit for each word; or, given targets, to the sum of their losses."""

    def __init__(self, shape: ModelShape, ops: Ops = TORCH_OPS):
        super().__init__(shape.hidden, shape.vocab, bias=False)
        self.ops = ops

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """(b, s, h) -> (b, s, vocab), or with targets (b, s) -> ()."""
        if targets is None:
            return super().forward(x)
        return self.ops.linear_losses(x, self.weight, targets)


class Transformer(nn.Module):
    """Tokens in, logits out: embedding, ``shape.layers`` blocks, final norm, output head.

    ``attention`` is ``"sdpa"`` (fused kernels) or ``"reference"`` (the formula written out); ``recompute`` is
    ``"none"``, ``"selective"`` (the attention core), ``"full"`` (whole blocks) or modules among `RUN`, joined by +;
    with ":4" in the first 4 blocks alone, of each stage where the model is cut into some.
    ``causal`` is false for an encoder, whose tokens see those behind them, too. ``ops`` are the operations between its
    products. Every weight is drawn from ``seed`` and its own name: a model cut in pieces starts from the same numbers.
    Raises ConfigError for an unknown ``attention`` or ``recompute``, and for a device that ``ops`` do not run on.
    """

    cos: Tensor | None
    sin: Tensor | None
    #: Of the pass that is computed: its first sample in the global batch, samples and tokens (b, s), their positions.
    begins: tuple[int, tuple[int, ...], Positions] | None = None

    def __init__(
        self,
        shape: ModelShape | str | dict,
        *,
        attention: str = "sdpa",
        recompute: str = "none",
        causal: bool = True,
        ops: Ops = TORCH_OPS,
        seed: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__()
        shape = load(shape)
        if shape.planned:
            raise ShapeError(f"this model can be planned, but not trained: {shape.planned}")
        _check(attention, recompute)
        ops.check(device)
        self.shape, self.recompute, self.p, self.ops = shape, recompute, shape.dropout, ops
        with torch.device("meta"):  # no memory until init_parameters fills it
            self.embedding = nn.Embedding(shape.vocab, shape.hidden)
            learned = shape.positions == "learned"
            self.position_embedding = nn.Embedding(shape.max_seq, shape.hidden) if learned else None
            given = attention, recompute, causal
            self.blocks = nn.ModuleList(Block(shape, *given, i, ops) for i in range(shape.layers))
            self.final_norm = make_norm(shape, ops)
            self.head = Head(shape, ops)
        if shape.tied:
            self.head.weight = self.embedding.weight
        self._apply(lambda t: torch.empty(t.shape, device=device or "cpu", dtype=dtype))  # all of them floats
        if shape.tied:  # each of the two names was given a tensor of its own
            self.head.weight = self.embedding.weight
        init_parameters(self, seed)
        for router in routers(self).values():
            router.begin()
        self._register_rotary(device)
        if shape.train != "full":
            lab("train", "some")(self, seed)
        self.token_losses = token_losses
        self.recompute_first(range(shape.layers))

    def recompute_first(self, stage: range) -> range:
        """The ``stage``, of whose blocks only the first are computed again, where `recompute` says how many."""
        if (first := blocks_again(self.recompute)) is not None:
            for i, block in enumerate([self.blocks[layer] for layer in stage]):
                if isinstance(block, Block):
                    block.recompute(recomputed(self.recompute) if i < first else frozenset())
        return stage

    def _register_rotary(self, device: torch.device | str | None) -> None:
        """The angles of every position, computed once; they are no part of a checkpoint."""
        shape, cos, sin = self.shape, None, None
        if shape.positions == "rotary":
            with torch.device("meta" if str(device) == "meta" else torch.get_default_device()):
                how = shape.rope_theta, shape.rope_scaling
                table = rotary_table(shape.max_seq, shape.rope_dim, *how)
            cos, sin = (t.to(device) for t in table)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens: Tensor, positions: Positions = None) -> Tensor:  # (b, s) -> (b, s, vocab)
        return self.head(self.final_norm(self.hidden_states(tokens, positions)))

    def hidden_states(self, tokens: Tensor, positions: Positions = None) -> Tensor:
        """What leaves the last block, before the final norm: (b, s) -> (b, s, h).

        ``positions`` (s,) say where in a longer text the tokens stand; the default is its beginning.
        """
        rotary = self.angles(tokens.shape[1], positions)
        x = self.embed(tokens, positions)
        for block in self.blocks:
            x = self.run_block(block, x, *rotary)
        return x

    def angles(self, s: int, positions: Positions = None) -> tuple[Any, ...]:
        """Cosines and sines of a sample's ``s`` tokens, (s, d) each, none without rotary positions; and documents."""
        if positions is None and s > self.shape.max_seq:
            raise ShapeError(
                f"seq is {s}, but this model has positions for at most max_seq={self.shape.max_seq} tokens"
            )
        where, documents = places(s, positions), positions[1:] if isinstance(positions, tuple) else ()
        if self.cos is None or self.sin is None:
            return (None, None, *documents) if documents else ()
        return self.cos[where], self.sin[where], *documents

    def embed(self, tokens: Tensor, positions: Positions = None) -> Tensor:
        """Token embeddings, plus learned positions where the model has them: (b, s) -> (b, s, h)."""
        x = self.embedding(tokens)
        if self.position_embedding is not None:
            x = x + self.position_embedding.weight[places(tokens.shape[1], positions)]
        return dropout(x, self.p, self.training)

    def run_block(self, block: nn.Module, x: Tensor, *rotary: Any) -> Tensor:
        """One block, keeping its insides for backward or, under full recomputation, only its input. What comes out of a
        frozen embedding asks for a gradient: blocks are alike then, and can be computed again."""
        if self.shape.train != "full" and torch.is_grad_enabled():
            x.requires_grad_()
        again, away = (getattr(block, name, False) for name in ("recomputes_all", "offloads"))
        with lab("kept", "offload")(self, block, *rotary) if away else nullcontext():
            return checkpoint(block, x, *rotary, preserve_rng=self.p > 0) if again else block(x, *rotary)

    def loss(self, tokens: Tensor, targets: Tensor, positions: Positions = None) -> tuple[Tensor, Tensor]:
        """Sum of the token losses in fp32, and how many targets count: divide once, by the global count.

        Returning the sum and not the mean is what keeps gradients right when micro-batches or ranks hold
        different numbers of tokens.
        """
        return self.loss_of(self.hidden_states(tokens, positions), targets), (targets != IGNORE).sum()

    def loss_of(self, x: Tensor, targets: Tensor) -> Tensor:
        """Sum of the token losses in fp32, from what leaves the last block: (b, s, h) and (b, s) -> ()."""
        x = self.final_norm(x)
        if self.ops.fuses_head and isinstance(self.head, Head):  # one that is cut over ranks gives logits
            return self.head(x, targets)
        return self.token_losses(self.head(x).flatten(0, 1), targets.flatten())  # of logits (b·s, vocab)


def _check(attention: str, recompute: str) -> None:
    if attention not in ATTENTION:
        raise ConfigError(f"attention is {attention!r}, but must be one of {', '.join(sorted(ATTENTION))}")
    if planned := recomputed(recompute) - RUN:
        raise ConfigError(f"recompute has {'+'.join(sorted(planned))}, which can be planned, but not run")


@torch.no_grad()
def init_parameters(model: nn.Module, seed: int) -> None:
    """Fill every parameter from (seed, its name): norms at 1, biases at 0, the rest normal with deviation 0.02.

    The two projections that write into the residual stream are scaled by 1/sqrt(2·layers) (GPT-2, section 2.3).
    Numbers are drawn in fp32 on the CPU: the same on every device, dtype and layout. On the meta device there is
    nothing to fill, and a model of any size is built in no time.
    """
    norms = {f"{name}.weight" for name, m in model.named_modules() if isinstance(m, LayerNorm | RMSNorm)}
    layers = len(getattr(model, "blocks", [])) or 1
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            continue
        if name in norms:
            parameter.fill_(1.0)
        elif name.endswith("bias"):
            parameter.zero_()
        else:
            into = ("attention.out", "mlp.down", "experts.down", "shared.down")
            residual = name.removesuffix(".weight").endswith(into) and name.endswith(".weight")
            deviation = 0.02 / math.sqrt(2 * layers) if residual else 0.02
            generator = torch.Generator().manual_seed(derive_seed(seed, name))
            parameter.copy_(torch.normal(0.0, deviation, parameter.shape, generator=generator, device="cpu"))
