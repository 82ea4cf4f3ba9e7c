"""A sampler generates what the trainer's forward pass says: to the last bit with batch-invariant operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import BLOCKS, DEEPSEEK, MIXTRAL, relative_error, tokens
from hypothesis import given
from hypothesis import strategies as st
from parallel_runs import Case

from playbook import launch
from playbook.errors import ConfigError, LayoutError
from playbook.layout import Layout
from playbook.model.transformer import Transformer
from playbook.parallel.engine import Engine
from playbook.parallel.mesh import Mesh
from playbook_book.sampling import invariant
from playbook_book.sampling.sampler import Sampler, log_probabilities

SHAPES = {
    "gpt": BLOCKS["gpt"].replace(hidden=24, heads=4, layers=2),
    "llama": BLOCKS["llama"].replace(
        hidden=32, heads=8, kv_heads=2, ffn=52, layers=2, tied=True, qk_norm=True
    ),
    "latent": DEEPSEEK.replace(layers=2, heads=4, moe=None, ffn=28),
}
EXPERTS = MIXTRAL.replace(heads=4, kv_heads=4, layers=2, moe={"experts": 4, "top_k": 2, "ffn": 20})
PROMPT, NEW, SAMPLES, FINEST = 5, 9, 8, 4


def draws(shape: Any) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    prompts = torch.randint(shape.vocab, (SAMPLES, PROMPT), generator=generator)
    return prompts, torch.rand(SAMPLES, NEW, generator=generator)


def trainer_says(engine: Engine, text: torch.Tensor, tp: Any = None) -> torch.Tensor:
    """Log-probabilities of the new tokens, in one pass over the whole text."""
    model = engine.model
    x = model.hidden_states(text[:, :-1])
    found = log_probabilities(model.head(model.final_norm(x)), text[:, 1:], model.shape.vocab, tp)
    return found[:, PROMPT - 1 :]


def enlarged(model: Transformer) -> None:
    """Weights as after training: of new ones all log-probabilities are nearly the same."""
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.mul_(8)


def generated(cases: list[tuple[str, str, int, int]]) -> list[tuple[torch.Tensor, ...]]:
    """In a rank: of each case the tokens of its replica, the sampler's log-probabilities, and the trainer's."""
    torch.set_num_threads(1)
    found = []
    with launch.process_group():
        for name, text, tp, finest in cases:
            mesh = Mesh(Layout.parse(text)) if text else None
            engine = Case(EXPERTS if name == "experts" else SHAPES[name], prepare=enlarged).engine(mesh)
            sampler = Sampler(engine, tp, finest=finest)
            prompts, uniform = (sampler.own(t) for t in draws(engine.model.shape))
            made, said = sampler.generate(prompts, uniform)
            texts = sampler.everywhere(made)
            group = mesh.group("tp") if mesh and mesh.layout.tp > 1 else None
            with torch.no_grad():  # one pass over all samples, other rows beside them than the sampler had
                also = sampler.own(trainer_says(engine, texts[:, : PROMPT + NEW - mesh.layout.sp], group))
            found.append((made, said, also, sampler.own(torch.arange(SAMPLES))))
    return found


BITWISE = [
    ("llama", "dp=2,zero=3", 2), ("llama", "tp=2,sp", 1), ("gpt", "tp=2", 1), ("latent", "dp=2,zero=1", 2),
]  # fmt: skip
WIDER = [
    ("llama", "dp=2,tp=2,sp,zero=3", 4), ("llama", "tp=4,sp", 2), ("gpt", "dp=4,zero=2,replicate=2", 4),
    ("latent", "tp=4", 1), ("latent", "dp=2,tp=2", 4),
]  # fmt: skip


@pytest.mark.parametrize("cases", [BITWISE, WIDER], ids=["2 ranks", "4 ranks"])
def test_log_probabilities_are_the_trainers_to_the_last_bit(ranks, cases):
    """Whatever both layouts, and with other samples beside them; and the tokens are those of one device."""
    world = Layout.parse(cases[0][1]).world_size
    found = ranks(generated, [(*case, FINEST) for case in cases], ranks=world).values
    for i, (name, text, tp) in enumerate(cases):
        alone, said = on_one_device(name)
        for made, said_here, also, replica in (each[i] for each in found):
            n = also.shape[1]
            assert torch.equal(said_here[:, :n], also), (name, text, tp)
            assert torch.equal(made, alone[replica]), (name, text, tp)
            assert torch.equal(said_here, said[replica])


def on_one_device(name: str, finest: int = FINEST) -> tuple[torch.Tensor, torch.Tensor]:
    engine = Case(SHAPES[name], prepare=enlarged).engine()
    return Sampler(engine, 1, finest=finest).generate(*draws(SHAPES[name]))


@pytest.mark.parametrize("name", SHAPES)
def test_the_cache_changes_nothing_but_rounding(name):
    """By PyTorch's operators: what a forward pass over the whole text and torch's own softmax say."""
    made, said = on_one_device(name, finest=0)
    model = Case(SHAPES[name], prepare=enlarged).model()
    with torch.no_grad():
        told = model(made[:, :-1]).log_softmax(-1).gather(-1, made[:, 1:, None])[:, PROMPT - 1 :, 0]
    assert (said - told).abs().max() <= 1e-5


def test_experts_are_sampled_from_too(ranks):
    """Of two ranks, from experts on both to matrices cut over both; with rounding."""
    for _, said, also, _ in ranks(generated, [("experts", "dp=2,ep=2,zero=3", 2, 0)], ranks=2).values[0]:
        assert (said - also).abs().max() <= 1e-5


@pytest.mark.parametrize("name", SHAPES)
def test_batch_invariant_operators_are_those_of_the_model(name):
    """Loss and gradients of PyTorch's operators, to rounding."""
    shape, found = SHAPES[name], []
    for invariantly in (False, True):
        model = Transformer(shape, seed=1)
        if invariantly:
            invariant.use_invariant(model, FINEST)
        loss, count = model.loss(*tokens(shape, 4, 9))
        (loss / count).backward()
        found.append((loss.detach(), {name: p.grad for name, p in model.named_parameters()}))
    (loss, gradients), (own, own_gradients) = found
    assert abs(own / loss - 1) <= 1e-5
    assert relative_error(own_gradients, gradients) <= 1e-5


