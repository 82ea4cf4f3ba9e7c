"""Wrong answers that readers of the chapter on memory may well give, and what they are told."""

import pytest
import torch

from playbook.cli import main
from playbook_book.exercises import grade

PARAMETERS, BYTES_PER_TOKEN, CARD = 1_235_814_400, 1_997_956, 24_564 * 2**20
#: Two gradients in fp32, of the log-probabilities and of the logits, for each of 128,256 vocabulary entries.
IN_BACKWARD_OF_THE_LOSS = 2 * 4 * 128_256
#: Cosines and sines in fp32 of 64 dimensions at each of 131,072 positions.
ROTARY_ANGLES = 2 * 4 * 64 * 131_072


def longest(memory):
    """By hand: weights and states of 2 + 12 bytes, no gradient yet, and per token what is saved and in the making."""
    return (memory - 14 * PARAMETERS - ROTARY_ANGLES) // (BYTES_PER_TOKEN + IN_BACKWARD_OF_THE_LOSS)


def planted(model, batches):
    total, tokens = 0.0, 0
    for x, y in batches:
        loss, count = model.loss(x, y)
        total += loss
        tokens += count
    return total / tokens


def item(model, batches):
    total, tokens = 0.0, 0
    for x, y in batches:
        loss, count = model.loss(x, y)
        total += loss.item()
        tokens += count
    return total / tokens


@torch.no_grad()
def mean_of_means(model, batches):
    means = []
    for x, y in batches:
        loss, count = model.loss(x, y)
        means.append(loss / count)
    return sum(means) / len(means)


@torch.no_grad()
def mended(model, batches):
    return planted(model, batches)


def tensors(b, s, h, kv, f, a):
    return 2 * b * s * (6 * h + 2 * kv + 4 * f)


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("block", lambda b, s, h, kv, f, a: 34 * b * s * h, "for a block of Llama 2 7B and 1 × 4,096 tokens"),
        ("block", lambda b, s, h, kv, f, a: tensors(b, s, h, h, f, a), "right for Llama 2 7B, whose keys"),
        ("block", lambda b, s, h, kv, f, a: tensors(1, s, h, kv, f, a), "2 × 1,024 tokens, 0.5"),
        (
            "block",
            lambda b, s, h, kv, f, a: tensors(b, s, h, kv, f, a) // 2,
            "0.500 times what autograd saves",
        ),
        ("block", lambda b, s, h, kv, f, a: 2 * b * s * (6 * h + 2 * kv + 3 * f), "0.8"),
        ("block", lambda b, s, h, kv, f, a: "many", "the answer is a number of bytes"),
        ("validation", planted, "with 8 batches autograd keeps 2.0 times the activations"),
        ("validation", item, "those of 2 batches at the peak, for a backward pass that never comes"),
        ("validation", mean_of_means, "not the mean over all tokens"),
        ("longest", (CARD - 16 * PARAMETERS) // BYTES_PER_TOKEN, "that is 16N + A: it leaves out"),
        ("longest", (CARD - 14 * PARAMETERS) // BYTES_PER_TOKEN, "14N + A is right about the gradients"),
        ("longest", CARD // BYTES_PER_TOKEN, "without the training states"),
        ("longest", longest(24e9), "nvidia-smi reports 24,564 MiB, and MiB are binary"),
        ("longest", longest(CARD - 2 * PARAMETERS), "gradients there from an earlier micro-batch"),
        ("longest", 4096, "4,096 is too large. Ask `predict` for the peak"),
        ("longest", longest(CARD) + 1, "one token too many"),
        ("longest", longest(CARD) - 1, "one token more fits"),
    ],
)
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"memory.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text


def test_right_answers_are_right_however_they_are_written():
    assert grade("memory.longest", longest(CARD)).right
    assert grade("memory.block", tensors).right
    assert grade("memory.validation", mended).right
    assert grade("memory.validation", torch.inference_mode()(planted)).right


def test_the_command_line_says_that_the_longest_sample_fits_and_one_token_more_does_not(capsys):
    for tokens, too_long in ((longest(CARD), False), (longest(CARD) + 1, True)):
        main(["memory", "--model", "llama3.2-1b", "--seq", str(tokens), "--accelerator", "rtx4090"])
        assert ("does not fit" in capsys.readouterr().out) == too_long
