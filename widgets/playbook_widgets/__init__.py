"""The book's widgets: ``from playbook_widgets import MemoryCalculator``.

Nothing is imported until asked for, so that the site build does not wait for the widget machinery.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playbook_widgets.base import Widget
    from playbook_widgets.collectives_animator import CollectivesAnimator
    from playbook_widgets.goodput import GoodputCurve
    from playbook_widgets.gossip import GossipMixing
    from playbook_widgets.memory_access import MemoryAccess
    from playbook_widgets.memory_calculator import MemoryCalculator
    from playbook_widgets.mesh_explorer import MeshExplorer
    from playbook_widgets.my_cluster import MyCluster
    from playbook_widgets.number_formats import NumberFormats
    from playbook_widgets.overlap import OverlapRatios
    from playbook_widgets.ring_attention import RingAttention
    from playbook_widgets.routing import ExpertRouting
    from playbook_widgets.schedule_visualizer import ScheduleVisualizer
    from playbook_widgets.trace_viewer import TraceViewer
    from playbook_widgets.zero_sharding import ZeroSharding

#: The module of each widget.
WIDGETS = {
    "CollectivesAnimator": "collectives_animator",
    "ExpertRouting": "routing",
    "GoodputCurve": "goodput",
    "GossipMixing": "gossip",
    "MemoryAccess": "memory_access",
    "MemoryCalculator": "memory_calculator",
    "MeshExplorer": "mesh_explorer",
    "MyCluster": "my_cluster",
    "NumberFormats": "number_formats",
    "OverlapRatios": "overlap",
    "RingAttention": "ring_attention",
    "ScheduleVisualizer": "schedule_visualizer",
    "TraceViewer": "trace_viewer",
    "ZeroSharding": "zero_sharding",
}

__all__ = [
    "WIDGETS",
    "CollectivesAnimator",
    "ExpertRouting",
    "GoodputCurve",
    "GossipMixing",
    "MemoryAccess",
    "MemoryCalculator",
    "MeshExplorer",
    "MyCluster",
    "NumberFormats",
    "OverlapRatios",
    "RingAttention",
    "ScheduleVisualizer",
    "TraceViewer",
    "Widget",
    "ZeroSharding",
]


def __getattr__(name: str) -> Any:
    module = "base" if name == "Widget" else WIDGETS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
