"""Exercises of the chapter from trainer to sampler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from playbook_book.exercises.exercise import NotYet, answers, answers_made, exercise, number

#: Bytes of Llama 3 70B in bf16.
WEIGHTS = 2 * 70_553_706_496
#: Rows from one to another, exclusive.
Rows = tuple[int, int]
#: Who sends, who gets, and which rows.
Message = tuple[int, int, int, int]


@number(
    "trainer-to-sampler.received",
    "the bytes that a rank gets",
    praise="it wants one half, and has an eighth of that half",
    otherwise="What does a rank want, and how much of that does it have already?",
    tolerance=0.01,
)
def received() -> tuple[float, dict[float, str]]:
    return WEIGHTS * 3 / 8, {
        WEIGHTS / 2: "that is all that it wants; an eighth of the weights it has already, and copies",
        WEIGHTS * 7 / 8: "that is what it takes to have everything, as the naive twin does",
        WEIGHTS / 8: "that is what it has",
        WEIGHTS / 4: "from tp = 8 to tp = 2 a slice becomes four times as wide, not three",
        8 * WEIGHTS * 3 / 8: "that is what all eight get together",
        WEIGHTS * 3 / 16: "two bytes for each weight",
    }


@answers_made("trainer-to-sampler.received")
def _planned() -> tuple[list[Any], dict[str, Any]]:
    from playbook.layout import Layout
    from playbook.planning.job import Job
    from playbook.shapes import load
    from playbook_book.sampling.plan import sent
    from playbook_book.sampling.transfer import transfer

    job = Job(load("llama3-70b"), Layout(tp=8, sp=True), seq=4096)
    return [sent(transfer(job, 2), 8).got[0]], {}


#: What ranks have and want: slices that grow, two replicas of two stages, shards of a part, copies that are there.
CASES: tuple[tuple[list[Rows], list[Rows]], ...] = (
    ([(0, 2), (2, 4), (4, 6), (6, 8)], [(0, 4), (0, 4), (4, 8), (4, 8)]),
    ([(0, 6), (0, 6), (6, 12), (6, 12)], [(0, 12)] * 4),
    ([(0, 3), (3, 6), (6, 9), (9, 12)], [(0, 6), (6, 12), (0, 6), (6, 12)]),
    ([(0, 8)] * 4, [(0, 4), (4, 8)] * 2),
)


@exercise("trainer-to-sampler.plan", "function", "which rows go from whom to whom")
def planned(write: Callable[..., Any]) -> str:
    for has, wants in CASES:
        where = f"has {has}, wants {wants}: "
        given = [tuple(message) for message in write(list(has), list(wants))]
        for message in given:
            source, to, start, stop = message
            if source == to or source not in range(len(has)) or to not in range(len(has)) or start >= stop:
                raise NotYet(f"{where}{message} is no message (source, to, start, stop) between two ranks")
            if not has[source][0] <= start <= stop <= has[source][1]:
                raise NotYet(f"{where}rank {source} has rows {has[source]}, and sends {(start, stop)}")
        _check_rows(where, has, wants, given)
        load = Counter(source for source, _, start, stop in given for _ in range(start, stop))
        same = [{r for r, rows in enumerate(has) if rows == has[source]} for source in load]
        for group in same:
            most, least = (pick(load[r] for r in group) for pick in (max, min))
            if most > 2 * least and most - least > 2:
                ranks = " and ".join(map(str, sorted(group)))
                raise NotYet(
                    f"{where}ranks {ranks} have the same rows, but one sends {most}, another {least}: share the work"
                )
    return "what a rank lacks comes once, and replicas share the sending"


def _check_rows(where: str, has: Sequence[Rows], wants: Sequence[Rows], given: Sequence[Message]) -> None:
    for rank, (own, wanted) in enumerate(zip(has, wants, strict=True)):
        came = Counter(row for _, to, start, stop in given if to == rank for row in range(start, stop))
        if known := [row for row in came if row in range(*own)]:
            raise NotYet(f"{where}row {known[0]} is sent to rank {rank}, which has it already")
        if twice := [row for row, count in came.items() if count > 1]:
            raise NotYet(
                f"{where}row {twice[0]} comes to rank {rank} more than once: other replicas have it, too"
            )
        if other := [row for row in came if row not in range(*wanted)]:
            raise NotYet(f"{where}row {other[0]} is sent to rank {rank}, which does not want it")
        if lacks := [row for row in range(*wanted) if row not in range(*own) and row not in came]:
            raise NotYet(f"{where}row {lacks[0]} never comes to rank {rank}")


def _plan(has: Sequence[Rows], wants: Sequence[Rows], pick: Callable[..., int]) -> list[Message]:
    found, load = [], [0] * len(has)
    for to, (start, stop) in enumerate(wants):
        for rows in dict.fromkeys(has):
            first, last = max(start, rows[0]), min(stop, rows[1])
            if first < last and rows != has[to]:
                source = pick([rank for rank, own in enumerate(has) if own == rows], load, to)
                load[source] += last - first
                found.append((source, to, first, last))
    return found


def _row_by_row(has: Sequence[Rows], wants: Sequence[Rows]) -> list[Message]:
    found = []
    for to, wanted in enumerate(wants):
        for row in range(*wanted):
            holders = [rank for rank, own in enumerate(has) if row in range(*own)]
            if to not in holders:
                found.append((holders[(to + row) % len(holders)], to, row, row + 1))
    return found


def _from_all(has: Sequence[Rows], wants: Sequence[Rows], own: bool) -> list[Message]:
    return [
        (source, to, max(start, a), min(stop, b))
        for to, (start, stop) in enumerate(wants)
        for source, (a, b) in enumerate(has)
        if source != to and max(start, a) < min(stop, b) and (own or has[source] != has[to])
    ]


answers(
    "trainer-to-sampler.plan",
    right=[partial(_plan, pick=lambda ranks, load, to: min(ranks, key=load.__getitem__)), _row_by_row],
    wrong={
        "share the work": partial(_plan, pick=lambda ranks, load, to: ranks[0]),
        "comes to rank 0 more than once": partial(_from_all, own=False),
        "is sent to rank 0, which has it already": partial(_from_all, own=True),
        "never comes to rank 0": lambda has, wants: [],
        "is no message": lambda has, wants: [(0, 0, 0, 2)],
        "rank 0 has rows (0, 2), and sends (2, 4)": lambda has, wants: [(0, 1, 2, 4)],
        "which does not want it": lambda has, wants: [
            (s, t, *has[s]) for t in range(len(has)) for s in range(len(has)) if s != t and has[s] != has[t]
        ][:3],
    },
)


class _Engine:
    """An engine that gives its weights up to sleep, and reads them from a file when it wakes."""

    def __init__(self, weights: int):
        self.file, self.said = weights, list[int]()
        self.weights: int | None = None

    def sleep(self) -> None:
        self.weights = None

    def allocate(self) -> None:
        self.weights = -1

    def reload_weights(self) -> None:
        if self.weights is None:
            raise NotYet("there is no memory to read weights into: allocate comes first")
        self.weights = self.file

    def refresh(self, weights: int) -> None:
        if self.weights is None:
            raise NotYet("weights were sent to an engine that has no memory for them: allocate comes first")
        self.weights = weights

    def generate(self) -> int:
        if self.weights is None or self.weights < 0:
            raise NotYet("it generated from memory that nobody had filled")
        self.said.append(self.weights)
        return self.weights


@exercise("trainer-to-sampler.stale", "repair", "rounds in which the sampler has the weights of the moment")
def rounds(mended: Callable[..., Any]) -> str:
    engine, trained = _Engine(100), [100]

    def train(texts: int) -> int:
        trained.append(trained[-1] + 1)
        return trained[-1]

    mended(engine, 100, train, 3)
    if len(engine.said) != 3:
        raise NotYet(f"it generated {len(engine.said)} times in 3 rounds")
    if len(trained) != 4:
        raise NotYet(f"it trained {len(trained) - 1} times in 3 rounds")
    for i, (said, now) in enumerate(zip(engine.said, trained, strict=False)):
        if said != now:
            late = "those of the file" if said == engine.file else "older ones"
            raise NotYet(
                f"round {i + 1} generated with {late}, though the trainer has made {i} update{'s' * (i > 1)} since"
            )
    if engine.weights is not None:
        raise NotYet("the engine keeps its memory while the trainer needs it: let it sleep")
    return "each round samples from the weights that it then trains"


def _as_found(engine: Any, weights: int, train: Callable[[int], int], count: int) -> None:
    for _ in range(count):
        engine.allocate()
        engine.refresh(weights)
        engine.reload_weights()
        texts = engine.generate()
        engine.sleep()
        weights = train(texts)


def _refreshed_last(
    engine: Any,
    weights: int,
    train: Callable[[int], int],
    count: int,
    *,
    read: bool = False,
    sleep: bool = True,
) -> None:
    for _ in range(count):
        engine.allocate()
        if read:
            engine.reload_weights()
        engine.refresh(weights)
        texts = engine.generate()
        if sleep:
            engine.sleep()
        weights = train(texts)


def _never_refreshed(engine: Any, weights: int, train: Callable[[int], int], count: int) -> None:
    for _ in range(count):
        engine.allocate()
        engine.reload_weights()
        texts = engine.generate()
        engine.sleep()
        train(texts)


def _first_weights(engine: Any, weights: int, train: Callable[[int], int], count: int) -> None:
    for _ in range(count):
        engine.allocate()
        engine.refresh(weights)
        texts = engine.generate()
        engine.sleep()
        train(texts)


answers(
    "trainer-to-sampler.stale",
    right=[_refreshed_last, partial(_refreshed_last, read=True)],
    wrong={
        "round 2 generated with those of the file, though the trainer has made 1 update since": _as_found,
        "round 2 generated with those of the file": _never_refreshed,
        "the engine keeps its memory": partial(_refreshed_last, sleep=False),
        "it generated 0 times in 3 rounds": lambda engine, weights, train, count: None,
        "round 2 generated with": _first_weights,
        "has no memory for them": lambda engine, weights, train, count: engine.refresh(weights),
        "that nobody had filled": lambda engine, weights, train, count: (
            engine.allocate(),
            engine.generate(),
        ),
    },
)
