"""FLOPs: the counts reproduce the published formulas, and follow the shape term by term."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playbook.block import Norm, size, symbols, weighty
from playbook.errors import ConfigError
from playbook.planning.flops import (
    ATTENTION_CORE,
    forward_flops,
    matmul_flops,
    stages_of_equal_cost,
    step_flops,
)
from playbook.shapes import PRESETS, ModelShape, load
from playbook_book.training_time import hfu, mfu

GPT3 = load("gpt3-175b")


def test_terms_of_one_layer_by_hand():
    shape = ModelShape(layers=1, hidden=6, heads=3, kv_heads=1, vocab=11, ffn=10, gated=True)
    tokens, seq = 2 * 5, 5
    assert forward_flops(shape, batch=2, seq=seq) == {
        "query projection": 2 * tokens * 6 * 6,
        "key projection": 2 * tokens * 6 * 2,
        "value projection": 2 * tokens * 6 * 2,
        "attention scores": 2 * (2 * 3) * seq * seq * 2,
        "attention over values": 2 * (2 * 3) * seq * seq * 2,
        "output projection": 2 * tokens * 6 * 6,
        "mlp": 3 * 2 * tokens * 6 * 10,
        "head": 2 * tokens * 6 * 11,
    }


def classical_step_flops(shape: ModelShape, batch: int, seq: int) -> int:
    """The textbook model FLOPs of a step, 72·B·L·s·h²·(1 + s/6h + V/12hL), as an exact integer.

    Narayanan et al. 2021, section 5.1, without their recomputation. It holds for multi-head attention of
    total width h and an MLP of two matrices and width 4h. Per layer and token, forward: 8h² for the four
    projections, 16h² for the MLP, 4sh for the attention core; 2hV for the head; three times that with the
    backward pass.
    """
    h, layers, tokens = shape.hidden, shape.layers, batch * seq
    return 72 * tokens * layers * h**2 + 12 * tokens * layers * seq * h + 6 * tokens * h * shape.vocab


def test_narayanan_without_recomputation_is_the_count_for_gpt3():
    batch, seq, h, layers, vocab = 1536, 2048, 12288, 96, 50257
    formula = 72 * batch * layers * seq * h**2 * (1 + seq / (6 * h) + vocab / (12 * h * layers))
    counted = step_flops(GPT3, batch, seq)
    assert counted.model == classical_step_flops(GPT3, batch, seq)
    assert counted.model == pytest.approx(formula, rel=1e-12)
    assert counted.hardware == counted.model


def test_narayanan_with_full_recomputation_is_the_hardware_count_for_gpt3():
    # Section 5.1: 96·B·s·L·h²·(1 + s/6h + V/16Lh).
    batch, seq, h, layers, vocab = 1536, 2048, 12288, 96, 50257
    formula = 96 * batch * layers * seq * h**2 * (1 + seq / (6 * h) + vocab / (16 * h * layers))
    assert step_flops(GPT3, batch, seq, "full").hardware == pytest.approx(formula, rel=1e-12)


@given(
    st.integers(1, 8),
    st.integers(1, 8),
    st.integers(1, 16),
    st.integers(1, 99),
    st.integers(1, 4),
    st.integers(1, 64),
)
def test_classical_formula_is_the_count_of_every_gpt(layers, heads, width, vocab, batch, seq):
    shape = ModelShape(layers=layers, hidden=heads * width, heads=heads, vocab=vocab)
    assert classical_step_flops(shape, batch, seq) == step_flops(shape, batch, seq).model


def test_selective_recomputation_costs_gpt3_2_7_percent_of_a_forward_pass():
    step = step_flops(GPT3, 1, 2048, "selective")
    assert step.recomputed / step.forward == pytest.approx(0.027, abs=0.0005)
    # Of the step, forward and backward, it is a third of that.
    assert step.hardware / step.model - 1 == pytest.approx(0.009, abs=0.0005)


def test_recomputation_adds_what_it_says():
    shape = load("llama3-8b")
    terms = forward_flops(shape, 2, 512)
    none, selective, full = (step_flops(shape, 2, 512, kind) for kind in ("none", "selective", "full"))
    assert none.recomputed == 0
    assert selective.recomputed == sum(terms[name] for name in ATTENTION_CORE)
    assert full.recomputed == sum(terms.values()) - terms["head"]
    assert none.backward == 2 * none.forward
    assert none.model == selective.model == full.model == 3 * sum(terms.values())


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_without_attention_core_a_token_costs_two_flops_per_weight_it_meets(name):
    # The rule of thumb "2N per token", made exact: N without embedding, norms and biases, with the head; of layers with
    # a state also without its vectors and without what is computed with them.
    shape = PRESETS[name].replace(bias=False, qkv_bias=False, qk_norm=False, tied=False)
    terms = forward_flops(shape, 1, 1)
    weights = shape.active_parameters - sum(
        count
        for part, count in shape.parameters().items()
        if part in ("embedding", "positions", "norms", "final norm")
    )
    for kind, blocks in shape.blocks().items():
        vectors = [row for row in weighty(shape, kind) if isinstance(row, Norm) and row.part == "attention"]
        weights -= blocks * sum(size(row, symbols(shape)) for row in vectors)
    rest = sum(terms.get(name, 0) for name in (*ATTENTION_CORE, "states"))
    assert sum(terms.values()) - rest == 2 * weights


@pytest.mark.parametrize("attention", ["reference", "sdpa"])
@pytest.mark.parametrize("name", ["tiny", "tiny-gpt2", "gpt2", "smollm-135m", "qwen3-0.6b", "qwen2.5-0.5b"])
def test_torch_counts_the_same_flops_in_the_model_that_runs(name, attention):
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    from playbook.model.transformer import Transformer

    shape = PRESETS[name].replace(layers=3)  # more are the same again
    model = Transformer(shape, attention=attention, device="meta")
    assert sum(p.numel() for p in model.parameters()) == shape.num_parameters
    with FlopCounterMode(display=False) as forward:
        logits = model(torch.zeros(2, 64, dtype=torch.long, device="meta"))
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    counted = step_flops(shape, 2, 64)
    assert (forward.get_total_flops(), backward.get_total_flops()) == (counted.forward, counted.backward)


def test_experts_count_as_many_as_a_token_meets():
    shape = load("mixtral-8x7b")
    terms = forward_flops(shape, 1, 4096)
    assert terms["mlp"] == 32 * 2 * 3 * matmul_flops(4096, 14336, 4096)
    assert terms["router"] == 32 * matmul_flops(4096, 8, 4096)


def test_latent_attention_scores_are_wider_than_its_values():
    terms = forward_flops(load("deepseek-v3"), 1, 4096)
    assert terms["attention scores"] * 128 == terms["attention over values"] * 192
    assert terms["attention scores"] == 61 * matmul_flops(4096, 4096, 128 * 192)
    assert {"query projection", "latent projection", "key and value projection"} <= set(terms)


@given(st.integers(1, 5), st.integers(1, 64))
def test_batch_is_linear_and_only_the_core_is_quadratic_in_seq(batch, seq):
    shape = load("tiny")
    one, many, longer = (
        forward_flops(shape, 1, seq),
        forward_flops(shape, batch, seq),
        forward_flops(shape, 1, 2 * seq),
    )
    assert many == {name: batch * flops for name, flops in one.items()}
    assert longer == {name: (4 if name in ATTENTION_CORE else 2) * flops for name, flops in one.items()}


def test_utilisation():
    step = step_flops(load("llama3-8b"), 8, 4096, "full")
    assert mfu(step, seconds=2.0, peak_flops=989e12, gpus=4) == pytest.approx(step.model / (2 * 4 * 989e12))
    assert hfu(step, 2.0, 989e12, 4) / mfu(step, 2.0, 989e12, 4) == pytest.approx(step.hardware / step.model)
    # At full speed on one GPU the step takes model / peak seconds and MFU is 1.
    assert mfu(step, step.model / 989e12, 989e12) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"seconds": 0}, "seconds must be a number above 0, got 0"),
        ({"seconds": float("nan")}, "seconds must be a number above 0, got nan"),
        ({"peak_flops": -1.0}, "peak_flops must be a number above 0, got -1.0"),
        ({"peak_flops": True}, "peak_flops must be a number above 0, got True"),
        ({"gpus": 0}, "gpus must be at least 1, got 0"),
        ({"gpus": 1.5}, "gpus must be an integer, got 1.5"),
    ],
)
@pytest.mark.parametrize("utilisation", [mfu, hfu])
def test_utilisation_refuses_impossible_measurements(utilisation, values, sentence):
    step = step_flops(load("tiny"), 1, 8)
    with pytest.raises(ConfigError) as caught:
        utilisation(step, **{"seconds": 1.0, "peak_flops": 1e12, **values})
    assert str(caught.value) == sentence


def test_sizes_are_checked():
    with pytest.raises(ConfigError, match="batch must be at least 1, got 0"):
        forward_flops(GPT3, 0, 8)
    with pytest.raises(ConfigError, match=r"seq must be an integer, got 8\.0"):
        step_flops(GPT3, 1, 8.0)
    with pytest.raises(ConfigError, match="unknown recompute 'ful'; did you mean full"):
        step_flops(GPT3, 1, 8, "ful")


@given(st.integers(2, 40), st.integers(2, 8), st.integers(1, 3), st.integers(100, 300_000))
def test_no_other_number_of_blocks_beside_the_head_has_a_cheaper_costliest_stage(layers, depth, width, vocab):
    depth = min(depth, layers)
    shape = ModelShape(layers=layers, hidden=64 * width, heads=width, vocab=vocab)
    block = sum(forward_flops(shape.replace(layers=1), 1, 1).values()) - forward_flops(shape, 1, 1)["head"]
    block -= 2 * 2 * 64 * width  # attention to one token
    head = forward_flops(shape, 1, 1)["head"]

    def costliest(sizes):
        return max(block * max(sizes[:-1]), block * sizes[-1] + head)

    found = stages_of_equal_cost(shape, depth)
    assert len(found) == depth
    assert sum(found) == layers
    assert min(found[:-1]) >= 1
    for last in range(layers - depth + 2):
        others = -(-(layers - last) // (depth - 1))
        assert costliest(found) <= costliest([others, last]) * (1 + 1e-12)


def test_a_large_head_has_a_stage_for_itself():
    """The 8B model of the Ultra-Scale Playbook's sweep: its head costs as much as 2.2 blocks."""
    shape = ModelShape(layers=32, hidden=4096, heads=32, ffn=14336, gated=True, vocab=131072, tied=False)
    assert stages_of_equal_cost(shape, 4) == (9, 9, 8, 6)
    assert stages_of_equal_cost(shape, 16) == (3, 3, *[2] * 13, 0)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_packed_documents_attend_to_their_own(recompute):
    """As many FLOPs as of the documents alone, when they are all of one length."""
    shape = load("llama3-8b")
    packed = step_flops(shape, 2, 8192, recompute, document=1024)
    assert packed == step_flops(shape, 16, 1024, recompute)
    assert step_flops(shape, 2, 1024, recompute, document=9999) == step_flops(shape, 2, 1024, recompute)
