"""Pickling that also carries what another process cannot import: functions and classes of a notebook or a script.

pickle stores a function as the name of its module and its own; a process that has never seen the notebook cannot follow
such a name. cloudpickle sends the code of what is in ``__main__``. Here that holds for all modules that do not come from
an installed library; source lines travel as well, and tensors leave an accelerator that the reader may not have.
"""

from __future__ import annotations

import linecache
import os
import pickle
import sys
import sysconfig
import types
from functools import cache
from pathlib import Path
from typing import IO, Any

import cloudpickle

_PACKAGE = Path(__file__).resolve().parents[1]


def dump(obj: Any, file: IO[bytes]) -> None:
    """Write ``obj``, and the source lines that tracebacks through it will show.

    Raises what pickle raises: ``pickle.PicklingError``, ``TypeError`` or ``AttributeError``.
    """
    pickler = _Pickler(file)
    pickler.dump(obj)
    pickle.dump(pickler.sources, file)


def load(file: IO[bytes]) -> Any:
    """Read what ``dump`` wrote."""
    obj = pickle.load(file)
    for name, lines in pickle.load(file).items():
        linecache.cache.setdefault(name, (sum(map(len, lines)), None, lines, name))
    return obj


class _Pickler(cloudpickle.Pickler):
    def __init__(self, file: IO[bytes]):
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.sources: dict[str, list[str]] = {}

    def dump(self, obj: Any) -> None:
        """As pickle's."""
        self.sent: dict[str, types.ModuleType] = {}  # modules whose code travels
        try:
            super().dump(obj)
        finally:
            for module in self.sent.values():
                cloudpickle.unregister_pickle_by_value(module)

    def reducer_override(self, obj: Any) -> Any:
        """How to rebuild ``obj``; ``NotImplemented`` leaves it to pickle."""
        if _on_accelerator(obj):  # whoever reads it may have no such device, or no memory left there
            return obj.detach().cpu().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        if isinstance(obj, types.FunctionType | type):
            self._send(sys.modules.get(obj.__module__ or ""))
        reduced = super().reducer_override(obj)
        if isinstance(obj, types.FunctionType) and reduced is not NotImplemented:
            name = obj.__code__.co_filename
            if name not in self.sources and not os.path.exists(name):
                self.sources[name] = linecache.getlines(name, obj.__globals__)
        return reduced

    def _send(self, module: types.ModuleType | None) -> None:
        """Have cloudpickle send the code of a module that another process cannot import."""
        if module is None or module.__name__ in self.sent or _is_library(module.__name__):
            return
        if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(module)
            self.sent[module.__name__] = module


@cache
def _is_library(name: str) -> bool:
    """Whether another process can import the module."""
    if name == "__main__":
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:  # built in, or a module that its library made up
        return True
    roots = [sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    return any(Path(file).is_relative_to(root) for root in [*roots, str(_PACKAGE)])


def _on_accelerator(obj: Any) -> bool:
    torch = sys.modules.get("torch")  # a tensor exists only where torch does
    return torch is not None and type(obj) is torch.Tensor and obj.device.type not in ("cpu", "meta")
