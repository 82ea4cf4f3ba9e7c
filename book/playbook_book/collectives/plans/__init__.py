"""Collectives as plans: who sends which slice to whom at which step. Standard library only; nothing is sent here.

A plan is what a figure draws, an animation steps through, a cost model times, and what ranks carry out: over a
``torch.distributed`` process group or over sockets, the messages are the ones listed here.

    >>> for message in plan("all_reduce", "ring", ranks=2, elements=4, itemsize=4).messages:
    ...     print(message)
    step 0: rank 0 → rank 1, [2:4] reduced into [2:4], 8 bytes
    step 0: rank 1 → rank 0, [0:2] reduced into [0:2], 8 bytes
    step 1: rank 0 → rank 1, [0:2] stored at [0:2], 8 bytes
    step 1: rank 1 → rank 0, [2:4] stored at [2:4], 8 bytes
"""

from playbook_book.collectives.plans.catalogue import ALGORITHMS, DEFAULT, Plan, plan
from playbook_book.collectives.plans.messages import Message, Vector

__all__ = ["ALGORITHMS", "DEFAULT", "Message", "Plan", "Vector", "plan"]
