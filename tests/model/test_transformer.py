"""The model is the published one: sizes, formulas against independent implementations, determinism."""

import pytest
import torch
import torch.nn.functional as F
from helpers import BLOCKS, GPT, LLAMA, gradients, relative_error, tokens

from playbook.errors import ConfigError, PlaybookError, ShapeError
from playbook.model.attention import rotary_table
from playbook.model.norms import RMSNorm
from playbook.model.ops import apply_rotary, reference_attention, sdpa_attention
from playbook.model.transformer import IGNORE, Transformer
from playbook.shapes import PRESETS


@pytest.mark.parametrize("name", [n for n, s in PRESETS.items() if not s.moe and not s.mla and not s.planned])
def test_every_dense_preset_builds_with_its_published_parameter_count(name):
    shape = PRESETS[name].replace(layers=min(PRESETS[name].layers, 2))
    model = _on_meta(shape)
    assert sum(p.numel() for p in model.parameters()) == shape.num_parameters


def _on_meta(shape):
    """The module tree of a shape of any size, without memory for its weights."""
    from unittest.mock import patch

    # Only the filling of weights is left out: the shapes are those of the real constructor.
    with patch("playbook.model.transformer.init_parameters"), patch.object(Transformer, "_register_rotary"):
        return Transformer(shape, device="meta")


