"""Machine code of a compiled kernel for Hopper, read for what its asynchronous products must not meet.

    hazards(instructions(compiled(launch, 90)))           # sentences, none if all is well

A ``wgmma`` (HGMMA, QGMMA) goes on after it was issued, until ``WARPGROUP.DEPBAR`` has waited for it. Until then

- its sums must not be touched, and a register that it reads its left matrix from must not be overwritten;
- shared memory that it reads must not be filled again: after the wait *all* warps of a block have to meet (BAR, or an
  arrival at an mbarrier) before a copy into a buffer begins.

Compilers have failed at each (triton-lang/triton#9433, #11047, #11781). Every path through the kernel is followed, with
what is in flight on it.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import triton

from playbook_book.kernels.compiled import Compiled

_LINE = re.compile(
    r"\s*/\*(?P<at>[0-9a-f]+)\*/\s+(?:@!?U?P\w+\s+)?(?P<name>[A-Z][\w.]*)\s*(?P<operands>[^;]*);"
)
_LABEL = re.compile(r"\s*(\.L_x_\d+):")
_REGISTER = re.compile(r"\bR(\d+)(\.64)?")
_WITHOUT_RESULT = (
    "ST",
    "RED",
    "BAR",
    "UTMA",
    "BRA",
    "EXIT",
    "WARPGROUP",
    "UBLK",
    "LDGSTS",
    "MEMBAR",
    "DEPBAR",
    "NOP",
)
COPIES = ("UTMALDG", "LDGSTS", "UBLKCP")
MEET = ("BAR.", "SYNCS.ARRIVE")


class Instruction(NamedTuple):
    """One line: its address, its name, and what stands behind that; ``guarded``: it may not be carried out."""

    at: str
    name: str
    operands: str
    guarded: bool = False

    @property
    def multiplies(self) -> bool:
        return self.name.startswith(("HGMMA", "QGMMA", "IGMMA"))

    @property
    def sums(self) -> frozenset[int]:
        """Registers of a wgmma's result: a 64 × N matrix of 4 bytes, over 128 threads."""
        wide = re.search(r"64x(\d+)x\d+\.F(16|32)", self.name)
        first = _REGISTER.match(self.operands)
        assert wide is not None, self
        assert first is not None, self
        return _range(int(first[1]), int(wide[1]) // (2 if wide[2] == "32" else 4))

    @property
    def left(self) -> frozenset[int]:
        """Registers of a wgmma's left matrix, none where it is in shared memory: 64 rows of 32 bytes, 128 threads."""
        second = self.operands.split(",")[1].strip()
        found = _REGISTER.match(second)
        return _range(int(found[1]), 4) if found else frozenset()

    @property
    def written(self) -> frozenset[int]:
        first = _REGISTER.match(self.operands)
        if first is None or self.name.startswith(_WITHOUT_RESULT):
            return frozenset()
        return _range(int(first[1]), self._wide())

    @property
    def read(self) -> frozenset[int]:
        skip = 0 if not self.written else len(self.operands.split(",")[0])
        found = _REGISTER.finditer(self.operands[skip:])
        return frozenset(r for one in found for r in _range(int(one[1]), 2 if one[2] else 1))

    def _wide(self) -> int:
        loads = self.name.startswith(("LD", "ATOM", "SULD"))
        if (loads and ".128" in self.name) or re.search(r"LDSM.*\.4$", self.name):
            return 4
        return 2 if (loads and ".64" in self.name) or ".WIDE" in self.name or self.name == "CS2R" else 1


def _range(first: int, count: int) -> frozenset[int]:
    return frozenset(range(first, first + count))


def instructions(made: Compiled) -> dict[str, list[Instruction]]:
    """By label ("" is the entry), in order."""
    return parsed(disassembled(made.cubin))


def disassembled(cubin: bytes) -> str:
    """Machine code as ``nvdisasm``, which comes with Triton, reads it."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([str(tool), "-c", file.name], capture_output=True, text=True, check=True).stdout


def parsed(text: str) -> dict[str, list[Instruction]]:
    """Instructions from label to label, in order."""
    found: dict[str, list[Instruction]] = {"": []}
    here = found[""]
    for line in text.splitlines():
        if label := _LABEL.match(line):
            here = found[label[1]] = []
        elif one := _LINE.match(line):
            here.append(
                Instruction(
                    one["at"], one["name"], one["operands"].strip(), "@" in line.split("*/", 1)[1][:40]
                )
            )
    return found


class Flight(NamedTuple):
    """What is in flight: of each group of wgmma, sums and left matrices, the last group being open; and whether buffers
    were waited for that other warps may still read."""

    groups: tuple[tuple[frozenset[int], frozenset[int]], ...] = ()
    closed: bool = True
    alone: bool = False


def hazards(code: dict[str, list[Instruction]]) -> list[str]:
    """A sentence for each instruction that meets one of the above on some path."""
    labels, found = list(code), dict[str, str]()
    seen: set[tuple[str, Flight]] = set()
    jumped = {target for block in code.values() for one in block for target in _targets(one)}
    following = {a for a, b in zip(labels[1:], labels, strict=False) if not _ends(code[b])}
    unseen = dict.fromkeys(
        label for label in labels if label not in jumped | following
    )  # tables of jumps lead there
    unseen |= dict.fromkeys(labels)
    todo: list[tuple[str, Flight]] = []
    while todo or unseen:
        label, flight = todo.pop() if todo else (next(iter(unseen)), Flight())
        unseen.pop(label, None)
        if (label, flight) in seen:
            continue
        seen.add((label, flight))
        for one in code[label]:
            found.update((one.at, f"{one.at} {one.name} {said}") for said in _met(one, flight))
            flight = _after(one, flight)
            todo += [(target, flight) for target in _targets(one) if target in code]
        place = labels.index(label) + 1
        if place < len(labels) and not _ends(code[label]):
            todo.append((labels[place], flight))
    return [found[at] for at in sorted(found)]


def _targets(one: Instruction) -> list[str]:
    return re.findall(r"\.L_x_\d+", one.operands) if one.name.startswith(("BRA", "CALL")) else []


def _ends(block: list[Instruction]) -> bool:
    return bool(block) and block[-1].name.startswith(("BRA", "EXIT", "RET", "BRX")) and not block[-1].guarded


def _met(one: Instruction, flight: Flight) -> Iterator[str]:
    sums = frozenset[int]().union(*(group[0] for group in flight.groups))
    left = frozenset[int]().union(*(group[1] for group in flight.groups))
    if touched := one.written & left or (one.multiplies and one.sums & left):
        yield f"overwrites R{min(touched)}, of a left matrix in flight"
    if not one.multiplies and (touched := (one.written | one.read) & sums):
        yield f"touches R{min(touched)}, of sums in flight"
    if one.name.startswith(COPIES) and flight.alone:
        yield "fills a buffer after a wait, before warps have met"


def _after(one: Instruction, flight: Flight) -> Flight:
    if one.multiplies:
        new = one.sums, one.left
        groups = flight.groups
        if not flight.closed:
            new, groups = (groups[-1][0] | new[0], groups[-1][1] | new[1]), groups[:-1]
        return flight._replace(groups=(*groups, new), closed="gsb0" in one.operands)
    if one.name.startswith("WARPGROUP.DEPBAR"):
        left = int(one.operands.split(",")[1], 16)
        return Flight(flight.groups[len(flight.groups) - left :] if left else (), True, True)
    return flight._replace(alone=False) if one.name.startswith(MEET) else flight
