"""Exercises of the chapter on fault tolerance."""

from __future__ import annotations

import contextlib
import copy
import math
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from playbook_widgets.compute.intervals import best_interval, cluster_mtbf, daly, young

from playbook_book.exercises.exercise import NotYet, answers, exercise, number

if TYPE_CHECKING:
    from torch import Tensor

_SAVE, _DEVICE, _GPUS = 40.0, 80_000 * 3600.0, 4096


@number(
    "fault-tolerance.interval",
    "how often 4,096 GPUs should save",
    otherwise="Which rate of losses falls with the interval, and which rises?",
    tolerance=0.03,
)
def interval() -> tuple[float, dict[float, str], str]:
    mtbf = cluster_mtbf(_DEVICE, _GPUS)
    best = best_interval(_SAVE, mtbf) / 60
    hints: dict[float, str] = {
        60 * best: "that is in seconds; how many minutes?",
        best / math.sqrt(2): "a failure loses half an interval on average, not a whole one",
        best * math.sqrt(2): "a failure loses half an interval, and each interval has a save: compare again",
        young(_SAVE, _DEVICE) / 60: "that is how often one GPU alone should save: any of 4,096 may fail",
        mtbf / 60: "that is how long the run lasts between two failures",
        young(_SAVE, 80_000) / 60: "hours and seconds do not mix: 80,000 hours are 288 million seconds",
    }
    lost = math.sqrt(2 * _SAVE / mtbf)
    return best, hints, f"saves and lost work then take {lost:.1%} of the time together, half of it each"


def _share_lost(seconds: float) -> float:
    """A save in each interval, and half of one with each failure."""
    return _SAVE / seconds + seconds / 2 * _GPUS / _DEVICE


answers(
    "fault-tolerance.interval",
    right=[min(range(100, 10_000), key=_share_lost) / 60, daly(_SAVE, _DEVICE / _GPUS) / 60, 39.5],
)


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


def _by_elements(lengths, start, stop):
    parts: dict[int, list[int]] = {}
    for file, at in [(file, at) for file, length in enumerate(lengths) for at in range(length)][start:stop]:
        parts.setdefault(file, []).append(at)
    return [(file, part[0], len(part)) for file, part in parts.items()]


answers(
    "fault-tolerance.reads",
    right=[_by_elements],
    wrong={
        "a file is not read whole": lambda n, *part: [(file, 0, n[file]) for file, *_ in _reads(n, *part)],
        "from the beginning of the file": lambda n, *part: [
            (file, first + sum(n[:file]), count) for file, first, count in _reads(n, *part)
        ],
        "a read of nothing": lambda n, *part: [*_reads(n, *part), (len(n), 0, 0)],
        "not the right parts": lambda n, start, stop: [*_reads(n, start, stop - 1)],
        "in the order of the files": lambda n, *part: [*_reads(n, *part)][::-1],
        "more elements than are needed": lambda n, *part: [
            (file, first, first + count) for file, first, count in _reads(n, *part)
        ],
        "expected a list of (file, first, count)": lambda n, *part: [file for file, *_ in _reads(n, *part)],
    },
)


# ---- repairs


class _Dies(Exception):
    """What ends a run in the middle of an epoch."""


class _Steps:
    """What a script calls to train on a batch: notes the samples and the loss, and dies at the step ``last``."""

    def __init__(self, last: int | None = None):
        self.last, self.seen = last, list[tuple[tuple[float, ...], float]]()

    def __call__(self, model: Any, optimizer: Any, x: Tensor) -> None:
        if len(self.seen) == self.last:
            raise _Dies
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        self.seen.append((tuple(x[:, 0].tolist()), loss.item()))


_EPOCHS, _A_EPOCH = 4, 3  # epochs of a run, steps of an epoch


def _runs(train: Callable[..., Any], folder: str) -> list[list[tuple[tuple[float, ...], float]]]:
    """In a rank: the steps of a run that nothing disturbs, of one that dies in its third epoch, and of its next start."""
    import os

    import torch
    from torch import nn

    from playbook.launch import process_group

    with process_group() as world:
        data = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))

        def start(name: str, seed: int, last: int | None = None) -> list[tuple[tuple[float, ...], float]]:
            torch.manual_seed(seed)
            model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
            steps = _Steps(last)
            with contextlib.suppress(_Dies):
                train(world.rank, os.path.join(folder, name), _EPOCHS, model, data, steps)
            torch.distributed.barrier()  # a second start reads what rank 0 has written
            return steps.seen

        return [start("a", 0), start("b", 0, last=2 * _A_EPOCH + 1), start("b", 1)]


@exercise(
    "fault-tolerance.script", "repair", "a training script with DDP that starts again, and does not resume"
)
def script(mended: Callable[..., Any]) -> str:
    from playbook import launch

    with tempfile.TemporaryDirectory() as folder:
        try:
            ranks = launch.run(_runs, mended, folder, ranks=2, timeout=60, backend="gloo").values
        except launch.RankError as error:
            if "state_dict" not in str(error):
                raise
            raise NotYet(
                "the second start cannot load what the first has saved: DDP's keys begin with `module.`, the model's "
                "do not"
            ) from error
    for whole, before, again in ranks:
        _check_script(whole, before, again)
    return "killed in the third epoch and started again: the losses of a run that nothing has disturbed, bit for bit"


