"""How a training run is spread over ranks. Standard library only."""

from playbook.layout.fields import RECOMPUTE, SCHEDULES, recomputed
from playbook.layout.layout import AXES, CUT_OUT, FIELDS, Layout

__all__ = ["AXES", "CUT_OUT", "FIELDS", "RECOMPUTE", "SCHEDULES", "Layout", "recomputed"]
