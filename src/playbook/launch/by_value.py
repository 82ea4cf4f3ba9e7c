"""Pickling that also carries what another process cannot import: functions and classes of a notebook or a script.

pickle stores a function as the name of its module and its own; a process that has never seen the notebook cannot follow
such a name. Here code that does not come from an installed library travels itself: its byte code, the globals that it
reads, and what its closure holds. Everything else is pickled as ever.
"""

from __future__ import annotations

import builtins
import dataclasses
import dis
import enum
import importlib
import linecache
import marshal
import os
import pickle
import sys
import sysconfig
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import IO, Any

_PACKAGE = Path(__file__).resolve().parents[1]
_READS_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"}
_NOT_STATE = {"__dict__", "__weakref__", "__module__", "__qualname__", "__slots__", "_abc_impl"}
_unfinished: set[type] = set()


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


class _Pickler(pickle.Pickler):
    def __init__(self, file: IO[bytes]):
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.sources: dict[str, list[str]] = {}
        # One empty namespace for each real one. pickle writes an object once, so functions of one module share theirs
        # again when they are read, and `global` works.
        self._namespaces: dict[int, dict[str, Any]] = {}

    def reducer_override(self, obj: Any) -> Any:
        """How to rebuild ``obj``; ``NotImplemented`` leaves it to pickle."""
        match obj:
            case types.ModuleType():
                return importlib.import_module, (obj.__name__,)
            case types.FunctionType() if not _importable(obj):
                return self._function(obj)
            case type() if not _importable(obj):
                return self._class(obj)
            case property():
                return property, (obj.fget, obj.fset, obj.fdel, obj.__doc__)
            case staticmethod() | classmethod():
                return type(obj), (obj.__func__,)
            case types.MappingProxyType():
                return _read_only, (dict(obj),)
        if type(obj).__module__ == "dataclasses":  # MISSING, _FIELD and others are compared by identity
            names = [name for name, value in vars(dataclasses).items() if value is obj]
            return names[0] if names else NotImplemented
        if _on_accelerator(obj):  # whoever reads it may have no such device, or no memory left there
            return obj.detach().cpu().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return NotImplemented

    def _function(self, f: types.FunctionType) -> Any:
        code = f.__code__
        namespace = self._namespaces.setdefault(id(f.__globals__), {"__name__": f.__module__})
        if code.co_filename not in self.sources and not os.path.exists(code.co_filename):
            self.sources[code.co_filename] = linecache.getlines(code.co_filename, f.__globals__)
        # The namespace is filled by the state, after the function is known to pickle: it may refer to itself.
        read = {name: f.__globals__[name] for name in _globals_read(code) if name in f.__globals__}
        cells = [_contents(cell) for cell in f.__closure__ or ()]
        state = (read, cells, f.__defaults__, f.__kwdefaults__, f.__dict__, f.__qualname__, f.__doc__)
        return _new_function, (marshal.dumps(code), namespace, f.__name__), state, None, None, _fill_function

    def _class(self, cls: type) -> Any:
        if issubclass(cls, enum.Enum):
            raise pickle.PicklingError(
                f"{cls.__qualname__} is an Enum: define it in a module that can be imported"
            )
        slots = cls.__dict__.get("__slots__")
        args = (cls.__module__, cls.__qualname__, cls.__bases__, type(cls), slots)
        state = {
            name: value
            for name, value in cls.__dict__.items()
            if name not in _NOT_STATE
            and not isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType)
        }
        return _new_class, args, state, None, None, _fill_class


def _importable(obj: Any) -> bool:
    """Whether another process finds ``obj`` by its name: it is at the top of a module of an installed library."""
    return "<" not in obj.__qualname__ and _is_library(obj.__module__ or "builtins")


@cache
def _is_library(name: str) -> bool:
    if name == "__main__":
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:  # built in, or a module that its library made up
        return name.partition(".")[0] in sys.builtin_module_names or name in sys.modules
    roots = [sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    return any(Path(file).is_relative_to(root) for root in [*roots, str(_PACKAGE)])


def _globals_read(code: types.CodeType) -> Iterator[str]:
    """Global names that ``code`` and the functions inside it may read."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in _READS_GLOBALS:
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals_read(constant)


def _contents(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # not assigned yet
        return ()


def _on_accelerator(obj: Any) -> bool:
    torch = sys.modules.get("torch")  # a tensor exists only where torch does
    return torch is not None and type(obj) is torch.Tensor and obj.device.type not in ("cpu", "meta")


def _new_function(code: bytes, namespace: dict[str, Any], name: str) -> types.FunctionType:
    namespace.setdefault(
        "__builtins__", builtins
    )  # C code that imports looks them up in its caller's globals
    compiled = marshal.loads(code)
    cells = tuple(types.CellType() for _ in compiled.co_freevars)
    return types.FunctionType(compiled, namespace, name, None, cells)


def _fill_function(f: types.FunctionType, state: tuple[Any, ...]) -> None:
    read, cells, f.__defaults__, f.__kwdefaults__, attributes, f.__qualname__, f.__doc__ = state
    f.__globals__.update(read)
    f.__dict__.update(attributes)
    for cell, contents in zip(f.__closure__ or (), cells, strict=True):
        if contents:
            cell.cell_contents = contents[0]


def _read_only(mapping: dict[Any, Any]) -> types.MappingProxyType[Any, Any]:
    return types.MappingProxyType(mapping)


def _new_class(module: str, qualname: str, bases: tuple[type, ...], metaclass: type, slots: Any) -> type:
    """The class that this process has under that name, so that ``isinstance`` holds for results; or an empty one."""
    known: Any = sys.modules.get(module)
    for part in qualname.split("."):
        known = getattr(known, part, None)
    if isinstance(known, type):
        return known
    namespace = {"__module__": module, "__qualname__": qualname}
    if slots is not None:
        namespace["__slots__"] = slots
    name = qualname.rpartition(".")[2]
    cls = types.new_class(name, bases, {"metaclass": metaclass}, lambda body: body.update(namespace))
    _unfinished.add(cls)
    return cls


def _fill_class(cls: type, state: dict[str, Any]) -> None:
    if cls in _unfinished:
        _unfinished.discard(cls)
        for name, value in state.items():
            setattr(cls, name, value)