@given(
    st.integers(1, 9),
    st.integers(1, 7),
    st.integers(1, 40),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(0, 99),
)
def test_a_row_of_a_product_is_the_same_alone_and_branches_add_up(rows, columns, inner, chunks, seed):
    generator = torch.Generator().manual_seed(seed)
    x, w = (torch.randn(n, inner * 8, generator=generator) for n in (rows, columns))
    whole = invariant.product(x, w, chunks)
    assert torch.equal(whole[-1:], invariant.product(x[-1:].clone(), w, chunks))
    assert torch.equal(whole[:, -1:], invariant.product(x, w[-1:].clone(), chunks))
    halves = zip(x.chunk(2, 1), w.chunk(2, 1), strict=True)
    if chunks > 1:
        assert torch.equal(whole, invariant.tree([invariant.product(*half, chunks // 2) for half in halves]))
    exact = x.double() @ w.double().t()
    assert (whole - exact).abs().max() <= 1e-6 * inner * 8 * float((x.abs() @ w.abs().t()).max())


@given(st.integers(1, 5), st.integers(1, 50), st.integers(0, 20), st.integers(0, 99))
def test_attention_of_the_last_tokens_is_that_of_a_longer_text(n, before, after, seed):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, heads, before + n + after, 8, generator=generator) for heads in (4, 2, 2))
    whole = invariant.attention(q, k, v)
    end = before + n
    some = invariant.attention(q[:, :, before:end].clone(), k[:, :, :end].clone(), v[:, :, :end].clone())
    assert torch.equal(some, whole[:, :, before:end])
    told = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert (whole - told).abs().max() <= 1e-5


@pytest.mark.parametrize(("shape", "options", "words"), [
    (SHAPES["llama"], {"finest": 3}, "finest must be a power of two, so that branches can be added apart, got 3"),
    (SHAPES["llama"], {"finest": 8}, "finest must divide the 52 features"),
    (SHAPES["llama"].replace(dropout=0.1), {"finest": 4}, "dropout=0.1, for which there are no batch-invariant"),
    (EXPERTS, {"finest": 4}, "a mixture of experts, for which there are no batch-invariant operators"),
    (SHAPES["llama"], {"tp": 2}, "tp of the sampler must divide the trainer's 1 ranks, got 2"),
])  # fmt: skip
def test_what_cannot_be_is_refused_in_one_sentence(shape, options, words):
    engine = Case(shape).engine()
    with pytest.raises((ConfigError, LayoutError), match=words) as error:
        Sampler(engine, **{"tp": 1, **options})
    assert "\n" not in str(error.value)


def refusals(cases: list[tuple[str, dict[str, Any]]]) -> list[str]:
    found = []
    with launch.process_group():
        for text, options in cases:
            engine = Case(SHAPES["llama"]).engine(Mesh(Layout.parse(text).replace(**options)))
            try:
                Sampler(engine, 1, finest=1 if "tp" in text and not options else 4)
            except ConfigError as error:
                found.append(str(error))
    return found


def test_what_ranks_cannot_have_is_refused(ranks):
    cases = [("tp=2", {}), ("tp=2,sp", {"tensor_overlap": "chunked"}), ("cp=2", {})]
    told = ["finest must be a multiple of tp = 2, got 1", "tensor_overlap is chunked", "cp must be 1 for"]
    for each in ranks(refusals, cases, ranks=2).values:
        assert len(each) == 3
        assert all(said.startswith(words) for said, words in zip(each, told, strict=True)), each
