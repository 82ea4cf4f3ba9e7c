"""What stays gathered of a stage's weights between the actions of a rank."""

from __future__ import annotations

import pytest

from playbook.schedules.actions import Action
from playbook.schedules.messages import residency


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        # One stage: its weights come and go. From F to its own backward those stay with which backward begins, from
        # one backward to the next nothing does.
        ("F.0 BW.0 BW.0", "h . ."),
        ("F.0 F.0 BW.0 BW.0", ". h . ."),
        ("F.0 BW.0 F.0 BW.0", "h . h ."),
        ("F.0 B.0 W.0 B.0 W.0", "h . . . ."),
        # Several: a rank that goes on with the one that it is at keeps them, until it leaves it.
        ("F.0 F.0 F.1 F.1 BW.1 BW.1 BW.0 BW.0", "s . s sh s . s ."),
        ("F.0 F.1 BW.1 F.0 BW.0", ". sh . sh ."),
    ],
)
def test_what_stays(actions, expected):
    """``s``: all of its stage; ``h``: those with which backward begins."""
    made = [Action(op, int(stage), 0) for op, stage in (word.split(".") for word in actions.split())]
    found = [("s" * stays.stage + "h" * stays.head) or "." for stays in residency(made)]
    assert " ".join(found) == expected
