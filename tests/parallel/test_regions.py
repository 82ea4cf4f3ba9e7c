"""f, f*, g, g*, products taken apart, layers cut by columns, rows and words: what whole ones give, and what is sent."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from helpers import BLOCKS
from torch import Tensor

from playbook import launch
from playbook.instruments.counting import CountBytes
from playbook.layout import Layout
from playbook.model.ops import IGNORE, token_losses
from playbook.model.transformer import Transformer
from playbook.parallel import chunked
from playbook.parallel.engine import Engine
from playbook.parallel.mesh import Mesh
from playbook.parallel.placement import Shard, WholeNames, whole
from playbook.parallel.regions import Region, f, f_star
from playbook.parallel.replicas import ReplicaSet
from playbook.parallel.sequence import g, g_star, gather_tokens, scatter_tokens
from playbook.parallel.tensor import shard_tensors, varied, vocab_losses
from playbook_book.naive import gathered_losses


def conjugates() -> None:
    """In a rank: each of the four undoes, backward, what its conjugate does forward."""
    with launch.process_group() as world:
        group, n = dist.group.WORLD, world.size
        for b, each in ((1, 3), (2, 1), (3, 4)):
            torch.manual_seed(world.rank)
            own, whole = torch.randn(b, each, 5), torch.randn(b, n * each, 5)
            for forward, conjugate, x in (
                (f, f_star, whole),
                (f_star, f, whole),
                (g, g_star, own),
                (g_star, g, whole),
            ):
                before, x = x, x.clone().requires_grad_()
                y = forward(x, group)
                gradient = torch.randn(y.shape)
                y.backward(gradient)
                assert torch.equal(x.grad, conjugate(gradient, group)), forward
                assert torch.equal(x, before), forward
            x = whole.clone().requires_grad_()
            made = x * 1  # as a layer's output: f* takes its memory
            y = Region(group).leave(made)
            gradient = torch.randn(y.shape)
            y.backward(gradient)
            assert y.data_ptr() == made.data_ptr()
            assert torch.equal(y, f_star(whole, group))
            assert torch.equal(x.grad, gradient)


def test_each_is_the_others_way_back(ranks):
    ranks(conjugates, ranks=3)


def taken_apart(seed: int) -> None:
    """In a rank: products in chunks are products of the whole, for any number of inputs and samples."""
    with launch.process_group() as world:
        draw, own = random.Random(seed), torch.Generator().manual_seed(seed + world.rank)
        for _ in range(10):
            b, each, width = draw.randint(1, 3), draw.randint(1, 4), draw.randint(1, 6)
            outs = [draw.randint(1, 5) for _ in range(draw.randint(1, 3))]
            weights = [
                (torch.randn(out, width, generator=own), torch.randn(out, generator=own) if out % 2 else None)
                for out in outs
            ]
            x = torch.randn(b, each, width, generator=own)
            products = [partial(F.linear, weight=w, bias=bias) for w, bias in weights]
            found, all_of_x = chunked.gather_matmul(x, products, dist.group.WORLD, keep=True)
            too = gather_tokens(x, dist.group.WORLD)
            expected = [product(too) for product in products]
            torch.testing.assert_close([*found, all_of_x], [*expected, too])
            tokens = world.size * each
            inputs = [torch.randn(b, tokens, out, generator=own) for out in outs]

            def part(some: slice, inputs=inputs, weights=weights) -> Tensor:
                return sum(x[:, some] @ w for x, (w, _) in zip(inputs, weights, strict=True))

            found = chunked.matmul_scatter(part, tokens, dist.group.WORLD)
            torch.testing.assert_close(found, scatter_tokens(part(slice(tokens)), dist.group.WORLD))


@pytest.mark.parametrize("size", [1, 3, 4])
def test_products_in_chunks_are_those_of_the_whole(ranks, size):
    ranks(taken_apart, size, ranks=size)


def losses(vocab: int, n: int) -> tuple[float, float, list]:
    """In a rank: how far loss and gradient are from cross-entropy, and what was sent for it."""
    with launch.process_group() as world:
        generator = torch.Generator().manual_seed(vocab)
        logits = 30 * torch.randn(n, vocab, generator=generator)
        targets = torch.randint(vocab, (n,), generator=generator)
        targets[::3] = IGNORE
        all_words = logits.clone().requires_grad_()
        expected = token_losses(all_words, targets)
        expected.backward()
        each = -(-vocab // world.size)
        shard = Shard("tp", 1, world.rank * each, (world.rank + 1) * each, vocab)
        found = []
        for way in (vocab_losses, gathered_losses):
            own = shard.of(logits).clone().requires_grad_()
            with CountBytes({"tp": dist.group.WORLD}) as count:
                loss = way(own, targets, shard, dist.group.WORLD)
            loss.backward()
            errors = (loss / expected - 1).abs(), (own.grad - shard.of(all_words.grad)).abs().max()
            found.append((float(torch.stack(errors).max()), [(e.kind, e.payload) for e in count.events]))
        return found


@pytest.mark.parametrize(("vocab", "size"), [(12, 4), (37, 4), (5, 4), (97, 2), (7, 1)])
def test_the_loss_over_words_and_no_logits_travel(ranks, vocab, size):
    for ours, twin in ranks(losses, vocab, 8, ranks=size).values:
        assert max(ours[0], twin[0]) < 1e-5
        assert ours[1] == [
            ("all_reduce", 8 * 4),
            ("all_reduce", 2 * 8 * 4),
        ]  # a peak; denominator and target's logit
        assert twin[1] == [("all_gather", 8 * -(-vocab // size) * 4 * size)]


def shards_of(shape, layout: str) -> tuple[dict, dict, list]:
    """In a rank: the whole tensors made from all ranks' shards, their sizes here, and partial gradients."""
    with launch.process_group():
        mesh = Mesh(Layout.parse(layout))
        model = Transformer(shape, seed=3)
        names, placements = WholeNames(model), whole(model)
        placements = shard_tensors(model, mesh, placements)
        engine = Engine(model, [ReplicaSet(model)], placements, names, mesh)
        own = {name: p.numel() for name, p in model.named_parameters()}
        found = {name: engine.state_dict()["model"][name] for name in own}
        return found, own, sorted(name for name, place in placements.items() if place.partial)


