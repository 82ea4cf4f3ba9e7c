"""Counting without memory gives the count of the real run, and the published formula at its published size."""

import pytest
import torch
from helpers import BLOCKS, GPT, LLAMA, tokens

from playbook.errors import ShapeError
from playbook.model.transformer import Transformer
from playbook.shapes import load
from playbook_book.classical_activations import classical_activation_bytes
from playbook_book.instruments.fake import saved_without_memory
from playbook_book.instruments.measured import SavedActivations


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("attention", ["reference", "sdpa"])
@pytest.mark.parametrize("block", BLOCKS)
def test_the_fake_run_saves_what_the_real_one_saves(block, attention, recompute):
    shape = BLOCKS[block]
    how = {"attention": attention, "recompute": recompute, "dtype": torch.float32}
    x, y = tokens(shape, 2, 16)
    model = Transformer(shape, **how)
    with SavedActivations(model, (x, y)) as real:
        model.loss(x, y)
    fake = saved_without_memory(shape, 2, 16, **how)
    assert fake.bytes == real.bytes > 0
    assert fake.by_module() == real.by_module()


def test_a_large_model_by_hand():
    """Four layers of Llama 3 8B at 8 192 tokens. Per layer: h-wide norm1 input, q/k/v input, q, attention output, norm2
    input and MLP input; kv-wide k and v; four ffn-wide; two fp32 statistics per token and one per query and head."""
    shape = load("llama3-8b").replace(layers=4)
    s, h, f, kv = 8192, 4096, 14336, 1024
    layer = 2 * s * (6 * h + 2 * kv + 4 * f) + 4 * s * (2 + 32)
    ends = (
        2 * s * 2 * h + 4 * s + 4 * s * shape.vocab + 4
    )  # final norm, head, its statistic; log-softmax, a scalar
    assert saved_without_memory(shape, 1, s).bytes == 4 * layer + ends


def test_gpt3_is_the_formula_and_its_small_print():
    shape = load("gpt3-175b").replace(layers=12)
    s, h = 2048, 12288
    saved = saved_without_memory(shape, 1, s, attention="reference")
    formula = classical_activation_bytes(shape, 1, s)
    statistics = (2 * shape.layers + 1) * 2 * 2 * s
    ends = s * h + 2 * 2 * s * h + 4 * s * shape.vocab + 4  # embedding dropout, final norm, head; loss
    assert saved.bytes == formula + statistics + ends


def test_rotary_positions_may_run_past_the_models_own():
    assert saved_without_memory(LLAMA, 1, 4 * LLAMA.max_seq).bytes > 0
    with pytest.raises(ShapeError):
        saved_without_memory(GPT, 1, 4 * GPT.max_seq)
