"""How a training run is spread over ranks. Standard library only."""

from playbook.layout.layout import AXES, RECOMPUTE, Layout
from playbook.layout.options import ParallelOptions
from playbook.layout.stages import SCHEDULES

__all__ = ["AXES", "RECOMPUTE", "SCHEDULES", "Layout", "ParallelOptions"]
