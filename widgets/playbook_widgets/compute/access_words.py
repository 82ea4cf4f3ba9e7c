"""What the memory access widget says: what a warp's access costs and why, the same in CUDA and counted in Python.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import gcd
from typing import Any

from playbook_book.kernels.warps import BANKS, SECTOR, WORD
from playbook_widgets.compute.access_setting import LINE, AccessSetting

#: CUDA's names of elements of a size, and of what a thread takes at once.
ELEMENTS = {1: "char", 2: "__half", 4: "float", 8: "double", 16: "float4"}
TAKEN = {2: "ushort", 4: "uint", 8: "uint2", 16: "uint4"}


def grouped(number: int) -> str:
    """4096 is "4 096", with a narrow space, as the page has it."""
    return f"{number:,}".replace(",", "\u202f")


def plural(number: int, word: str) -> str:
    """ "1 sector", "4 sectors", "2 passes"."""
    return f"{grouped(number)} {word}{'' if number == 1 else 'es' if word.endswith('s') else 's'}"


def in_percent(share: float) -> str:
    """0.125 is "12.5 %", and 0.03125 "3.13 %", as the page has it."""
    return f"{100 * share + 1e-9:.3g}\u202f%"


def answer(setting: AccessSetting, found: Mapping[str, Any], warp: int) -> str:
    """Two to four sentences on a warp: what it asks of memory, why it costs as much, which threads are inactive."""
    if not found["active"]:
        return f"All threads of warp {warp} are outside the {setting.array}: they access nothing."
    parts = _of_banks if setting.memory == "shared" else _of_sectors
    return " ".join(
        filter(None, [*parts(setting, found, warp), _written(setting, found), _idle(setting, found, warp)])
    )


def _who(setting: AccessSetting, found: Mapping[str, Any], warp: int) -> str:
    """ "The 32 threads of warp 0 read", without an article where they are not all."""
    active, verb = found["active"], setting.access
    if active == 1:
        return f"One thread of warp {warp} {verb}s"
    return f"{'The ' if active == _there(setting, found, warp) else ''}{active} threads of warp {warp} {verb}"


def _there(setting: AccessSetting, found: Mapping[str, Any], warp: int) -> int:
    """How many threads of the block are in the warp."""
    return min(len(found["threads"]), setting.block.size - warp * len(found["threads"]))


def _idle(setting: AccessSetting, found: Mapping[str, Any], warp: int) -> str:
    """Threads of the block that the matrix has nothing for."""
    outside = _there(setting, found, warp) - found["active"]
    if not outside:
        return ""
    return f"{plural(outside, 'thread')} {'is' if outside == 1 else 'are'} outside the {setting.array} and inactive."


def _written(setting: AccessSetting, found: Mapping[str, Any]) -> str:
    if setting.access == "read" or len(found["cells"]) == found["active"]:
        return ""
    return "Several threads write the same address: which of their values remains is not defined."


def _apart(found: Mapping[str, Any]) -> int | None:
    """Bytes from each thread's address to the next thread's, where that is the same for all; else None."""
    at = [thread[2] for thread in found["threads"] if thread]
    steps = {after - before for before, after in pairwise(at)}
    return steps.pop() if len(steps) == 1 else None


# --- Global memory


def _of_sectors(setting: AccessSetting, found: Mapping[str, Any], warp: int) -> tuple[str, str]:
    needed, moved = found["needed"], found["moved"]
    same = len(found["cells"]) == 1 and found["active"] > 1
    sectors, lines = plural(len(found["sectors"]), "sector"), plural(len(found["lines"]), "line")
    return (
        f"{_who(setting, found, warp)} {'the same ' if same else ''}{plural(needed, 'byte')}, which "
        f"{'lie' if needed > 1 else 'lies'} in {sectors} of {SECTOR} bytes ({lines} of {LINE}): "
        f"{grouped(moved)} bytes are moved, an efficiency of {in_percent(needed / moved)}."
    ), _why_sectors(setting, found)


def _why_sectors(setting: AccessSetting, found: Mapping[str, Any]) -> str:
    sectors, apart, needed = found["sectors"], _apart(found), found["needed"]
    if needed == found["moved"]:
        return "Every byte that is moved is needed: the access is coalesced."
    if found["active"] == 1 or len(found["cells"]) == 1:
        return ""
    if len(sectors) == found["active"] and setting.bytes < SECTOR:
        distance = (
            f"Neighbouring threads are {grouped(abs(apart))} bytes apart, so each" if apart else "Each thread"
        )
        return f"{distance} touches a sector of its own and uses {setting.bytes} of its {SECTOR} bytes."
    first = found["cells"][0][0]
    if found["cells"][-1][0] + setting.bytes - first == needed:
        more = len(sectors) - -(-needed // SECTOR)
        if not more:
            return "The bytes are contiguous, but do not fill their sectors."
        begin = f"begin {plural(first % SECTOR, 'byte')} into a sector"
        return (
            f"The bytes are contiguous, but {begin}: {plural(more, 'sector')} more than if they were aligned."
        )
    if apart and abs(apart) > setting.bytes:
        return f"Neighbouring threads are {grouped(abs(apart))} bytes apart; what lies between them is moved, too."
    return ""


# --- Shared memory


def _of_banks(setting: AccessSetting, found: Mapping[str, Any], warp: int) -> tuple[str, str]:
    taken, least, words = found["passes"], found["least"], found["words"]
    who, ways = _who(setting, found, warp), max(found["ways"])
    wide = (
        f" Threads that access {setting.bytes} bytes are served {128 // setting.bytes} at a time."
        if least > 1
        else ""
    )
    if ways > 1:
        many = "all of them" if ways == words else f"{ways} of them"
        where = f"{many} in bank {found['ways'].index(ways)}{' at a time' if least > 1 else ''}"
        said = (
            f"{'An' if ways in (8, 11, 18) else 'A'} {ways}-way bank conflict: {who[0].lower()}{who[1:]} "
            f"{plural(words, 'word')}, {where}. A bank delivers one word a pass: "
            f"{plural(taken, 'pass')} instead of {least}.{wide}"
        )
        return said, _why_banks(setting, found)
    if words == 1 and found["active"] > 1:
        how = "it is broadcast to them" if setting.access == "read" else "that takes one pass"
        return f"{who} the same word: {how}, which is no conflict.", ""
    busy = sum(map(bool, found["ways"]))
    said = f"{who} {plural(words, 'word')} in {plural(busy, 'bank')}: no bank conflict, {plural(taken, 'pass')}.{wide}"
    return said, _why_banks(setting, found)


def _why_banks(setting: AccessSetting, found: Mapping[str, Any]) -> str:
    if setting.remedy == "swizzle":
        line = "row" if setting.by_rows else "column"
        return f"The swizzle stores an element at place {_places(setting)[1]} of its {line}."
    apart = _apart(found)
    if setting.bytes != WORD or found["active"] < BANKS or not apart or abs(apart) == WORD:
        return ""
    words = abs(apart) // WORD
    share = gcd(words, BANKS)
    meet = f"{share} threads meet in each bank that is used" if share > 1 else "no two threads meet in a bank"
    return f"Neighbouring threads are {plural(words, 'word')} apart, and gcd({words}, {BANKS}) = {share}: {meet}."


# --- The same in code


def _coordinates(setting: AccessSetting, x: str, y: str) -> tuple[str, str]:
    """Row and column of thread (x, y)."""
    vector = setting.vector
    row_factor, column_factor = (1, vector) if setting.by_rows else (vector, 1)
    first, second = (x, setting.stride), (y, setting.stride_y)
    row, column = (second, first) if setting.along == "row" else (first, second)
    return _times(row[0], row[1] * row_factor), _times(column[0], column[1] * column_factor)


def _times(name: str, factor: int) -> str:
    return "0" if not factor else name if factor == 1 else f"{factor} * {name}"


def _places(setting: AccessSetting) -> tuple[str, str]:
    """Indices along what is not contiguous and what is, in C as in Python."""
    outer, inner = ("row", "column") if setting.by_rows else ("column", "row")
    if setting.remedy != "swizzle":
        return outer, inner
    return outer, f"{inner} ^ {_times(f'({outer} % {setting.turns})', setting.chunk)}"


def index(setting: AccessSetting) -> str:
    """The index of a thread's first element, in elements."""
    outer, inner = _places(setting)
    offset = f"{setting.offset} + " if setting.offset else ""
    return f"{offset}{outer} * {setting.pitch} + {f'({inner})' if ' ' in inner else inner}"


