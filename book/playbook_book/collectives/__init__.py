"""Collectives built from send and receive: plans of messages, and two ways to carry them out.

``plans`` says who sends what to whom at which step, without sending anything. The functions here carry a plan out on
the ranks of a group: a ``torch.distributed`` process group, or a ``SocketGroup`` of TCP connections.
"""

from playbook_book.collectives.functions import (
    OPS,
    Transcript,
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    gather,
    merge,
    reduce,
    reduce_scatter,
    scatter,
)

__all__ = [
    "OPS",
    "Transcript",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "merge",
    "reduce",
    "reduce_scatter",
    "scatter",
]
