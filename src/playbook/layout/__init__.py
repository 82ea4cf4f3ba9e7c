"""How a training run is spread over ranks. Standard library only."""

from playbook.layout.layout import AXES, RECOMPUTE, SCHEDULES, Layout

__all__ = ["AXES", "RECOMPUTE", "SCHEDULES", "Layout"]