def _check_script(whole: list[Any], before: list[Any], again: list[Any]) -> None:
    if len(whole) != _EPOCHS * _A_EPOCH:
        raise NotYet(
            f"{_EPOCHS} epochs are {_EPOCHS * _A_EPOCH} steps for each of two ranks, not {len(whole)}"
        )
    orders = [[samples for samples, _ in whole[i : i + _A_EPOCH]] for i in range(0, len(whole), _A_EPOCH)]
    if orders[1] == orders[0]:
        raise NotYet("every epoch has its samples in the order of the first")
    rest = whole[2 * _A_EPOCH :]
    if len(again) != len(rest):
        raise NotYet(
            f"it died in its third epoch, of {_EPOCHS}; the second start trains {len(again) / _A_EPOCH:g} epochs"
        )
    if [samples for samples, _ in again] != [samples for samples, _ in rest]:
        raise NotYet("the resumed epochs have other samples, or another order, than in an undisturbed run")
    same = [a == b for (_, a), (_, b) in zip(again, rest, strict=True)]
    if not same[0]:
        raise NotYet("the first loss of the resumed run is another than in an undisturbed one: other weights")
    if not all(same):
        raise NotYet(
            "the resumed run begins with the right loss, and its next ones are others: weights are not all that an "
            "update depends on"
        )


def _ddp_script(rank, path, epochs, model, data, step, *, without=(), wrapped=False, in_order=False):
    """The script, repaired but for what is left out."""
    import os

    import torch
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler

    sampler: DistributedSampler[Tensor] = DistributedSampler(data)
    adam = torch.optim.Adam(model.parameters(), lr=0.02)
    done = 0
    if os.path.exists(path):
        saved = torch.load(path, weights_only=True)
        if "model" not in without:
            model.load_state_dict(saved["model"])
        if "adam" not in without:
            adam.load_state_dict(saved["adam"])
        if "epoch" not in without:
            done = saved["epoch"]
    ddp = DistributedDataParallel(model)
    for epoch in range(done, epochs):
        if not in_order:
            sampler.set_epoch(epoch - done if "order" in without else epoch)
        for x in DataLoader(data, batch_size=4, sampler=sampler):
            step(ddp, adam, x)
        if rank == 0:
            kept = ddp if wrapped else model
            torch.save({"model": kept.state_dict(), "adam": adam.state_dict(), "epoch": epoch + 1}, path)


answers(
    "fault-tolerance.script",
    right=[_ddp_script],
    wrong={
        "DDP's keys begin with `module.`": partial(_ddp_script, wrapped=True),
        "in the order of the first": partial(_ddp_script, in_order=True),
        "the second start trains 4 epochs": partial(_ddp_script, without=("epoch",)),
        "another order, than in an undisturbed run": partial(_ddp_script, without=("order",)),
        "other weights": partial(_ddp_script, without=("model",)),
        "weights are not all": partial(_ddp_script, without=("adam",)),
    },
)


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


def _moved(saved, optimizer, names, *, change=dict, by_name=True):
    places = zip(names, saved, optimizer.param_groups[0]["params"], strict=True)
    for name, in_turn, p in places:
        optimizer.state[p] = change(saved[name if by_name else in_turn])


answers(
    "fault-tolerance.moments",
    right=[_moved],
    wrong={
        "has had 5 updates, and Adam is told 0": partial(
            _moved, by_name=False, change=lambda state: {**state, "step": 0 * state["step"]}
        ),
        "is blocks.": partial(_moved, by_name=False),
        "the exp_avg of blocks.0.down is blocks.0.down's exp_avg_sq": partial(
            _moved,
            change=lambda state: {**state, "exp_avg": state["exp_avg_sq"], "exp_avg_sq": state["exp_avg"]},
        ),
        "has no exp_avg_sq": partial(_moved, change=lambda state: {"exp_avg": state["exp_avg"]}),
    },
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


def _committed(rank, ranks, disk, *, mark=".written", waits=True, told_by=lambda ranks: 0):
    """A rank may write another file behind its own, one of them waits for those of all, and tells."""
    yield from disk.write(f"step-100/rank-{rank}")
    if mark:
        yield from disk.write(f"step-100/rank-{rank}{mark}")
    if rank == told_by(ranks):
        while waits and not all(disk.exists(f"step-100/rank-{r}{mark}") for r in range(ranks)):
            yield
        yield from disk.write("step-100/complete")


answers(
    "fault-tolerance.commit",
    right=[_committed],
    wrong={
        "of 2 ranks: `complete` is there, and step-100/rank-1": partial(_committed, mark="", waits=False),
        "exists, but is still being written": partial(_committed, mark=""),
        "of 3 ranks: `complete` is there, and step-100/rank-0 is not": partial(
            _committed, mark="", waits=False, told_by=lambda ranks: ranks - 1
        ),
        "never becomes complete": partial(_committed, told_by=lambda ranks: None),
        "`complete` is there, and step-100/rank-1 is not": lambda rank, ranks, disk: (
            iter(()) if rank else _committed(0, 1, disk)
        ),
        "no generator any more": lambda rank, ranks, disk: None,
    },
)
