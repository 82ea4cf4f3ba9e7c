"""Questions to the trace of a step on one of many ranks (``rank_trace.py``): is communication hidden behind compute?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from playbook.errors import DataError
from playbook.instruments.profiled_step import COMMUNICATION_LANE, COMPUTE_LANE
from playbook.instruments.trace import Event, Trace
from playbook_book.instruments.trace_analysis import common, length, union, working


@dataclass(frozen=True)
class Hidden:
    """Time (µs) in which collectives ran: ``hidden`` while this rank computed, ``exposed`` while it did not."""

    hidden: float
    exposed: float

    @property
    def communication(self) -> float:
        return self.hidden + self.exposed

    @property
    def fraction(self) -> float:
        """Share of the communication that is hidden; 1 where there is none."""
        return self.hidden / self.communication if self.communication else 1.0


def hidden(trace: Trace, among: Iterable[Event] | None = None) -> Hidden:
    """How much of the communication (all collectives, or those ``among`` which to look) is hidden behind compute.

    Waiting is no computing, and moments in which several collectives run count once.
    """
    spans = union((event.start, event.end) for event in (collectives(trace) if among is None else among))
    behind = length(common(spans, working(trace, COMPUTE_LANE)))
    return Hidden(behind, length(spans) - behind)


def collectives(trace: Trace, *kinds: str) -> list[Event]:
    """Collectives of these kinds (all, if none is named), in the order in which they began."""
    lane = (event for event in trace.events if event.lane == COMMUNICATION_LANE)
    return [event for event in lane if not kinds or event.name in kinds]


def last_gradient(trace: Trace) -> float:
    """When the last gradient of the step was computed (µs). Raises DataError where there is none."""
    return max(event.start for event in _named(trace, "gradient"))


def reductions(trace: Trace) -> list[Event]:
    """The collectives that add up gradients: reductions of more than a number, asked for from the first backward on."""
    begin = _named(trace, "backward")[0].args["issued"]
    found = collectives(trace, "all_reduce", "reduce_scatter")
    return [event for event in found if event.args["issued"] >= begin and event.args["bytes"] > 8]


def overlaps_backward(trace: Trace) -> bool:
    """Whether the first reduction of gradients started before the last gradient was computed."""
    return any(event.start < last_gradient(trace) for event in reductions(trace))


@dataclass(frozen=True)
class Gather:
    """A block's weights on their way: when their gather was asked for and started, and when the block before ended (µs).

    ``before`` is the block that the pass runs before this one: in backward, the next one of the model.
    """

    block: int
    backward: bool
    issued: float
    started: float
    before_ended: float

    @property
    def early(self) -> bool:
        """Whether it started while the block before was still computing: a prefetch."""
        return self.started < self.before_ended


def gathers(trace: Trace) -> list[Gather]:
    """The gathers of ZeRO-3, for each block that has a block before it, pass by pass.

    A forward pass gathers the embedding, then the blocks; a backward pass the blocks, the last one first (``zero3.py``).
    Raises DataError when it was not so.
    """
    found: list[Gather] = []
    for phase, stop in _phases(trace):
        backward = phase.name == "backward"
        order = _blocks(trace, phase)
        asked = collectives(trace, "all_gather")
        here = [event for event in asked if phase.args["issued"] <= event.args["issued"] < stop]
        own = here if backward else here[1:]
        if len(own) < len(order):
            raise DataError(
                f"{phase.name} ran {len(order)} blocks, but the trace has {len(own)} gathers for them"
            )
        for before, block, gather in zip(order, order[1:], own[1:], strict=False):
            number = int(str(block.args["part"]).removeprefix("block "))
            found.append(Gather(number, backward, gather.args["issued"], gather.start, before.end))
    return found


def _phases(trace: Trace) -> Iterator[tuple[Event, float]]:
    """Each forward and backward pass, and when the host begins the next pass."""
    passes = [
        e for e in trace.events if e.lane == COMPUTE_LANE and e.name in ("forward", "backward", "optimizer")
    ]
    ends = [following.args["issued"] for following in passes[1:]] + [float("inf")]
    yield from ((p, end) for p, end in zip(passes, ends, strict=True) if p.name != "optimizer")


def _blocks(trace: Trace, phase: Event) -> list[Event]:
    """The blocks of a pass in the order in which they ran; not what backward computes again."""
    return [
        event
        for event in trace.events
        if event.args.get("pass") == phase.name
        and str(event.args["part"]).startswith("block ")
        and phase.start <= event.start < phase.end
    ]


def _named(trace: Trace, name: str) -> list[Event]:
    found = [event for event in trace.events if event.name == name]
    if not found:
        raise DataError(f"the trace has no event called {name!r}: was it recorded by record_step?")
    return found
