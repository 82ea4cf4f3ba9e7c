"""The chapter's policy gradient: rewards rise, ratios are 1, and its gradient is REINFORCE's."""

from __future__ import annotations

import functools

import pytest
import torch
from helpers import LLAMA

from playbook.model.ops import IGNORE
from playbook.training.config import TrainConfig
from playbook.training.data import load_corpus
from playbook.training.trainer import make_trainer
from playbook_book.policy_gradient import GROUP, PolicyLoss, advantages, learn, vowels

SHAPE = LLAMA.replace(vocab=256, hidden=32, heads=4, ffn=48, layers=1)


def test_rewards_and_advantages_of_a_group():
    tokens = torch.tensor([list(b"aeix"), list(b"xyzx")])
    assert vowels(tokens).tolist() == [0.75, 0.0]
    rewards = torch.linspace(0, 1, 2 * GROUP)
    found = advantages(rewards).view(2, GROUP)
    assert found.mean(1).abs().max() < 1e-6
    assert found.std(1) == pytest.approx([1.0, 1.0], abs=1e-2)


def test_the_gradient_is_that_of_reinforce():
    """−A · log p, by autograd of torch's own softmax, where the sampler's probabilities are the trainer's."""
    trainer = make_trainer(SHAPE, load_corpus(), TrainConfig(seq=8, global_batch=2))
    text, weights = torch.randint(256, (2, 9)), torch.tensor([[1.5], [-0.5]]).expand(-1, 5)
    targets = text[:, 1:].clone()
    targets[:, :3] = IGNORE
    said = trainer.model(text[:, :-1]).log_softmax(-1).gather(-1, text[:, 1:, None])[:, 3:, 0]
    wanted = torch.autograd.grad(-(weights * said).sum() / 10, list(trainer.model.parameters()))
    trainer.model.token_losses = PolicyLoss(trainer, said.detach(), weights)
    trainer.engine.zero_grad()
    trainer.engine.accumulate(text[:, :-1], targets, 2)
    for p, gradient in zip(trainer.model.parameters(), wanted, strict=True):
        assert p.grad is not None
        assert (p.grad - gradient).norm() <= 1e-5 * max(float(gradient.norm()), 1e-3)


@functools.cache
def trained() -> dict[str, torch.Tensor]:
    """A model that has seen that text has vowels."""
    trainer = make_trainer(SHAPE, load_corpus(), TrainConfig(steps=60, seq=32, global_batch=8, lr=1e-2))
    for _ in range(40):
        trainer.step()
    return trainer.engine.state_dict()["model"]


@pytest.mark.parametrize(("layout", "tp", "world"), [("dp=2,zero=3", 2, 2), ("tp=2", 1, 2)])
def test_reward_rises_and_ratios_are_one(ranks, layout, tp, world):
    found = ranks(
        learn, trained(), SHAPE, layout, tp, rounds=8, finest=2, new=8, lr=1e-2, prompts=2, ranks=world
    )
    for rounds in found.values:
        assert all(one.off == one.unequal == 0 for one in rounds)
        assert rounds[-1].reward > rounds[0].reward + 0.2


def test_a_stale_sampler_is_seen_in_the_ratio(ranks):
    how = {"rounds": 3, "new": 8, "lr": 1e-2, "prompts": 2, "every": 2}
    first, second, third = ranks(learn, trained(), SHAPE, "dp=2", 2, **how, ranks=2).values[0]
    assert max(first.off, third.off) < 1e-4 < 0.1 < second.off
