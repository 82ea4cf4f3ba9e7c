"""The chain rule box by box gives what autograd gives in one go."""

import pytest
import torch
from helpers import BLOCKS, GPT, tokens

from playbook.model.transformer import Transformer
from playbook_book.instruments.by_hand import boxes, step_by_boxes
from playbook_book.instruments.parity import gradient_vector, relative_error


@pytest.mark.parametrize("shape", BLOCKS.values(), ids=list(BLOCKS))
def test_gradients_and_loss_are_those_of_one_backward(shape):
    x, y = tokens(shape, 3, 7)
    whole, cut = Transformer(shape), Transformer(shape)
    total, count = whole.loss(x, y)
    (total / count).backward()
    loss = step_by_boxes(boxes(cut, y), x)
    torch.testing.assert_close(loss, (total / count).detach())
    assert relative_error(gradient_vector(cut), gradient_vector(whole)) < 1e-6


def test_boxes_stand_in_the_order_of_the_model_and_hold_all_of_it():
    shape = GPT.replace(tied=False)
    row = boxes(Transformer(shape), torch.zeros(1, 4, dtype=torch.long))
    assert [box.name for box in row] == ["embedding", "block 1", "block 2", "head"]
    assert sum(box.parameters for box in row) == shape.num_parameters


def test_every_box_is_timed_both_ways():
    x, y = tokens(GPT, 2, 5)
    row = boxes(Transformer(GPT), y)
    step_by_boxes(row, x)
    assert all(box.forward_s > 0 and box.backward_s > 0 for box in row)