@pytest.mark.parametrize("layout", ["tp=2", "tp=4,sp"])
@pytest.mark.parametrize("tied", [False, True])
def test_shards_are_those_of_the_weights_of_one_device(ranks, layout, tied):
    """Whatever the degree. Two ranks that hold the same key head hold equal copies."""
    shape = BLOCKS["llama"].replace(heads=4, kv_heads=1, ffn=52, qk_norm=True, tied=tied)
    alone = dict(Transformer(shape, seed=3).named_parameters())
    tp = Layout.parse(layout).tp
    for tensors, sizes, partial_sums in ranks(shards_of, shape, layout, ranks=tp).values:
        assert tensors.keys() == alone.keys()
        for name, p in alone.items():
            assert torch.equal(tensors[name], p), name
            cut = p.dim() == 2 and ".k." not in name and ".v." not in name
            rows = (
                -(-shape.vocab // tp) * shape.hidden
                if "embedding" in name or "head" in name
                else p.numel() // tp
            )
            assert sizes[name] == (rows if cut else p.numel()), name
        norms = {
            n for n in alone if "norm" in n and (layout.endswith("sp") or "q_norm" in n or "k_norm" in n)
        }
        assert set(partial_sums) == norms | {n for n in alone if ".k." in n or ".v." in n}


def masks() -> tuple[Tensor, Tensor]:
    """In a rank: what dropout leaves of attention's weights, and of the residual stream after that."""
    with launch.process_group() as world:
        torch.manual_seed(5)
        ones = torch.ones(1, 1, 6, 6)
        core = varied(lambda q, k, v, p, training, causal: F.dropout(ones, p, training), world.rank)
        return core(ones, ones, ones, 0.5, True), F.dropout(torch.ones(64), 0.5)


def test_dropout_is_the_same_where_the_stream_is_and_other_in_each_ranks_heads(ranks):
    (heads, stream), (other_heads, other_stream) = ranks(masks, ranks=2).values
    assert torch.equal(stream, other_stream)
    assert not torch.equal(heads, other_heads)


def test_a_layer_asked_alone_or_twice_or_for_another_input_gives_what_the_whole_one_does(ranks):
    def work() -> list[float]:
        with launch.process_group() as world:
            torch.manual_seed(0)
            model = Transformer(BLOCKS["llama"].replace(heads=4, kv_heads=2, ffn=52), seed=3)
            alone = Transformer(model.shape, seed=3)
            mesh = Mesh(Layout(tp=2))
            shard_tensors(model, mesh, whole(model))
            x, other = torch.randn(2, 2, 3, model.shape.hidden)
            ours, theirs = model.blocks[0].attention, alone.blocks[0].attention
            errors = []
            for name, given in (("v", x), ("q", other), ("q", x), ("q", x), ("k", x)):
                part = getattr(theirs, name)(given).chunk(world.size, -1)[world.rank]
                errors.append(float((getattr(ours, name)(given) - part).abs().max()))
            return errors

    for errors in ranks(work, ranks=2).values:
        assert max(errors) < 1e-6


def keys_asked_first(kind: str, change: str) -> list[float]:
    """In a rank: after somebody has asked for the keys alone, the whole attention: output, gradients, against one device.

    ``kind`` is whether that was with gradients or without; ``change``, whether x has been written to since.
    """
    with launch.process_group() as world:
        torch.manual_seed(0)
        model = Transformer(BLOCKS["llama"].replace(heads=4, kv_heads=2, ffn=52), seed=3)
        alone = Transformer(model.shape, seed=3)
        shard_tensors(model, Mesh(Layout(tp=2)), whole(model))
        ours, theirs = model.blocks[0].attention, alone.blocks[0].attention
        angles = alone.angles(3)
        x, gradient = torch.randn(2, 2, 3, model.shape.hidden)
        results = []
        for attention in (ours, theirs):
            given = x.clone()
            with torch.set_grad_enabled(kind == "with gradients"):
                attention.k(given)
            if change == "in place":
                given.mul_(2)
            output = attention(given, *angles)
            output.backward(gradient)
            results.append([output, *(getattr(attention, name).weight.grad for name in "qkv")])
        (output, *found), (expected, *others) = results
        parts = [w.chunk(world.size)[world.rank] for w in others]
        pairs = [(output, expected), *zip(found, parts, strict=True)]
        return [float((a - b).abs().max()) for a, b in pairs]


@pytest.mark.parametrize(
    ("kind", "change"), [("without", "none"), ("with gradients", "in place"), ("without", "in place")]
)
def test_attention_uses_nothing_that_was_computed_without_gradients_or_for_other_numbers(ranks, kind, change):
    for errors in ranks(keys_asked_first, kind, change, ranks=2).values:
        assert max(errors) < 1e-6
