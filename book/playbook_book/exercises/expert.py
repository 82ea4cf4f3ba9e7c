"""Exercises of the chapter on expert parallelism."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from playbook.block import Kind
from playbook_book.exercises.exercise import NotYet, answers, exercise, function, number

if TYPE_CHECKING:
    from torch import Tensor


@number(
    "expert.bytes",
    "bytes of rows that a rank sends for one layer of DeepSeek-V3",
    praise="tokens · top-k rows, 63/64 of them to other ranks, there and back, in forward and in backward",
    otherwise="How many rows leave the rank, how wide are they, how often a step?",
)
def bytes_of_a_layer() -> tuple[float, dict[float, str]]:
    from playbook.shapes import load

    shape, tokens, ranks = load("deepseek-v3"), 4096, 64
    assert shape.moe is not None
    k, layers = shape.moe.top_k, shape.blocks()[Kind(experts=True)]
    right = tokens * k * (ranks - 1) // ranks * shape.hidden * 2 * 4
    return right, {
        right * 64 / 63: "almost: one row in 64 stays at home, for its expert is on the same rank",
        right / k: "each token becomes as many rows as it has experts",
        right * (k + 1) / k: "the shared expert is on every rank: its rows travel nowhere",
        right / 4: "that is the way to the experts alone: results travel, too, and gradients of both",
        right / 2: "half: results travel back, and backward sends the gradients of both ways",
        right * 2: "twice too much: bf16 has two bytes",
        right * layers: "that is the whole model, and the question is about one layer",
        right * ranks: "that is what all ranks send together",
    }


def _other_rows(given: Any, wanted: Sequence[Sequence[int]]) -> str:
    try:
        got = [[int(n) for n in one] for one in given]
    except TypeError:
        return "return two lists, rows sent to each rank and rows that come from each"
    ranks = len(wanted[0])
    if [len(one) for one in got] != [ranks, ranks]:
        return f"both lists need a number for each of {ranks} ranks, not for each expert"
    if got == [list(one) for one in wanted]:
        return "the numbers are right; return them as int in two lists, please"
    which = int(got[0] == list(wanted[0]))
    name, rows = ("sent", "coming")[which], sum(wanted[which])
    return f"{name} {got[which]}, but these are {rows} rows in {ranks} other parts"


_COUNTS = (
    [[3, 1], [0, 2]],
    [[1, 2, 3, 4], [5, 0, 0, 1]],
    [[2, 0, 1, 1, 0, 5], [0, 0, 0, 0, 0, 0], [1, 1, 3, 0, 2, 2]],
)


@function(
    "expert.splits",
    "how many rows a rank sends to each rank, and how many come from each",
    cases=[(counts, rank) for counts in _COUNTS for rank in range(len(counts))],
    case=lambda counts, rank: f"rank {rank} of {len(counts)}, {len(counts[0])} experts",
    praise="to each rank the rows of its experts; from each what it has for ours",
    otherwise=_other_rows,
)
def splits(counts: list[list[int]], rank: int) -> tuple[list[int], list[int]]:
    ranks, each = len(counts), len(counts[0]) // len(counts)
    by_rank = [[sum(row[r * each :][:each]) for r in range(ranks)] for row in counts]
    return by_rank[rank], [row[rank] for row in by_rank]


def _not_to_itself(counts: list[list[int]], rank: int) -> list[list[int]]:
    return [[n * (r != rank) for r, n in enumerate(one)] for one in splits(counts, rank)]


def _every_other(counts: list[list[int]], rank: int) -> tuple[list[int], list[int]]:
    ranks = len(counts)
    return [sum(counts[rank][r::ranks]) for r in range(ranks)], [sum(row[rank::ranks]) for row in counts]


answers(
    "expert.splits",
    wrong={
        "what is sent and what comes are the wrong way round": lambda *given: splits(*given)[::-1],
        "rows for its own experts are in the list, too": _not_to_itself,
        "each rank has neighbouring experts, the first ones on rank 0": _every_other,
    },
)


@exercise("expert.router", "repair", "a router whose output is right and which never learns")
def router(mended: Callable[..., Any]) -> str:
    import torch

    made = torch.Generator().manual_seed(0)
    x, outputs = (torch.randn(shape, generator=made, dtype=torch.float64) for shape in ((9, 5), (9, 6, 5)))
    weight = torch.randn(6, 5, generator=made, dtype=torch.float64)

    def run(route: Callable[..., Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Weights of all experts (n, E), and the gradients of the router and of the tokens."""
        leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
        chosen, weights = route(*leaves, 2)
        spread = torch.zeros(9, 6, dtype=torch.float64).scatter(1, chosen, weights)
        y = (spread[..., None] * outputs).sum(1) + leaves[0] * 0
        found = torch.autograd.grad(y.square().sum(), leaves, allow_unused=True, materialize_grads=True)
        return spread.detach(), found[1], found[0]

    spread, to_router, to_tokens = run(mended)
    right = run(_route)
    if not torch.allclose(spread, right[0]):
        _weights_of(spread, right[0])
    if not to_router.any():
        raise NotYet(
            "the output is that of the router, but no gradient reaches its weights: they stay as they were initialized"
        )
    off = float((to_router - right[1]).norm() / right[1].norm())
    if off > 1e-9:
        raise NotYet(
            f"the output is right, but the gradient of the router's weights is off by {off:.0%} of its norm"
        )
    if not torch.allclose(to_tokens, right[2]):
        raise NotYet("the router's weights get their gradient, but the tokens get none through their scores")
    return "output and gradients, of the router's weights and of the tokens"


