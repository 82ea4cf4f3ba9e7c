"""The measure of "the same gradients" sees what it must see."""

import math

import pytest
import torch
from helpers import BLOCKS, tokens

from playbook.errors import ConfigError
from playbook.model.transformer import Transformer
from playbook.parallel.engine import accumulate_gradients
from playbook_book.instruments.parity import gradient_vector, relative_error


@pytest.mark.parametrize("block", BLOCKS)
def test_the_vector_holds_every_gradient_once(block):
    model = Transformer(BLOCKS[block])
    accumulate_gradients(model, *tokens(BLOCKS[block], 2, 5), 2)
    vector = gradient_vector(model)
    assert vector.shape == (BLOCKS[block].num_parameters,)
    squares = sum(float(p.grad.double().square().sum()) for p in model.parameters())
    assert float(vector.double().square().sum()) == pytest.approx(squares, rel=1e-9)


def test_the_vector_is_a_copy_and_a_missing_gradient_is_zero():
    model = torch.nn.Linear(3, 2)
    assert torch.equal(gradient_vector(model), torch.zeros(8))
    model.weight.grad = torch.ones(2, 3)
    before = gradient_vector(model)
    model.weight.grad.zero_()
    assert before.tolist() == [1.0] * 6 + [0.0] * 2


def test_relative_error_is_relative_to_the_reference():
    reference = torch.tensor([3.0, 4.0])
    assert relative_error(reference, reference) == 0
    assert relative_error(2 * reference, reference) == 1
    assert relative_error(torch.tensor([3.0, 4.5]), reference) == pytest.approx(0.1)
    assert math.isnan(relative_error(torch.tensor([3.0, float("nan")]), reference))


def test_what_cannot_be_compared():
    with pytest.raises(ConfigError, match=r"shape \(2,\), but the reference has \(3,\)"):
        relative_error(torch.ones(2), torch.ones(3))
    with pytest.raises(ConfigError, match="zero everywhere"):
        relative_error(torch.ones(2), torch.zeros(2))
