"""Batches come from (seed, step) alone, and bad text is refused in one sentence."""

import hashlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playbook.errors import ConfigError, DataError
from playbook.training.data import Corpus, TokenBatches, load_corpus


def test_the_default_text_is_the_same_on_every_python():
    """It was pydoc_data.topics of Python 3.11.7, which has other texts in every release."""
    digest = hashlib.sha256(bytes(load_corpus().tokens.numpy())).hexdigest()
    assert digest == "71f2ff5d99bdc1f9c48c5c2353ad138201c5ca1c377e0226857ef8fa89b8bcee"


def test_any_file_is_its_bytes(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("größe", encoding="utf-8")
    assert bytes(load_corpus(path).tokens.numpy()).decode() == "größe"


@given(st.integers(2, 60), st.integers(1, 9), st.integers(0, 2**31 - 1), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_targets_are_the_inputs_one_token_on(length, batch, seed, step):
    seq = max(1, length // 3)
    corpus = Corpus("count", torch.arange(length, dtype=torch.uint8))
    x, y = TokenBatches(corpus, batch, seq, seed).batch(step)
    assert x.shape == y.shape == (batch, seq)
    assert torch.equal(x + 1, y)  # the text counts up: every target is its input's successor
    assert x.is_contiguous()
    assert y.is_contiguous()


def test_every_window_can_be_drawn_also_the_last():
    corpus = Corpus("count", torch.arange(6, dtype=torch.uint8))
    batches = TokenBatches(corpus, 64, 4)
    assert {int(x) for x in batches.batch(0)[0][:, 0]} == {0, 1}
    only = TokenBatches(corpus, 2, 5).batch(0)
    assert only[1][0].tolist() == [1, 2, 3, 4, 5]


def test_a_step_is_a_function_of_seed_and_step():
    corpus = load_corpus()
    torch.manual_seed(0)
    a = TokenBatches(corpus, 4, 16, seed=3).batch(5)[0]
    torch.manual_seed(1)
    torch.rand(3)
    b = TokenBatches(corpus, 4, 16, seed=3).batch(5)[0]
    assert torch.equal(a, b)
    assert not torch.equal(a, TokenBatches(corpus, 4, 16, seed=3).batch(6)[0])
    assert not torch.equal(a, TokenBatches(corpus, 4, 16, seed=4).batch(5)[0])


@pytest.mark.parametrize(
    ("content", "words"), [("", "holds 0 bytes"), ("a", "holds 1 bytes"), (None, "cannot be read")]
)
def test_unreadable_and_empty_text(tmp_path, content, words):
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=words) as error:
        load_corpus(path)
    assert str(path) in str(error.value)


def test_a_folder_is_not_a_text(tmp_path):
    with pytest.raises(DataError, match="is a directory"):
        load_corpus(tmp_path)


def test_text_shorter_than_one_window():
    with pytest.raises(DataError, match="seq=8 needs at least 9"):
        TokenBatches(Corpus("short", torch.zeros(8, dtype=torch.uint8)), 1, 8)


@pytest.mark.parametrize("field", ["global_batch", "seq"])
def test_sizes_must_be_positive(field):
    sizes = {"global_batch": 2, "seq": 2, field: 0}
    with pytest.raises(ConfigError, match=f"{field} is 0"):
        TokenBatches(load_corpus(), **sizes)
