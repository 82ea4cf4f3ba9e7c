"""What a reader of the memory access widget sets: an array, the threads of a block, and which elements they take.

Inputs are a flat mapping that holds only what differs from ``DEFAULTS``, so that it fits into a link:
``{"memory": "shared", "along": "column"}``. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from playbook._checks import typed_int, unknown
from playbook.errors import ConfigError
from playbook_book.kernels.warps import BANKS, WARP, WORD, Dim, Kernel, Step, Thread, load, shared, store

#: What a control shows when nothing is set: neighbouring threads read neighbouring floats.
DEFAULTS: dict[str, Any] = {
    "memory": "global",
    "access": "read",
    "layout": "row-major",
    "rows": None,  # as in SIDES
    "columns": None,
    "size": 4,
    "vector": 1,
    "along": "row",
    "stride": 1,
    "stride_y": 1,
    "block_x": 32,
    "block_y": 8,
    "offset": 0,
    "remedy": "none",
    "padding": 1,
    "step": 0,  # the warp that is shown
    "thread": 0,  # the thread of it that is
}
#: Rows and columns where none are set: of a matrix in global memory, of a tile in shared memory.
SIDES = {"global": 1024, "shared": 32}
CHOICES = {
    "memory": tuple(SIDES),
    "access": ("read", "write"),
    "layout": ("row-major", "column-major"),
    "along": ("row", "column"),
    "remedy": ("none", "padding", "swizzle"),
}
SIZES = (1, 2, 4, 8, 16)
#: The least and the most of each number.
LIMITS = {
    "rows": (1, 16_384),
    "columns": (1, 16_384),
    "stride": (0, 1024),
    "stride_y": (0, 1024),
    "block_x": (1, 1024),
    "block_y": (1, 1024),
    "offset": (0, 1024),
    "padding": (1, 64),
    "step": (0, 10_000),  # what is not there is the last
    "thread": (0, WARP - 1),
}
#: Bytes that a thread takes at once at most, and of shared memory that a block of an H100 may have.
VECTOR, SHARED = 16, 227 * 1024
THREADS = 1024
#: Bytes of a line; all banks are as wide.
LINE = BANKS * WORD


@dataclass(frozen=True)
class AccessSetting:
    """What a flat mapping of controls comes to. ``size`` is in bytes, ``vector`` in elements, the rest is counted."""

    memory: str
    access: str
    layout: str
    rows: int
    columns: int
    size: int
    vector: int
    along: str
    stride: int
    stride_y: int
    block_x: int
    block_y: int
    offset: int
    remedy: str
    padding: int

    @property
    def by_rows(self) -> bool:
        """Whether the elements of a row lie side by side."""
        return self.layout == "row-major"

    @property
    def array(self) -> str:
        return "tile" if self.memory == "shared" else "matrix"

    @property
    def inner(self) -> str:
        """The dimension whose elements lie side by side: there are as many to a row, or to a column."""
        return "columns" if self.by_rows else "rows"

    @property
    def pitch(self) -> int:
        """Elements from the beginning of a row (a column, where these are contiguous) to that of the next."""
        return int(getattr(self, self.inner)) + (self.padding if self.remedy == "padding" else 0)

    @property
    def bytes(self) -> int:
        """Of one access of a thread."""
        return self.size * self.vector

    @property
    def chunk(self) -> int:
        """Elements that a swizzle moves together: what a thread takes at once, at least a word."""
        return max(WORD, self.bytes) // self.size

    @property
    def turns(self) -> int:
        """Rows after which a swizzle repeats: as many as chunks in the width of all banks."""
        return LINE // (self.chunk * self.size)

    @property
    def block(self) -> Dim:
        return Dim(self.block_x, self.block_y)

    @property
    def warps(self) -> int:
        return -(-self.block.size // WARP)

    def place(self, x: int, y: int) -> tuple[int, int]:
        """Row and column of the first element that thread (x, y) takes."""
        first, second = x * self.stride, y * self.stride_y
        row, column = (second, first) if self.along == "row" else (first, second)
        return (row, column * self.vector) if self.by_rows else (row * self.vector, column)

    def index(self, row: int, column: int) -> int:
        """Where an element lies, counted in elements."""
        outer, inner = (row, column) if self.by_rows else (column, row)
        if self.remedy == "swizzle":
            inner ^= outer % self.turns * self.chunk
        return self.offset + outer * self.pitch + inner

    @cached_property
    def kernel(self) -> Kernel:
        """The access of one thread; threads outside the matrix are inactive."""
        take = shared if self.memory == "shared" else load if self.access == "read" else store

        def kernel(t: Thread) -> Iterator[Step]:
            row, column = self.place(t.x, t.y)
            if row < self.rows and column < self.columns:
                yield take("A", self.index(row, column) // self.vector, self.bytes)

        return kernel

    def request(self, warp: int) -> list[Step | None]:
        """What the threads of a warp do together."""
        threads = range(warp * WARP, (warp + 1) * WARP)
        return [next(self.kernel(self.thread(i)), None) if i < self.block.size else None for i in threads]

    def thread(self, number: int) -> Thread:
        """Of the block, numbered as warps are filled."""
        return Thread(*self.block.place(number), Dim(0, 0, 0), self.block, Dim(1))


def read(inputs: Mapping[str, Any]) -> AccessSetting:
    """The setting that a flat mapping means; raises :class:`PlaybookError` in one sentence."""
    for key in inputs:
        if key not in DEFAULTS:
            raise ConfigError(f"{key} is not a setting of the memory access widget")
    values = {**DEFAULTS, **{key: value for key, value in inputs.items() if value is not None}}
    for name, known in CHOICES.items():
        if values[name] not in known:
            raise ConfigError(unknown(name, str(values[name]), known))
    for name in ("rows", "columns"):
        values[name] = SIDES[values["memory"]] if values[name] is None else values[name]
    for name, (least, most) in LIMITS.items():
        values[name] = typed_int(name, values[name], ConfigError, least=least, most=most)
    for name in ("size", "vector"):
        values[name] = typed_int(name, values[name], ConfigError)
        if values[name] not in SIZES:
            raise ConfigError(f"{name} must be one of {', '.join(map(str, SIZES))}, got {values[name]}")
    setting = AccessSetting(**{name: values[name] for name in DEFAULTS if name not in ("step", "thread")})
    _check_vectors(setting)
    _check_memory(setting)
    return setting


def _check_vectors(setting: AccessSetting) -> None:
    """A thread takes at most 16 bytes, at a multiple of as many as it takes, and all of them in one row."""
    size, vector, inner = setting.size, setting.vector, setting.inner
    if setting.bytes > VECTOR:
        raise ConfigError(
            f"vector must be at most {VECTOR // size}: a thread takes at most {VECTOR} bytes at once, got {vector} "
            f"elements of {size}"
        )
    for name in (inner, "offset", *(["padding"] if setting.remedy == "padding" else [])):
        if getattr(setting, name) % vector:
            raise ConfigError(
                f"{name} must be a multiple of vector = {vector}: a thread takes {setting.bytes} bytes at a multiple of "
                f"{setting.bytes} bytes, got {getattr(setting, name)}"
            )


def _check_memory(setting: AccessSetting) -> None:
    """What only one of the memories has, and how much there is."""
    if setting.block.size > THREADS:
        raise ConfigError(
            f"block_x * block_y must be at most {THREADS} threads of a block, got {setting.block.size}"
        )
    if setting.memory == "global":
        if setting.remedy != "none":
            raise ConfigError(f"remedy must be none for global memory, got {setting.remedy!r}")
        return
    if setting.offset:
        raise ConfigError(f"offset must be 0 for a tile in shared memory, got {setting.offset}")
    outer = setting.rows if setting.by_rows else setting.columns
    needed = outer * setting.pitch * setting.size
    if needed > SHARED:
        raise ConfigError(
            f"rows * columns must be at most {SHARED} bytes, the shared memory that a block may have, got {needed}"
        )
    inner = setting.inner
    if setting.remedy == "swizzle" and getattr(setting, inner) * setting.size % LINE:
        raise ConfigError(
            f"{inner} must be a multiple of {LINE // setting.size} for a swizzle, which moves elements within {LINE} "
            f"bytes, got {getattr(setting, inner)}"
        )