def _weights_of(spread: Tensor, right: Tensor) -> None:
    import torch

    if not torch.equal(spread > 0, right > 0):
        raise NotYet(f"token 0 goes to experts {spread[0].nonzero().flatten().tolist()}: not the two best")
    total = spread.sum(1)
    if not torch.allclose(total, torch.ones_like(total)):
        raise NotYet(f"the weights of token 0 add up to {total[0]:.2f}, and here to 1")
    mine, wanted = (row[0][row[0] > 0].tolist() for row in (spread, right))
    raise NotYet(f"token 0 weighs its experts {_two(mine)}: by their scores these are {_two(wanted)}")


def _two(weights: list[float]) -> str:
    return " and ".join(f"{w:.2f}" for w in weights)


def _route(
    x: Tensor, weight: Tensor, k: int, *, sign=1, power=1, total=lambda w: w.sum(-1, keepdim=True)
) -> tuple[Tensor, Tensor]:
    scores = (x @ weight.T).softmax(-1)
    chosen = (sign * scores).topk(k, -1).indices
    weights = scores.gather(-1, chosen) ** power
    return chosen, weights / total(weights)


answers(
    "expert.router",
    right=[_route],
    wrong={
        "but no gradient reaches its weights": lambda x, weight, k: _route(x.detach(), weight.detach(), k),
        "add up to 0.96, and here to 1": partial(_route, total=lambda weights: 1),
        "token 0 weighs its experts 0.50 and 0.50: by their scores": partial(_route, power=0),
        "not the two best": partial(_route, sign=-1),
        "but the tokens get none through their scores": lambda x, *others: _route(x.detach(), *others),
        "the gradient of the router's weights is off by": (
            partial(_route, total=lambda weights: weights.sum(-1, keepdim=True).detach())
        ),
    },
)