def cuda(setting: AccessSetting) -> str:
    """The access as a kernel in CUDA has it."""
    element = ELEMENTS[setting.size]
    outer, inner = _places(setting)
    declared, at = "", f"A[{index(setting)}]"
    if setting.memory == "shared":
        many = setting.rows if setting.by_rows else setting.columns
        declared, at = f"__shared__ {element} A[{many}][{setting.pitch}];\n", f"A[{outer}][{inner}]"
    kind = element
    if setting.vector > 1:
        kind = TAKEN[setting.bytes]
        at = f"*({'const ' if setting.access == 'read' else ''}{kind} *)&{at}"
    row, column = _coordinates(setting, "threadIdx.x", "threadIdx.y")
    does = f"value = {at};" if setting.access == "read" else f"{at} = value;"
    return (
        f"{declared}int row = {row}, column = {column};\n{kind} value;\n"
        f"if (row < {setting.rows} && column < {setting.columns}) {does}"
    )


def python(setting: AccessSetting, warp: int) -> str:
    """What counts one warp of it."""
    take = "shared" if setting.memory == "shared" else {"read": "load", "write": "store"}[setting.access]
    row, column = _coordinates(setting, "t.x", "t.y")
    at = f"({index(setting)}) // {setting.vector}" if setting.vector > 1 else index(setting)
    result = 'counted.sum("passes", "shared")' if take == "shared" else "counted.sectors, counted.efficiency"
    return "\n".join([
        f"from playbook_book.kernels.warps import Dim, count, {take}",
        "",
        "def kernel(t):",
        f"    row, column = {row}, {column}",
        f"    if row < {setting.rows} and column < {setting.columns}:",
        f'        yield {take}("A", {at}, size={setting.bytes})',
        "",
        f"counted = count(kernel, Dim(1), Dim({setting.block_x}, {setting.block_y}), warps=[{warp}])",
        result,
    ])  # fmt: skip
