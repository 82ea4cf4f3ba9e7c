"""The collectives, each from sends and receives alone, on the ranks of a group that is an argument.

A group is a ``torch.distributed`` process group (tensors), or another
:class:`~playbook_book.collectives.transport.Transport` (there is one of sockets, for numpy arrays). Each function makes
the plan of its collective, lets the group's transport carry it out, and returns this rank's transcript: the messages
that it sent and received, in the order of their steps. All ranks of the group call the same function with vectors of
the same size, which are contiguous; their shapes do not matter. Where the vector does not divide by the ranks, the first
``elements % ranks`` chunks have one element more, as ``torch.tensor_split`` and ``numpy.array_split`` cut.

All raise :class:`CollectiveError` for an unknown algorithm or op, a root outside the group and a size that does not
fit; what is lost on the way is raised by the transport.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from playbook._checks import unknown
from playbook.collectives import CollectiveError
from playbook_book.collectives.plans import Plan, plan
from playbook_book.collectives.transport import Transcript, Transport

#: How two contributions become one; "avg" divides their sum by the number of ranks at the end.
OPS = ("sum", "avg", "prod", "max", "min")


def transport(group: Any) -> Transport:
    """The transport of a group: itself if it carries out plans, else that of a ``torch.distributed`` process group.

    It may come from another process, and its class with it: what it can do counts, not what it is called.
    """
    if hasattr(group, "execute"):
        return group
    from playbook_book.collectives.process_group import ProcessGroupTransport

    return ProcessGroupTransport(group)


def broadcast(data: Any, group: Any, root: int = 0, *, algorithm: str | None = None) -> Transcript:
    """The root's ``data``, on every rank, in place."""
    link = transport(group)
    flat = link.flat(data)
    return link.execute(_plan(link, "broadcast", algorithm, flat, root=root), flat, flat, "sum")


def reduce(
    data: Any, group: Any, root: int = 0, *, op: str = "sum", algorithm: str | None = None
) -> Transcript:
    """The sum over all ranks, in place on the root; the others keep their ``data``."""
    link = transport(group)
    flat = link.flat(data)
    # On the way to the root, sums pass through other ranks: through copies of what they have.
    work = flat if link.rank == root else _copy(link, flat)
    transcript = _reducing(link, _plan(link, "reduce", algorithm, flat, root=root), work, op)
    _average(link, work, op)
    return transcript


def gather(
    output: Any | None,
    data: Any,
    group: Any,
    root: int = 0,
    *,
    elements: int | None = None,
    algorithm: str | None = None,
) -> Transcript:
    """Every rank's chunk ``data``, one behind the other in the root's ``output``; the others pass None for it.

    ``elements`` of the whole vector must be given, on every rank, where it is not N times the chunk.
    """
    link = transport(group)
    mine = link.flat(data)
    work = _whole(link, mine, output, root, elements)
    schedule = _plan(link, "gather", algorithm, work, root=root)
    _chunk(schedule, work, link.rank, len(mine))[:] = mine
    return link.execute(schedule, work, work, "sum")


def scatter(
    output: Any,
    data: Any | None,
    group: Any,
    root: int = 0,
    *,
    elements: int | None = None,
    algorithm: str | None = None,
) -> Transcript:
    """Chunk r of the root's ``data``, in rank r's ``output``; the others pass None for ``data``.

    ``elements`` of the whole vector must be given, on every rank, where it is not N times the chunk.
    """
    link = transport(group)
    mine = link.flat(output)
    work = _whole(link, mine, data, root, elements)
    schedule = _plan(link, "scatter", algorithm, work, root=root)
    chunk = _chunk(schedule, work, link.rank, len(mine))
    transcript = link.execute(schedule, work, work, "sum")
    mine[:] = chunk
    return transcript


def all_gather(output: Any, data: Any, group: Any, *, algorithm: str | None = None) -> Transcript:
    """Every rank's chunk ``data``, one behind the other in everyone's ``output``."""
    link = transport(group)
    work, mine = link.flat(output), link.flat(data)
    schedule = _plan(link, "all_gather", algorithm, work)
    _chunk(schedule, work, link.rank, len(mine))[:] = mine
    return link.execute(schedule, work, work, "sum")


