"""Exercises of the chapter on overlap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from playbook_book.exercises.exercise import NotYet, exercise, number


@exercise("overlap.gathers", "number", "the tokens from which gathers in FP8 are hidden")
def gathers(answer: Any) -> str:
    # 63/64 · 1 byte · P / bandwidth = 2 FLOPs · P · t / speed
    speed, slow, bandwidth = 700e12, 400e12, 40e9
    right = 63 / 64 * speed / (2 * bandwidth)
    hints: dict[float, str] = {
        2
        * right: "twice as many as needed: a weight is one byte here, and a token takes two FLOPs for each weight",
        right * slow / speed: "products are in FP8, too: 700 TFLOP/s leave less time",
        2 * right * slow / speed: "that is the number in bf16",
        right / 63: "that is one shard's time; how many of them does a rank send?",
        right / 2: "gathers of forward hide behind forward, which takes two FLOPs for each weight and token",
        right / 3: "that is the whole step; gathers of forward hide behind forward",
    }
    number(
        answer,
        right,
        hints,
        tolerance=0.02,
        otherwise="Write both times for P weights and t tokens: P cancels",
    )
    return "half the bytes, but 1.75 times the speed: FP8 needs an eighth fewer tokens than bf16, not half as many"


#: Weights of a block, width of the residual stream, FLOP/s, bytes/s.
_CASES = (
    (218_112_000, 4096, 500e12, 400e9),
    (855_638_016, 8192, 500e12, 400e9),
    (12 * 4096**2, 4096, 400e12, 50e9),
    (60_817_408, 2048, 1125e12, 800e9),
    (12 * 1024**2, 1024, 900e12, 40e9),
)


@exercise("overlap.tensor", "function", "the largest tp whose messages the products of a block hide")
def tensor(write: Callable[..., Any]) -> str:
    for weights, hidden, speed, bandwidth in _CASES:
        given = write(weights, hidden, speed, bandwidth)
        exact = weights * bandwidth / (4 * hidden * speed)  # of tp − 1
        right, said = 1 + int(exact), f"weights={weights:,}, hidden={hidden}: got {given!r}"
        if isinstance(given, bool) or not isinstance(given, int | float):
            raise NotYet(f"{said}, expected a number of ranks")
        if given == right and isinstance(given, int):
            continue
        hints = {
            1
            + int(2 * exact): "as if half as much were sent: elements have two bytes, a block four messages",
            1
            + int(
                4 * exact
            ): "as if a quarter as much were sent: elements have two bytes, a block four messages",
            1 + int(exact / 2): "as if twice as much were sent, or half as much computed",
            max(
                1, int(exact)
            ): "one rank fewer than could be: a rank sends to tp − 1 others, and of these there may be so many",
            0: "one rank sends nothing, and is always possible",
        }
        if float(given) != int(given):
            raise NotYet(f"{said}, which is no whole number of ranks: round down")
        if given == right:
            raise NotYet(f"{said}: right, but as an int, please")
        raise NotYet(f"{said}, {hints.get(int(given), 'too many' if given > right else 'too few')}")
    return "tokens cancel: tp − 1 is at most weights · bytes/s over 4 · hidden · FLOP/s"


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
    at = {event: place for place, event in enumerate(events.done)}
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
