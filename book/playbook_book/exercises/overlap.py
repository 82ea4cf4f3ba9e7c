"""Exercises of the chapter on overlap."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from playbook_book.exercises.exercise import NotYet, answers, answers_made, exercise, function, number


@number(
    "overlap.gathers",
    "the tokens from which gathers in FP8 are hidden",
    praise="half the bytes, but 1.75 times the speed: FP8 needs an eighth fewer tokens than bf16, not half as many",
    otherwise="Write both times for P weights and t tokens: P cancels",
    tolerance=0.02,
)
def gathers() -> tuple[float, dict[float, str]]:
    # 63/64 · 1 byte · P / bandwidth = 2 FLOPs · P · t / speed
    speed, slow, bandwidth = 700e12, 400e12, 40e9
    right = 63 / 64 * speed / (2 * bandwidth)
    return right, {
        2
        * right: "twice as many as needed: a weight is one byte here, and a token takes two FLOPs for each weight",
        right * slow / speed: "products are in FP8, too: 700 TFLOP/s leave less time",
        2 * right * slow / speed: "that is the number in bf16",
        right / 63: "that is one shard's time; how many of them does a rank send?",
        right / 2: "gathers of forward hide behind forward, which takes two FLOPs for each weight and token",
        right / 3: "that is the whole step; gathers of forward hide behind forward",
    }


@answers_made("overlap.gathers")
def _counted() -> tuple[list[Any], dict[str, Any]]:
    from playbook.layout import Layout
    from playbook.shapes import load
    from playbook_book.overlap_ratios import zero3

    one = zero3(load("llama3-8b"), Layout(dp=64), 1000, weight_bytes=1)
    return [8750, 1000 * one.ratio(peak_flops=700e12, bandwidth=40e9)], {}


def _not_so_many(given: Any, wanted: int) -> str:
    if isinstance(given, bool) or not isinstance(given, int | float):
        return f"got {given!r}, expected a number of ranks"
    if float(given) != int(given):
        return f"got {given!r}, which is no whole number of ranks: round down"
    return f"got {given!r}, too {'many' if given > wanted else 'few'}"


@function(
    "overlap.tensor",
    "the largest tp whose messages the products of a block hide",
    cases=(
        (218_112_000, 4096, 500e12, 400e9),
        (855_638_016, 8192, 500e12, 400e9),
        (12 * 4096**2, 4096, 400e12, 50e9),
        (60_817_408, 2048, 1125e12, 800e9),
        (12 * 1024**2, 1024, 900e12, 40e9),
    ),
    case=lambda weights, hidden, *speeds: f"weights={weights:,}, hidden={hidden}",
    praise="tokens cancel: tp − 1 is at most weights · bytes/s over 4 · hidden · FLOP/s",
    otherwise=_not_so_many,
)
def tensor(weights: int, hidden: int, flops: float, bandwidth: float, *, sent=4, least=1) -> int:
    return least + int(weights * bandwidth / (sent * hidden * flops))


def _until_exposed(weights: int, hidden: int, flops: float, bandwidth: float) -> int:
    tp = 1
    while 4 * tp / (tp + 1) * 2 * hidden / bandwidth <= 2 * weights / (tp + 1) / flops:
        tp += 1
    return tp


answers(
    "overlap.tensor",
    right=[_until_exposed],
    wrong={
        "as if half as much were sent: elements have two bytes, a block four messages": (
            partial(tensor, sent=2)
        ),
        "as if a quarter as much were sent: elements have two bytes, a block four messages": (
            partial(tensor, sent=1)
        ),
        "as if twice as much were sent, or half as much computed": partial(tensor, sent=8),
        "one rank fewer than could be: a rank sends to tp − 1 others, and of these there may be so many": (
            lambda *given: max(1, tensor(*given, least=0))
        ),
        "one rank sends nothing, and is always possible": partial(tensor, least=0),
    },
)


class _Pass:
    """Blocks that are gathered, waited for, run and freed, in the order in which the reader's function does it."""

    def __init__(self, blocks: int):
        self.blocks, self.done = blocks, list[tuple[str, int]]()
        self.held: set[int] = set()
        self.most = 0

    def gather(self, block: int) -> _Handle:
        if not 0 <= block < self.blocks:
            raise NotYet(f"block {block} was asked for, but there are only 0 to {self.blocks - 1}")
        if ("gather", block) in self.done:
            raise NotYet(f"block {block} was gathered twice")
        self._note("gather", block)
        self.held.add(block)
        self.most = max(self.most, len(self.held))
        return _Handle(self, block)

    def run(self, block: int) -> None:
        if ("wait", block) not in self.done:
            raise NotYet(f"block {block} ran before its gather had been waited for")
        if block not in self.held:
            raise NotYet(f"block {block} ran after its weights had been freed")
        self._note("run", block)

    def free(self, block: int) -> None:
        if ("run", block) not in self.done:
            raise NotYet(f"block {block} was freed before it ran")
        self.held.discard(block)
        self._note("free", block)

    def _note(self, what: str, block: int) -> None:
        self.done.append((what, block))