@exercise("expert.balance", "repair", "a load-balancing loss that grows with the number of micro-batches")
def balance(mended: Callable[..., Any]) -> str:
    import torch

    for parts in (1, 2, 4):
        model, batches = _Small(), _batches(parts)
        own, even = (_gradient(model, batches, *share) for share in ((1.0, 0.0), (0.0, 1.0)))
        model.zero_grad()
        mended(model, batches, _ALPHA)
        if any(p.grad is None for p in model.parameters()):
            raise NotYet("a parameter got no gradient: each micro-batch needs a backward pass")
        found = _flat(model)
        # As so many times the gradient of the model's own loss, and so many times that of the balance.
        times = torch.linalg.lstsq(torch.stack([own, even], 1), found[:, None]).solution.flatten()
        off = float((found - times[0] * own - times[1] * even).norm() / found.norm())
        lead = (
            "" if parts == 1 else "right with one micro-batch; " if parts == 2 else "right with one and two; "
        )
        where = f"{lead}with {parts}, " if parts > 1 else "with one micro-batch, "
        if off > 1e-6:
            raise NotYet(f"{where}the gradient is {off:.0%} away from any sum of the two losses'")
        if abs(float(times[0]) - 1) > 1e-6:
            raise NotYet(f"{where}the model's own loss counts {abs(float(times[0])):.2f} times")
        if abs(float(times[1]) - 1) > 1e-6:
            raise NotYet(f"{where}the load-balancing loss counts {abs(float(times[1])):.2f} times")
    return "both losses count once, in one micro-batch, two and four"


_ALPHA = 0.1


def _batches(parts: int) -> list[tuple[Tensor, Tensor]]:
    import torch

    text = torch.randint(16, (8, 13), generator=torch.Generator().manual_seed(2))
    return [(part[:, :-1], part[:, 1:]) for part in text.chunk(parts)]


def _gradient(model: Any, batches: Sequence[tuple[Tensor, Tensor]], own: float, even: float) -> Tensor:
    """The gradient of ``own`` times the mean loss of a token, and ``even`` times that of the balance."""
    import torch.nn.functional as F

    model.zero_grad()
    total = sum(targets.numel() for _, targets in batches)
    for inputs, targets in batches:
        logits, evenness = model(inputs)
        nll = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / total
        (own * nll + even * _ALPHA * evenness * targets.numel() / total).backward()
    return _flat(model)


def _flat(model: Any) -> Tensor:
    import torch

    return torch.cat([p.grad.flatten() for p in model.parameters()])


def _Small() -> Any:
    """Embedding, a mixture of four linear experts, head; it returns logits, and E · Σ f · P of its tokens."""
    import torch
    from torch import nn

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            made = torch.Generator().manual_seed(1)
            for name, size in (
                ("table", (16, 6)),
                ("router", (4, 6)),
                ("experts", (4, 6, 6)),
                ("head", (16, 6)),
            ):
                value = torch.randn(size, generator=made, dtype=torch.float64)
                self.register_parameter(name, nn.Parameter(value))

        def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
            x = self.get_parameter("table")[inputs]  # (b, s, h)
            scores = (x @ self.get_parameter("router").T).softmax(-1)  # (b, s, E)
            weight, chosen = scores.max(-1)
            y = torch.einsum("bsh,bshi->bsi", x, self.get_parameter("experts")[chosen]) * weight[..., None]
            often = torch.zeros_like(scores).scatter(-1, chosen[..., None], 1.0).mean((0, 1))
            return (x + y) @ self.get_parameter("head").T, 4 * (often * scores.mean((0, 1))).sum()

    return Small()


def _stepped(model: Any, micro_batches: Any, alpha: float, *, own=1.0, even=1.0, parts=None) -> None:
    import torch.nn.functional as F

    tokens = sum(targets.numel() for _, targets in micro_batches)
    for inputs, targets in micro_batches:
        logits, evenness = model(inputs)
        nll = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / tokens
        (own * nll + even * alpha * evenness / (parts or len(micro_batches))).backward()


answers(
    "expert.balance",
    right=[_stepped],
    wrong={
        "with 2, the load-balancing loss counts 2.00 times": partial(_stepped, parts=1),
        "with one micro-batch, the load-balancing loss counts 0.00 times": partial(_stepped, even=0),
        "with one micro-batch, the model's own loss counts 0.50 times": partial(_stepped, own=0.5),
        "with 2, the gradient is": lambda model, batches, alpha: _stepped(model, batches[-1:], alpha),
        "each micro-batch needs a backward pass": lambda model, batches, alpha: None,
    },
)
