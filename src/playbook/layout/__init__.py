"""How a training run is spread over ranks. Standard library only."""

from playbook.layout.fields import RECOMPUTE, SCHEDULES, recomputed
from playbook.layout.layout import AXES, FIELDS, Layout

__all__ = ["AXES", "FIELDS", "RECOMPUTE", "SCHEDULES", "Layout", "recomputed"]