class _Handle:
    """What an asynchronous collective returns."""

    def __init__(self, of: _Pass, block: int):
        self.of, self.block = of, block

    def wait(self) -> None:
        self.of.done.append(("wait", self.block))


@exercise("overlap.prefetch", "repair", "a forward pass of ZeRO-3 in which nothing overlaps")
def prefetch(mended: Callable[..., Any]) -> str:
    for blocks in (1, 2, 5):
        events = _Pass(blocks)
        mended(blocks, events.gather, events.run, events.free)
        _check_pass(events, blocks)
    return "each gather travels while the block before it runs, and two blocks are in memory at most"


def _check_pass(events: _Pass, blocks: int) -> None:
    where = f"with {blocks} block{'s' * (blocks > 1)}, "
    ran = [block for what, block in events.done if what == "run"]
    if ran != list(range(blocks)):
        raise NotYet(f"{where}the blocks ran in the order {ran}")
    at = {event: events.done.index(event) for event in events.done}  # the first where there are two
    for block in range(1, blocks):
        before = block - 1
        if at["gather", block] > at["run", before]:
            raise NotYet(
                f"{where}block {block} was asked for when block {before} had run: nothing travels meanwhile"
            )
        if at["wait", block] < at["run", before]:
            raise NotYet(
                f"{where}block {block} was waited for before block {before} ran: nothing is computed meanwhile"
            )
    if events.held:
        raise NotYet(f"{where}block {min(events.held)} was never freed")
    if events.most > 2:
        raise NotYet(f"{where}{events.most} blocks were in memory at a time: that is no longer ZeRO-3")


def _pass(blocks: int, gather: Any, run: Any, free: Any, *, past=0, at_once=False) -> None:
    coming = gather(0)
    for i in range(blocks):
        coming.wait()
        if i + 1 < blocks + past:
            coming = gather(i + 1)
            if at_once:
                coming.wait()
        run(i)
        free(i)


def _one_by_one(blocks: int, gather: Any, run: Any, free: Any, *, order=1, waits=True) -> None:
    for i in range(blocks)[::order]:
        coming = gather(i)
        if waits:
            coming.wait()
        run(i)
        free(i)


def _all_at_once(blocks: int, gather: Any, run: Any, free: Any) -> None:
    coming = [gather(i) for i in range(blocks)]
    _one_by_one(blocks, lambda i: coming[i], run, free)


answers(
    "overlap.prefetch",
    right=[_pass],
    wrong={
        "with 2 blocks, block 1 was asked for when block 0 had run": _one_by_one,
        "block 1 was waited for before block 0 ran": partial(_pass, at_once=True),
        "with 5 blocks, 5 blocks were in memory at a time": _all_at_once,
        "block 1 was asked for, but there are only 0 to 0": partial(_pass, past=1),
        "block 0 was never freed": lambda n, gather, run, free: _pass(n, gather, run, lambda i: None),
        "before its gather had been waited for": partial(_one_by_one, waits=False),
        "with 2 blocks, the blocks ran in the order [1, 0]": partial(_one_by_one, order=-1),
        "was freed before it ran": lambda n, gather, run, free: _one_by_one(n, gather, free, run),
    },
)
