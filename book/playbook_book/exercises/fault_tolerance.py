"""Exercises of the chapter on fault tolerance."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from playbook.estimates.goodput import best_interval, cluster_mtbf, young
from playbook_book.exercises.exercise import NotYet, exercise, number

if TYPE_CHECKING:
    from torch import Tensor


@exercise("fault-tolerance.interval", "number", "how often 4,096 GPUs should save")
def interval(answer: Any) -> str:
    gpus, device, save = 4096, 80_000 * 3600.0, 40.0
    mtbf = cluster_mtbf(device, gpus)
    right = best_interval(save, mtbf) / 60
    hints: dict[float, str] = {
        60 * right: "that is in seconds; how many minutes?",
        right / math.sqrt(2): "a failure loses half an interval on average, not a whole one",
        right * math.sqrt(2): "a failure loses half an interval, and each interval has a save: compare again",
        young(save, device) / 60: "that is how often one GPU alone should save: any of 4,096 may fail",
        mtbf / 60: "that is how long the run lasts between two failures",
        young(save, 80_000) / 60: "hours and seconds do not mix: 80,000 hours are 288 million seconds",
    }
    number(
        answer,
        right,
        hints,
        tolerance=0.03,
        otherwise="Which rate of losses falls with the interval, and which rises?",
    )
    lost = math.sqrt(2 * save / mtbf)
    return f"saves and lost work then take {lost:.1%} of the time together, half of it each"


@exercise(
    "fault-tolerance.reads",
    "function",
    "which parts of which files a rank reads after the layout has changed",
)
def reads(write: Callable[..., Any]) -> str:
    chance = random.Random(0)
    cases = [([4, 4], 0, 8), ([4, 4], 0, 4), ([3, 5, 4], 2, 9), ([8], 3, 5), ([2, 0, 2], 1, 3)]
    for _ in range(40):
        lengths = [chance.randint(0, 6) for _ in range(chance.randint(1, 6))]
        start, stop = sorted(chance.randint(0, sum(lengths)) for _ in range(2))
        cases.append((lengths, start, stop))
    for lengths, start, stop in cases:
        wanted = list(_reads(lengths, start, stop))
        given = write(list(lengths), start, stop)
        said = f"lengths={lengths}, start={start}, stop={stop}: got {given!r}"
        try:
            found = [(int(file), int(first), int(count)) for file, first, count in given]
        except (TypeError, ValueError):
            raise NotYet(f"{said}, expected a list of (file, first, count)") from None
        if found != wanted:
            raise NotYet(f"{said}; {_why(found, wanted, lengths, start, stop)}")
    return "each element is read once, and no rank reads what it does not keep"


def _reads(lengths: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    begin = 0
    for file, length in enumerate(lengths):
        first, last = max(start, begin), min(stop, begin + length)
        if first < last:
            yield file, first - begin, last - first
        begin += length


def _why(found: list[Any], wanted: list[Any], lengths: Sequence[int], start: int, stop: int) -> str:
    if sorted(found) == wanted:
        return "in the order of the files, please"
    if [read for read in found if read[2] > 0] == wanted:
        return "a read of nothing is still a read: leave it out"
    if [file for file, _, _ in found] == [file for file, _, _ in wanted]:
        if [count for *_, count in found] == [count for *_, count in wanted]:
            return "the right files and counts; `first` counts from the beginning of the file"
        if sum(count for *_, count in found) > stop - start:
            return "these are more elements than are needed: a file is not read whole"
        return "the right files, but not the right parts of them"
    few, many = {file for file, *_ in wanted}, {file for file, *_ in found}
    return f"elements are in files {sorted(few)}, and you read {sorted(many)}"


# ---- repairs


class _Batches:
    """A stream of batches: what comes next depends on the seed and on how many there have been."""

    def __init__(self, seed: int):
        self.seed, self.position = seed, 0

    def next(self) -> Tensor:
        import torch

        self.position += 1
        return torch.randn(8, 4, generator=torch.Generator().manual_seed(1000 * self.seed + self.position))


def _run(seed: int) -> tuple[Any, Any, Any, _Batches]:
    import torch
    from torch import nn

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.3), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 8))
    return model, optimizer, schedule, _Batches(3)


def _steps(run: tuple[Any, Any, Any, _Batches], count: int) -> list[float]:
    model, optimizer, schedule, batches = run
    losses = []
    for _ in range(count):
        x = batches.next()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


@exercise(
    "fault-tolerance.resume", "repair", "a checkpoint that has weights and moments, and not all of the rest"
)
def resume(mended: Any) -> str:
    import torch

    if not isinstance(mended, tuple | list) or len(mended) != 2 or not all(map(callable, mended)):
        raise NotYet("hand in both functions: check(…, (save, resume))")
    save, load = mended
    with torch.random.fork_rng(devices=[]):
        first = _run(0)
        _steps(first, 4)
        random_state = torch.get_rng_state()
        saved = copy.deepcopy(save(*first))
        torch.set_rng_state(random_state)
        wanted = {
            "learning rate": first[2].get_last_lr()[0],
            "place in the data": first[3].position,
            "weight": first[0][0].weight[0, 0].item(),
            "update count": float(next(iter(first[1].state.values()))["step"]),
        }
        on = _steps(first, 4)
        again = _run(1)
        load(saved, *again)
        state = next(iter(again[1].state.values()), {"step": 0.0})
        found = {
            "learning rate": again[2].get_last_lr()[0],
            "place in the data": again[3].position,
            "weight": again[0][0].weight[0, 0].item(),
            "update count": float(state["step"]),
        }
        dropout = torch.equal(torch.get_rng_state(), random_state)
        same = _steps(again, 4) == on
    for name, value in wanted.items():
        if found[name] != value:
            raise NotYet(
                f"after four steps the {name} is {value:.6g}; the resumed run begins with {found[name]:.6g}"
            )
    if not dropout:
        raise NotYet(
            "weights, moments, learning rate and place in the data are right; but dropout draws other masks than in the "
            "run that was not interrupted"
        )
    if not same:
        raise NotYet("the resumed run begins in the same state, and its next losses are others all the same")
    return "four steps, and four more: the losses of a run that nothing has interrupted, bit for bit"


@exercise(
    "fault-tolerance.moments", "repair", "optimizer states that find their way into another pipeline stage"
)
def moments(mended: Callable[..., Any]) -> str:
    import torch

    made = torch.Generator().manual_seed(0)
    names = [f"blocks.{i}.{kind}" for i in range(3) for kind in ("down", "up")]
    whole = {name: torch.nn.Parameter(torch.randn(4, 4, generator=made)) for name in names}
    optimizer = torch.optim.Adam(list(whole.values()), lr=0.1)
    for _ in range(5):
        for p in whole.values():
            p.grad = torch.randn(4, 4, generator=made)
        optimizer.step()
    saved = {name: copy.deepcopy(optimizer.state[p]) for name, p in whole.items()}
    for own in (names, sorted(names, key=lambda name: name.split(".")[::-1]), names[::-1]):
        given = [torch.nn.Parameter(whole[name].detach().clone()) for name in own]
        other = torch.optim.Adam(given, lr=0.1)
        mended(copy.deepcopy(saved), other, list(own))
        _check_states(other, given, own, saved)
    return "by name, with the count of updates: then Adam's next update is the one that it would have been"


def _check_states(optimizer: Any, given: list[Any], own: list[str], saved: dict[str, Any]) -> None:
    import torch

    for name, p in zip(own, given, strict=True):
        state = optimizer.state.get(p, {})
        missing = [kind for kind in ("exp_avg", "exp_avg_sq", "step") if kind not in state]
        if missing:
            raise NotYet(f"{name} has no {missing[0]}: Adam will begin anew, or fail")
        for kind in ("exp_avg", "exp_avg_sq"):
            if torch.equal(state[kind], saved[name][kind]):
                continue
            whose = next(
                (f"{other}'s {k}" for other in own for k in ("exp_avg", "exp_avg_sq")
                 if torch.equal(state[kind], saved[other][k])), "nobody's",
            )  # fmt: skip
            raise NotYet(f"with parameters in the order {own}, the {kind} of {name} is {whose}")
        if float(state["step"]) != float(saved[name]["step"]):
            raise NotYet(
                f"{name} has had {float(saved[name]['step']):.0f} updates, and Adam is told {float(state['step']):.0f}: "
                "it will divide its moments by the wrong 1 − βᵗ"
            )


class _Disk:
    """A folder that all ranks see. A file is there as soon as its writing begins, and whole some moments later."""

    def __init__(self, chance: random.Random):
        self.chance, self.files = chance, dict[str, bool]()

    def write(self, path: str) -> Iterator[None]:
        """Use with ``yield from``."""
        self.files[path] = False
        for _ in range(self.chance.randint(1, 6)):
            yield
        self.files[path] = True

    def exists(self, path: str) -> bool:
        return path in self.files


@exercise("fault-tolerance.commit", "repair", "a checkpoint that is complete on rank 0 only")
def commit(mended: Callable[..., Any]) -> str:
    for seed in range(60):
        chance = random.Random(seed)
        ranks = 1 + seed % 4
        dies = chance.randrange(ranks) if seed % 3 == 2 else None
        _try(mended, ranks, dies, chance)
    return "complete means complete on all ranks, whoever is slow, and never when one of them has died"


def _try(save: Callable[..., Any], ranks: int, dies: int | None, chance: random.Random) -> None:
    disk = _Disk(chance)
    running = {rank: save(rank, ranks, disk) for rank in range(ranks)}
    if any(not hasattr(each, "__next__") for each in running.values()):
        raise NotYet(
            "save is no generator any more: it waits with `yield`, and writes with `yield from disk.write(…)`"
        )
    last = chance.randint(0, 3)
    for _ in range(2000):
        if not running:
            break
        rank = chance.choice(list(running))
        if rank == dies and last == 0:
            del running[rank]
            continue
        last -= rank == dies
        if next(running[rank], "done") == "done":
            del running[rank]
        _check_complete(disk, ranks)
    whole = all(disk.files.get(f"step-100/rank-{r}") for r in range(ranks))
    if dies is None and not whole:
        raise NotYet(f"{ranks} ranks, none of which died, and not all of their files are there in the end")
    if dies is None and not disk.files.get("step-100/complete"):
        raise NotYet(f"{ranks} ranks, none of which died, and the checkpoint never becomes complete")


def _check_complete(disk: _Disk, ranks: int) -> None:
    if not disk.exists("step-100/complete"):
        return
    for rank in range(ranks):
        path = f"step-100/rank-{rank}"
        if path not in disk.files:
            raise NotYet(f"of {ranks} ranks: `complete` is there, and {path} is not")
        if not disk.files[path]:
            raise NotYet(
                f"of {ranks} ranks: `complete` is there, and {path} exists, but is still being written"
            )
