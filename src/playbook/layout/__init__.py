"""How a training run is spread over ranks. Standard library only."""

from playbook.layout.layout import AXES, FIELDS, RECOMPUTE, Layout
from playbook.layout.stages import SCHEDULES

__all__ = ["AXES", "FIELDS", "RECOMPUTE", "SCHEDULES", "Layout"]
