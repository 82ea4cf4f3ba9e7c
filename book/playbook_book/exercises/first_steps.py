"""Exercises of the chapter on first steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from playbook_book.exercises.exercise import NotYet, answers, exercise, number

if TYPE_CHECKING:
    from torch import Tensor


@number(
    "first-steps.steps",
    "optimizer steps of a run whose batch doubles once",
    praise="tokens of each part over its tokens per step, added up",
    otherwise="Each part takes its tokens / tokens per step.",
    tolerance=1e-4,
)
def steps_of_a_run() -> tuple[float, dict[float, str]]:
    early, late, small, large = 0.2e12, 2.8e12, 512 * 8192, 1024 * 8192
    steps, tokens = early / small + late / large, early + late
    return steps, {
        tokens / large: "that is the whole run at the larger batch",
        tokens / small: "that is the whole run at the smaller batch",
        early / small: "that is the first part of the run alone",
        late / large: "that is the second part of the run alone",
        steps * 8192: "a batch is given in samples here: how many tokens are they?",
        2 * tokens / (small + large): "the plain mean of both batches: few steps use the smaller one",
        tokens**2 / (early * small + late * large): (
            "steps add up, batches do not: a mean batch, weighted by tokens, gives too few steps"
        ),
    }


@exercise("first-steps.luck", "function", "the targets on which an untrained GPT beats chance")
def luck(suspects: Callable[..., Any]) -> str:
    import torch

    from playbook.model.transformer import Transformer
    from playbook.training.data import TokenBatches, load_corpus

    inputs, targets = TokenBatches(load_corpus(), 64, 64).batch(0)
    mask = suspects(inputs, targets)
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool or mask.shape != targets.shape:
        raise NotYet(
            f"the answer is a boolean mask of shape {tuple(targets.shape)}: one entry for each target"
        )
    if mask.all() or not mask.any():
        raise NotYet("a mask of all or of none singles nothing out: their mean loss is that of chance")
    model = Transformer("tiny-gpt2").eval()
    with torch.no_grad():
        losses = -model(inputs).log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    chance = math.log(256)
    there, elsewhere = losses[mask].mean().item(), losses[~mask].mean().item()
    said = f"{there:.2f} nats on your suspects, {elsewhere:.2f} on the others, {chance:.2f} by chance"
    if there > chance - 1:
        raise NotYet(said)
    missed = int(((targets == inputs) & ~mask).sum())
    if missed:
        raise NotYet(f"{said}: you are on to something, but {missed} of the others are as lucky")
    return "your suspects lose over a nat less than chance does, and nobody else is as lucky"


answers(
    "first-steps.luck",
    right=[lambda inputs, targets: targets == inputs],
    wrong={
        "nats on your suspects": lambda inputs, targets: targets == ord("e"),
        "you are on to something": lambda inputs, targets: (targets == inputs) & (targets == ord(" ")),
        "a boolean mask of shape (64, 64)": lambda inputs, targets: targets,
        "a mask of all or of none singles nothing out": lambda inputs, targets: targets == targets,
    },
)


@exercise("first-steps.shift", "repair", "a loss that falls while the model learns the wrong thing")
def shift(mended: Callable[..., Any]) -> str:
    import torch

    generator = torch.Generator().manual_seed(0)
    starts = torch.randint(_VOCAB, (8, 1), generator=generator)
    windows = (starts + _STRIDE * torch.arange(17)) % _VOCAB
    scores = [_score(mended, _Certain(ahead), windows) for ahead in (0, 1, 2)]
    if scores[1] > 0.01:
        known = {0: "that repeats its input", 2: "that is certain of the token after the next"}
        instead = [
            f"; one {text} scores {scores[ahead]:.2f}"
            for ahead, text in known.items()
            if scores[ahead] < 0.01
        ]
        raise NotYet(
            f"a model that is certain of the right next token scores {scores[1]:.2f} nats, not 0.00{''.join(instead)}"
        )
    doubting = _Certain(1, doubt=torch.arange(17) / 16)
    got, right = _score(mended, doubting, windows), _reference(doubting, windows)
    if math.isclose(got, right * windows[:, 1:].numel(), rel_tol=1e-4):
        raise NotYet("the sum of the losses: divide it by the number of predictions")
    if not math.isclose(got, right, rel_tol=1e-4):
        raise NotYet(
            f"right for a model without doubts; one that doubts more and more along the window scores {got:.3f} nats, "
            f"not {right:.3f}: does each prediction count, and count once?"
        )
    return "each token is scored by what was predicted from those before it"


#: Tokens of the text that the loss is tried on: each is the one before plus a constant.
_VOCAB, _STRIDE = 32, 5


class _Certain:
    """A model that puts all its probability on the token ``ahead`` places on, less where it has ``doubt`` (s,)."""

    def __init__(self, ahead: int, doubt: Tensor | None = None):
        import torch

        self.ahead, self.doubt = ahead, doubt
        self.sureness = torch.tensor(20.0, requires_grad=True)

    def __call__(self, tokens: Tensor) -> Tensor:
        from torch.nn.functional import one_hot

        logits = one_hot((tokens + self.ahead * _STRIDE) % _VOCAB, _VOCAB) * self.sureness
        return logits if self.doubt is None else logits * (1 - self.doubt[: tokens.shape[1], None])


def _score(loss: Callable[..., Any], model: _Certain, windows: Tensor) -> float:
    import torch

    value = loss(model, windows)
    if not isinstance(value, torch.Tensor) or not value.requires_grad or value.dim():
        raise NotYet("the loss is a scalar tensor with a gradient: backward has to start from it")
    return value.item()


def _reference(model: _Certain, windows: Tensor) -> float:
    logits = model(windows[:, :-1]).log_softmax(-1)
    return -logits.gather(-1, windows[:, 1:, None]).mean().item()


def _loss(model, windows, *, read=(0, -1), predicted=(0, None), wanted=(1, None), reduction="mean"):
    """Of the windows' tokens some are read, and some are compared with some of what is predicted."""
    from torch.nn.functional import cross_entropy

    logits = model(windows[:, slice(*read)])[:, slice(*predicted)]
    return cross_entropy(logits.flatten(0, 1), windows[:, slice(*wanted)].flatten(), reduction=reduction)


answers(
    "first-steps.shift",
    right=[_loss, partial(_loss, read=(0, None), predicted=(0, -1))],
    wrong={
        "the token after the next scores 0.00": partial(_loss, predicted=(0, -1), wanted=(2, None)),
        "one that repeats its input scores 0.00": partial(_loss, read=(0, None), wanted=(0, None)),
        "scores 20.00 nats, not 0.00": partial(_loss, read=(1, None), wanted=(0, -1)),
        "does each prediction count": partial(_loss, predicted=(0, -1), wanted=(1, -1)),
        "divide it by the number of predictions": partial(_loss, reduction="sum"),
        "a scalar tensor with a gradient": lambda model, windows: _loss(model, windows).item(),
    },
)
