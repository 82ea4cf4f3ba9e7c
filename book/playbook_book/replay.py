"""A plan carried out in thought: whose contributions each rank holds after each step. Standard library only."""

from __future__ import annotations

from bisect import bisect_left

from playbook.collectives import CollectiveError
from playbook_book.collectives.plans.catalogue import Plan
from playbook_book.collectives.plans.messages import Message

#: ``held[rank][chunk]``: the ranks whose contributions are in the chunk as that rank has it; none if it has nothing.
Held = list[list[frozenset[int]]]


def replay(plan: Plan) -> list[Held]:
    """What each rank holds at the start and after each step: ``steps + 1`` states.

    The chunks of an all-to-all are the places of its result, one per sender. Raises :class:`CollectiveError` where a
    plan would send what a rank does not have, add a contribution twice, or overwrite what the same step still sends.
    Needs a vector of at least as many elements as ranks, so that no chunk is empty. A barrier's one chunk holds who
    has been heard of.
    """
    if plan.collective != "barrier" and plan.elements < plan.ranks:
        raise CollectiveError(
            f"replay needs at least {plan.ranks} elements, one per rank, got {plan.elements}"
        )
    states = [start(plan)]
    for step in range(plan.steps):
        messages = [message for message in plan.messages if message.step == step]
        states.append(_after(plan, states[-1], messages))
    return states


def start(plan: Plan) -> Held:
    """What each rank holds before the first message."""
    n = plan.ranks
    nothing: frozenset[int] = frozenset()

    def has(rank: int, chunk: int) -> bool:
        if plan.collective in ("broadcast", "scatter"):
            return rank == plan.root
        return chunk == rank or plan.collective in ("reduce", "reduce_scatter", "all_reduce", "barrier")

    chunks = 1 if plan.collective == "barrier" else n
    return [
        [frozenset({rank}) if has(rank, chunk) else nothing for chunk in range(chunks)] for rank in range(n)
    ]


def end(plan: Plan) -> Held:
    """What each rank holds in the end, as far as it is part of the result."""
    n = plan.ranks
    every = frozenset(range(n))
    rows: dict[str, Held] = {
        "broadcast": [[frozenset({plan.root})] * n] * n,
        "reduce": [[every if rank == plan.root else frozenset()] * n for rank in range(n)],
        "gather": [[frozenset({i} if rank == plan.root else ()) for i in range(n)] for rank in range(n)],
        "scatter": [[frozenset({plan.root} if i == rank else ()) for i in range(n)] for rank in range(n)],
        "all_gather": [[frozenset({i}) for i in range(n)]] * n,
        "reduce_scatter": [[every if i == rank else frozenset() for i in range(n)] for rank in range(n)],
        "all_reduce": [[every] * n] * n,
        "all_to_all": [[frozenset({i}) for i in range(n)]] * n,
        "barrier": [[every]] * n,
    }
    return rows[plan.collective]


def _after(plan: Plan, before: Held, messages: list[Message]) -> Held:
    held = [list(chunks) for chunks in before]
    for message in messages:
        for chunk, sent in _contents(plan, before, message):
            here = held[message.target][chunk]
            if not sent:
                raise CollectiveError(f"{message}: rank {message.source} has no chunk {chunk}")
            if message.reduce and here & sent and plan.collective != "barrier":
                raise CollectiveError(
                    f"{message}: chunk {chunk} would count ranks {sorted(here & sent)} twice"
                )
            if not message.reduce and _still_sent(message, messages):
                raise CollectiveError(f"{message}: overwrites what rank {message.target} sends at this step")
            held[message.target][chunk] = (
                here | sent if message.reduce or plan.collective == "barrier" else sent
            )
    return held


def _contents(plan: Plan, before: Held, message: Message) -> list[tuple[int, frozenset[int]]]:
    """(chunk at the target, contributions) of what a message carries."""
    if plan.collective == "barrier":
        return [(0, before[message.source][0])]
    if plan.collective == "all_to_all":
        return [(message.source, frozenset({message.source}))]
    first, last = bisect_left(plan.cuts, message.start), bisect_left(plan.cuts, message.stop)
    return [(chunk, before[message.source][chunk]) for chunk in range(first, last)]


def _still_sent(message: Message, messages: list[Message]) -> bool:
    """Whether the place where a message lands is being sent at the same step (an all-to-all has a second vector)."""
    start, stop = message.into, message.into + message.stop - message.start
    return message.into == message.start and any(
        other.source == message.target and other.start < stop and start < other.stop for other in messages
    )