@pytest.mark.parametrize("kv", [1, 2, 6])
def test_reference_and_fused_attention_agree(kv):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, 7, 4, dtype=torch.float64, requires_grad=True) for n in (6, kv, kv))
    out = reference_attention(q, k, v)
    expected = F.scaled_dot_product_attention(
        q, k.repeat_interleave(6 // kv, 1), v.repeat_interleave(6 // kv, 1), is_causal=True
    )
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(sdpa_attention(q, k, v), expected)
    weight = torch.randn_like(out)
    ours = torch.autograd.grad((out * weight).sum(), (q, k, v))
    theirs = torch.autograd.grad((expected * weight).sum(), (q, k, v))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_rms_norm_has_the_value_and_the_gradients_of_torch():
    torch.manual_seed(0)
    x = torch.randn(3, 5, 8, requires_grad=True)
    norm = RMSNorm(8, 1e-6)
    with torch.no_grad():
        norm.weight.normal_()
    weight = torch.randn(3, 5, 8)
    ours = torch.autograd.grad((norm(x) * weight).sum(), (x, norm.weight))
    expected = F.rms_norm(x, (8,), norm.weight, 1e-6)
    theirs = torch.autograd.grad((expected * weight).sum(), (x, norm.weight))
    torch.testing.assert_close(norm(x), expected)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_rotary_depends_on_the_distance_alone():
    """The product of a rotated query and a rotated key is a function of their distance (Su et al. 2021, eq. 11)."""
    cos, sin = rotary_table(32, 8)
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def product(m, n):
        return (
            apply_rotary(q, cos[m : m + 1], sin[m : m + 1]) * apply_rotary(k, cos[n : n + 1], sin[n : n + 1])
        ).sum()

    torch.testing.assert_close(product(3, 1), product(20, 18), atol=1e-5, rtol=1e-5)
    assert abs(product(3, 1) - product(4, 1)) > 1e-4
    assert apply_rotary(q, cos[5:6], sin[5:6]).norm() == pytest.approx(q.norm().item(), rel=1e-5)


@pytest.mark.parametrize("block", BLOCKS)
def test_no_token_sees_its_future(block):
    model = Transformer(BLOCKS[block], attention="reference").eval()
    x, _ = tokens(BLOCKS[block], 1, 12)
    changed = x.clone()
    changed[0, 8:] = (changed[0, 8:] + 1) % BLOCKS[block].vocab
    a, b = model(x), model(changed)
    torch.testing.assert_close(a[:, :8], b[:, :8])
    assert not torch.allclose(a[:, 8:], b[:, 8:])


@pytest.mark.parametrize("block", BLOCKS)
def test_positions_matter(block):
    model = Transformer(BLOCKS[block]).eval()
    x = torch.full((1, 10), 3)
    x[0, 0] = 5
    logits = model(x)
    assert not torch.allclose(logits[0, 4], logits[0, 9])


@pytest.mark.parametrize("block", BLOCKS)
def test_weights_depend_on_seed_and_name_alone(block):
    shape = BLOCKS[block]
    torch.manual_seed(1)
    a = Transformer(shape, seed=7).state_dict()
    torch.manual_seed(2)
    b = Transformer(shape.replace(layers=shape.layers), seed=7, recompute="full").state_dict()
    other = Transformer(shape, seed=8).state_dict()
    assert all(torch.equal(a[n], b[n]) for n in a)
    assert not torch.equal(a["embedding.weight"], other["embedding.weight"])
    assert not torch.equal(a["blocks.0.mlp.up.weight"], a["blocks.1.mlp.up.weight"])


def test_what_writes_into_the_residual_stream_starts_smaller_the_deeper_the_model():
    """GPT-2, section 2.3: 0.02/√(2·layers), for there are two such projections in a layer; the rest has 0.02."""
    shape = LLAMA.replace(layers=8, hidden=96, ffn=256, vocab=500)
    for name, weight in Transformer(shape, seed=3).state_dict().items():
        if weight.dim() == 2:
            into_stream = name.endswith(("attention.out.weight", "mlp.down.weight"))
            expected = 0.02 / 16**0.5 if into_stream else 0.02
            assert weight.std().item() == pytest.approx(expected, rel=0.1), name


def test_tied_head_is_the_embedding_and_gets_both_gradients():
    model = Transformer(GPT)
    assert model.head.weight is model.embedding.weight
    assert not any(name.startswith("head") for name, _ in model.named_parameters())
    untied = Transformer(GPT.replace(tied=False))
    with torch.no_grad():
        untied.head.weight.copy_(untied.embedding.weight)
    x, y = tokens(GPT, 2, 9)
    for m in (model, untied):
        m.loss(x, y)[0].backward()
    torch.testing.assert_close(
        model.embedding.weight.grad, untied.embedding.weight.grad + untied.head.weight.grad
    )


def test_loss_is_a_sum_over_the_targets_that_count():
    model = Transformer(LLAMA)
    x, y = tokens(LLAMA, 3, 11)
    y[0, 4:] = IGNORE
    y[2] = IGNORE
    total, count = model.loss(x, y)
    logp = model(x).log_softmax(-1)
    expected = -sum(logp[b, t, y[b, t]] for b in range(3) for t in range(11) if y[b, t] != IGNORE)
    assert count == 4 + 11
    torch.testing.assert_close(total, expected)


def test_dropout_is_active_in_training_only_and_seeded():
    model = Transformer(GPT.replace(dropout=0.5), attention="reference")
    x, _ = tokens(GPT, 2, 9)
    torch.manual_seed(0)
    a = model(x)
    torch.manual_seed(0)
    b = model(x)
    assert torch.equal(a, b)
    assert not torch.equal(a, model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


@pytest.mark.parametrize("block", BLOCKS)
def test_a_small_text_can_be_learnt_by_heart(block):
    model = Transformer(BLOCKS[block])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = tokens(BLOCKS[block], 2, 8)
    for _ in range(60):
        optimizer.zero_grad()
        total, count = model.loss(x, y)
        (total / count).backward()
        optimizer.step()
    assert (total / count).item() < 0.5


def test_qk_norm_and_qkv_bias_are_built():
    shape = LLAMA.replace(qk_norm=True, qkv_bias=True)
    model = Transformer(shape)
    assert sum(p.numel() for p in model.parameters()) == shape.num_parameters
    assert model.blocks[0].attention.q.bias is not None
    assert model.blocks[0].attention.out.bias is None
    x, y = tokens(shape, 2, 8)
    model.loss(x, y)[0].backward()
    assert all(g.abs().sum() > 0 for g in gradients(model).values())


def test_the_same_weights_give_the_same_gradients_with_either_attention():
    x, y = tokens(LLAMA, 2, 13)
    grads = []
    for attention in ("reference", "sdpa"):
        model = Transformer(LLAMA, attention=attention)
        model.loss(x, y)[0].backward()
        grads.append(gradients(model))
    assert relative_error(*grads) < 1e-5


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Transformer(GPT, attention="flash"), "reference, sdpa"),
        (lambda: Transformer(GPT, recompute="some"), "unknown recompute"),
        (lambda: Transformer(GPT)(torch.zeros(1, 41, dtype=torch.long)), "max_seq=40"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_sentence(make, words):
    with pytest.raises(PlaybookError, match=words) as error:
        make()
    assert isinstance(error.value, ShapeError | ConfigError)
    assert "\n" not in str(error.value)
