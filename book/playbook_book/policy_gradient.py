"""Reinforcement learning in a page: a sampler writes, a reward counts bytes, a trainer makes what paid more likely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from playbook.launch import process_group
from playbook.layout import Layout
from playbook.model.ops import IGNORE
from playbook.parallel.mesh import Mesh
from playbook.seeding import derive_seed
from playbook.training.config import TrainConfig
from playbook.training.data import load_corpus
from playbook.training.trainer import Trainer, make_trainer
from playbook_book.sampling.sampler import Sampler, log_probabilities

#: Each prompt is continued so many times: the mean reward of these is what one of them is compared with (GRPO).
GROUP = 8


@dataclass(frozen=True)
class Round:
    """One round: the mean ``reward``; the largest distance of an importance ratio from 1, and the share of tokens whose
    ratio is not 1; and a ``sample``."""

    reward: float
    off: float
    unequal: float
    sample: bytes


def vowels(tokens: Tensor) -> Tensor:
    """The share of vowels in each row of bytes: (b, n) -> (b,)."""
    return torch.isin(tokens, torch.tensor(list(b"aeiou"))).float().mean(-1)


def advantages(rewards: Tensor) -> Tensor:
    """How much better each sample is than the mean of its group, in deviations of that (Shao et al. 2024)."""
    groups = rewards.view(-1, GROUP)
    return ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()


class PolicyLoss:
    """In the place of a model's token losses: −A · p/p_sampler of each new token, whose gradient is REINFORCE's."""

    def __init__(self, trainer: Trainer, said: Tensor, advantage: Tensor):
        mesh = trainer.mesh
        self.group = mesh.group("tp") if mesh and mesh.layout.tp > 1 else None
        self.vocab, self.said, self.advantage = trainer.model.shape.vocab, said.flatten(), advantage.flatten()
        self.ratios = torch.empty(0)

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Logits (n, vocab/t) and targets (n,), of which prompts are `IGNORE` -> the sum of the losses."""
        new = targets != IGNORE
        found = log_probabilities(logits[None], targets.clamp(min=0)[None], self.vocab, self.group)[0]
        ratios = (found[new] - self.said).exp()
        self.ratios = ratios.detach()
        return -(ratios * self.advantage).sum()


def one_round(trainer: Trainer, sampler: Sampler, prompts: Tensor, new: int, seed: int) -> Round:
    """Sample, reward, update. ``prompts`` (b, s) of all ranks; each is continued `GROUP` times."""
    prompts = prompts.repeat_interleave(GROUP, 0)
    draws = torch.rand(len(prompts), new, generator=torch.Generator().manual_seed(derive_seed(seed, "draws")))
    made = sampler.generate(sampler.own(prompts), sampler.own(draws))
    tokens, said = (sampler.everywhere(t) for t in made)
    rewards = vowels(tokens[:, -new:])
    weights = advantages(rewards)[:, None].expand(-1, new)

    rank, ranks = trainer.replica
    own = slice(rank * len(tokens) // ranks, (rank + 1) * len(tokens) // ranks)
    loss = PolicyLoss(trainer, said[own], weights[own])
    trainer.model.token_losses = loss
    inputs, targets = tokens[own, :-1], tokens[own, 1:].clone()
    targets[:, : prompts.shape[1] - 1] = IGNORE
    trainer.engine.zero_grad()
    trainer.engine.accumulate(inputs, targets, len(inputs))
    trainer.engine.clip(1.0)
    trainer.engine.step()

    seen = torch.stack([(loss.ratios - 1).abs().max(), (loss.ratios != 1).float().mean()])
    if dist.is_initialized():
        dist.all_reduce(seen, dist.ReduceOp.MAX)
    off, unequal = seen.tolist()
    return Round(float(rewards.mean()), off, unequal, bytes(tokens[0].tolist()))


def learn(
    state: dict[str, Any],
    shape: Any,
    layout: str,
    tp: int,
    *,
    rounds: int,
    finest: int = 0,
    every: int = 1,
    new: int = 24,
    lr: float = 1e-3,
    prompts: int = 4,
    seq: int = 8,
) -> list[Round]:
    """In a rank: policy gradient from the weights ``state`` on, trained as ``layout`` says, sampled with ``tp``; the
    sampler is refreshed after ``every`` so many rounds."""
    torch.set_num_threads(1)
    with process_group():
        spread, corpus = Layout.parse(layout), load_corpus()
        config = TrainConfig(layout=spread, steps=rounds, global_batch=prompts * GROUP, seq=seq + new, lr=lr)
        trainer = make_trainer(shape, corpus, config, Mesh(spread))
        trainer.engine.load_state_dict({"model": state})
        sampler = Sampler(trainer.engine, tp, finest=finest)
        found = []
        for i in range(rounds):
            generator = torch.Generator().manual_seed(derive_seed(i, "prompts"))
            starts = torch.randint(len(corpus) - seq, (prompts, 1), generator=generator)
            found.append(
                one_round(trainer, sampler, corpus.tokens[starts + torch.arange(seq)].long(), new, i)
            )
            if (i + 1) % every == 0:
                sampler.refresh()
        return found
