"""What fusion is called, what it saves, and how it is said on the command line."""

from __future__ import annotations

import json

import pytest

from playbook.cli import main
from playbook.errors import ConfigError
from playbook.layout import Layout
from playbook.planning.fusion import EVERYTHING, FUSED, NOTHING, chunk_tokens, load_fused, loss_of
from playbook.planning.memory import predict
from playbook.shapes import load

LLAMA = load("llama3-8b")


def test_names():
    assert load_fused(True) == load_fused("all") == EVERYTHING <= set(FUSED)
    assert load_fused(False) == load_fused("none") == load_fused("") == NOTHING
    assert load_fused("swiglu, norms") == load_fused(["norms", "swiglu"]) == {"norms", "swiglu"}
    with pytest.raises(ConfigError, match=r"'swigl'.*did you mean swiglu"):
        load_fused("norms,swigl")
    with pytest.raises(ConfigError, match="both cross-entropy and linear-cross-entropy: give one"):
        load_fused("cross-entropy,linear-cross-entropy")


@pytest.mark.parametrize(("tp", "loss"), [(1, "linear-cross-entropy"), (2, "cross-entropy")])
def test_the_loss_over_ranks_keeps_logits(tp, loss):
    assert loss_of(EVERYTHING, tp) == loss
    assert loss_of(NOTHING, tp) == ""


def activations(**options) -> int:
    return predict(LLAMA, seq=8192, **options).stages[0].activations


def test_what_each_saves_of_a_llama():
    """One activation of f numbers a token and block; fp32 log-probabilities for logits in bf16; no logits at all."""
    n, plain = 8192, activations()
    assert plain - activations(fused="swiglu") == 2 * n * LLAMA.ffn_dim * LLAMA.layers
    assert plain - activations(fused="cross-entropy") == (4 - 2) * n * LLAMA.vocab - 4 * n + 4
    saved = (
        4 * n * LLAMA.vocab + 4 - 2 * LLAMA.vocab * LLAMA.hidden
    )  # the weight's gradient is kept in its place
    assert plain - activations(fused="linear-cross-entropy") == saved
    assert activations(fused="norms,attention,weight-gradients") == plain


def test_gradients_that_are_added_in_the_product_need_no_matrix():
    def head(fused: str) -> int:
        layout = Layout(grad_acc=4, micro_batch=2, recompute="full")
        stage = predict(LLAMA, layout, seq=8192, recipe="bf16-mixed-main-grads", fused=fused).stages[0]
        assert stage.moment.name == "backward of the output head", stage.moment.name
        return stage.moment.working

    assert head("cross-entropy") - head("cross-entropy,weight-gradients") == 2 * LLAMA.vocab * LLAMA.hidden


def test_chunks_are_powers_of_two_and_their_logits_as_large_as_all_hidden_states(monkeypatch):
    sizes = [(8192, 128256, 4096), (100, 37, 24), (1, 1, 1), (7, 1000, 8)]
    assert [chunk_tokens(*size) for size in sizes] == [2048, 100, 1, 7]  # of 2,048 tokens at least, or of all
    monkeypatch.setattr("playbook.planning.fusion.CHUNK", 1)
    for n, v, h in sizes:
        chunk = chunk_tokens(n, v, h)
        assert chunk & (chunk - 1) == 0
        assert chunk * v >= n * h * v / (v + h)
        assert chunk == 1 or (chunk // 2) * -(-v // h) < n + -(-v // h)


def test_command_line(capsys):
    def stage(*words: str) -> dict:
        assert main(["memory", "--model", "llama3-8b", "--json", *words]) == 0
        return json.loads(capsys.readouterr().out)["stages"][0]

    assert stage("--fused")["activations"] == activations(fused=True)
    assert stage("--fused", "swiglu")["activations"] == activations(fused="swiglu")
    assert stage()["activations"] == activations()
    assert main(["memory", "--fused", "swish"]) == 2
    assert "fused 'swish'" in capsys.readouterr().err


def test_help_says_what_options_mean(capsys):
    with pytest.raises(SystemExit):
        main(["memory", "--help"])
    text = capsys.readouterr().out
    for name in FUSED:
        assert f"  {name} " in text