def reduce_scatter(
    output: Any, data: Any, group: Any, *, op: str = "sum", algorithm: str | None = None
) -> Transcript:
    """Chunk r of the sum over all ranks, in rank r's ``output``; ``data`` stays as it is."""
    link = transport(group)
    mine, work = link.flat(output), _copy(link, link.flat(data))
    schedule = _plan(link, "reduce_scatter", algorithm, work)
    chunk = _chunk(schedule, work, link.rank, len(mine))
    transcript = _reducing(link, schedule, work, op)
    mine[:] = chunk
    _average(link, mine, op)
    return transcript


def all_reduce(
    data: Any, group: Any, *, op: str = "sum", algorithm: str | None = None, ranks_per_node: int | None = None
) -> Transcript:
    """The sum over all ranks, on every rank, in place; the same bits everywhere.

    ``ranks_per_node`` is for the algorithm "two_level" alone.
    """
    link = transport(group)
    flat = link.flat(data)
    schedule = _plan(link, "all_reduce", algorithm, flat, ranks_per_node=ranks_per_node)
    transcript = _reducing(link, schedule, flat, op)
    _average(link, flat, op)
    return transcript


def all_to_all(output: Any, data: Any, group: Any, *, algorithm: str | None = None) -> Transcript:
    """Rank r's ``output``: chunk r of everyone's ``data``, one behind the other; it has N times chunk r's elements."""
    link = transport(group)
    received, sent = link.flat(output), link.flat(data)
    schedule = _plan(link, "all_to_all", algorithm, sent)
    own = _chunk(schedule, sent, link.rank)
    if len(received) != link.size * len(own):
        raise CollectiveError(
            f"output of rank {link.rank} must have {link.size} × {len(own)} elements, got {len(received)}"
        )
    received[link.rank * len(own) : (link.rank + 1) * len(own)] = own
    return link.execute(schedule, sent, received, "sum")


def barrier(group: Any, *, algorithm: str | None = None) -> Transcript:
    """Returns on no rank before it was called on every rank."""
    link = transport(group)
    schedule = plan("barrier", algorithm, ranks=link.size)
    token = link.empty(None, 2)
    token[:] = 0
    return link.execute(schedule, token, token, "sum")


def merge(transcripts: Iterable[Transcript]) -> Transcript:
    """The transcripts of all ranks as one: each message, which its source and its target have both listed, once."""
    return sorted({message for transcript in transcripts for message in transcript})


def _plan(link: Transport, collective: str, algorithm: str | None, flat: Any, **options: Any) -> Plan:
    sizes = {"ranks": link.size, "elements": len(flat), "itemsize": link.itemsize(flat)}
    return plan(collective, algorithm, **sizes, **options)


def _reducing(link: Transport, schedule: Plan, work: Any, op: str) -> Transcript:
    if op not in OPS:
        raise CollectiveError(unknown("op", op, OPS))
    if op == "avg":
        link.divide(work[:0], link.size)  # integers are refused before anything is sent
    return link.execute(schedule, work, work, "sum" if op == "avg" else op)


def _average(link: Transport, flat: Any, op: str) -> None:
    if op == "avg":
        link.divide(flat, link.size)


def _whole(link: Transport, mine: Any, whole: Any | None, root: int, elements: int | None) -> Any:
    """The whole vector: the root's, or room for what passes through another rank on its way in the tree."""
    elements = link.size * len(mine) if elements is None else elements
    if link.rank != root:
        return link.empty(mine, elements)
    if whole is None:
        raise CollectiveError(
            f"rank {root} is the root: it must pass the whole vector of {elements} elements, got None"
        )
    flat = link.flat(whole)
    if len(flat) != elements:
        raise CollectiveError(
            f"the root's vector has {len(flat)} elements, expected {elements}: where the chunks differ, "
            f"pass elements={len(flat)} on every rank"
        )
    return flat


def _copy(link: Transport, flat: Any) -> Any:
    copy = link.empty(flat, len(flat))
    copy[:] = flat
    return copy


def _chunk(schedule: Plan, work: Any, rank: int, elements: int | None = None) -> Any:
    """The chunk that belongs to ``rank``, which is to have so many elements."""
    chunk = work[schedule.cuts[rank] : schedule.cuts[rank + 1]]
    if elements is not None and len(chunk) != elements:
        raise CollectiveError(
            f"chunk {rank} of {schedule.elements} elements on {schedule.ranks} ranks has {len(chunk)}, got {elements}"
        )
    return chunk
