"""Generation draws from the model's own prediction, and leaves the model as it was."""

import pytest
import torch
from helpers import BLOCKS, GPT, LLAMA, tokens

from playbook.errors import ConfigError
from playbook.model.generate import generate
from playbook.model.transformer import Transformer


@pytest.mark.parametrize("shape", BLOCKS.values(), ids=list(BLOCKS))
def test_without_temperature_every_token_is_the_likeliest_after_those_before(shape):
    model = Transformer(shape)
    prompt, _ = tokens(shape, 2, 5)
    written = generate(model, prompt, 6, temperature=0)
    assert written.shape == (2, 11)
    assert torch.equal(written[:, :5], prompt)
    with torch.no_grad():
        predicted = model.eval()(written[:, :-1]).argmax(-1)  # one pass over the whole text
    assert torch.equal(written[:, 5:], predicted[:, 4:])


def test_frequencies_follow_the_softmax_at_that_temperature():
    model = Transformer(GPT.replace(vocab=5))
    prompt = torch.tensor([[1, 2, 3]])
    drawn = generate(model, prompt.repeat(20_000, 1), 1, temperature=0.05, seed=3)[:, -1]
    with torch.no_grad():
        expected = torch.softmax(model(prompt)[0, -1] / 0.05, -1)
    assert expected.max() > 0.3  # the temperature matters here: at 1 all five are near 0.2
    torch.testing.assert_close(drawn.bincount(minlength=5) / 20_000, expected, atol=0.012, rtol=0)


def test_a_seed_repeats_and_another_differs():
    model = Transformer(LLAMA)
    prompt, _ = tokens(LLAMA, 1, 4)
    first, again, other = (generate(model, prompt, 20, seed=s) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_text_longer_than_the_positions_slides_over_the_last_ones():
    model = Transformer(GPT.replace(max_seq=4))
    written = generate(model, torch.tensor([[1, 2, 3]]), 6, temperature=0)
    with torch.no_grad():
        assert written[0, -1] == model(written[:, -5:-1])[0, -1].argmax()


def test_context_is_all_that_the_model_sees():
    model = Transformer(LLAMA)
    prompt, _ = tokens(LLAMA, 1, 9)
    seen = generate(model, prompt[:, -3:], 5, temperature=0, context=3)
    assert torch.equal(generate(model, prompt, 5, temperature=0, context=3)[:, -5:], seen[:, -5:])


@pytest.mark.parametrize(("context", "most"), [(3, 3), (None, 6), (9, 6)])
def test_the_model_is_given_the_last_tokens_as_many_as_there_may_be(context, most):
    model, given = Transformer(GPT.replace(max_seq=6)), []
    model.register_forward_pre_hook(lambda module, inputs: given.append(inputs[0]))
    written = generate(model, torch.tensor([[1, 2]]), 7, context=context)
    for length, seen in enumerate(given, start=2):
        assert torch.equal(seen, written[:, max(0, length - most) : length])
    assert len(given) == 7


def test_dropout_is_off_meanwhile_and_back_on_afterwards():
    model = Transformer(GPT.replace(dropout=0.5))
    torch.manual_seed(1)
    first = generate(model, torch.tensor([[1, 2, 3]]), 8, temperature=0)
    torch.manual_seed(2)
    assert torch.equal(first, generate(model, torch.tensor([[1, 2, 3]]), 8, temperature=0))
    assert model.training
    assert not first.requires_grad


@pytest.mark.parametrize(
    ("prompt", "options", "field"),
    [
        (torch.zeros(1, 0, dtype=torch.long), {}, "prompt"),
        (torch.zeros(3, dtype=torch.long), {}, "prompt"),
        (torch.zeros(1, 1, dtype=torch.long), {"new_tokens": -1}, "new_tokens"),
        (torch.zeros(1, 1, dtype=torch.long), {"temperature": -0.5}, "temperature"),
        (torch.zeros(1, 1, dtype=torch.long), {"context": 0}, "context"),
    ],
)
def test_bad_input_is_one_clear_sentence(prompt, options, field):
    with pytest.raises(ConfigError, match=field):
        generate(Transformer(GPT), prompt, **{"new_tokens": 3, **options})
