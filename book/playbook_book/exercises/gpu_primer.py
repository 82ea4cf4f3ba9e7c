"""Exercises of the primer on GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from playbook_book.exercises.exercise import NotYet, exercise, number


@exercise("gpu-primer.in-flight", "number", "the occupancy that keeps the memory of an H200 busy")
def in_flight(answer: Any) -> str:
    from playbook.hardware import ACCELERATORS
    from playbook.kernels.chips import CHIPS, LATENCY, bytes_in_flight

    chip, latency = CHIPS["h200"], LATENCY["device memory"]
    needed = bytes_in_flight(ACCELERATORS["h200"].memory_bandwidth, latency) / chip.multiprocessors
    right = needed / 16 / 2048
    of_h100 = (
        bytes_in_flight(ACCELERATORS["h100"].memory_bandwidth, latency) / chip.multiprocessors / 16 / 2048
    )
    hints = {
        100 * right: "almost: as a share, between 0 and 1",
        needed: "those are the bytes in flight in one multiprocessor; how many threads wait for them?",
        needed
        / 16: "those are the threads; occupancy is their share of the most that a multiprocessor can hold",
        needed * chip.multiprocessors: "those are the bytes in flight in the whole GPU",
        right * chip.multiprocessors: "bytes of all multiprocessors, but threads of one",
        right * 4: "a thread waits for 16 bytes, not for one number of 4",
        right / 2: "a thread waits for one load at a time",
        of_h100: "that is an H100; the memory of an H200 is faster",
        needed / 16 / 1024: "1,024 is the most threads in one block; a multiprocessor has room for more",
    }
    number(
        answer,
        right,
        hints,
        otherwise="Little's law gives bytes; divide them among multiprocessors, then threads.",
    )
    return "less than a third of the threads is enough, if each asks for 16 bytes"


@exercise("gpu-primer.tail", "number", "the idle time of a last wave")
def tail(answer: Any) -> str:
    from playbook.kernels.chips import CHIPS, H100, busy, waves

    blocks = 2048 // 128 * (5120 // 256)
    right = 1 - busy(blocks, H100.multiprocessors)
    last = blocks % H100.multiprocessors / H100.multiprocessors
    hints = {
        1 - right: "that is the share in which they have a block",
        100 * right: "almost: as a share, between 0 and 1",
        1 - last: "that is the last wave alone; of all waves?",
        last: "that is how full the last wave is",
        1 - busy(blocks, CHIPS["a100-80"].multiprocessors): "that is an A100, with 108 multiprocessors",
        waves(blocks, H100.multiprocessors): "that is how many waves there are",
        1 - busy(blocks, 2 * H100.multiprocessors): "only one of these blocks fits into a multiprocessor",
    }
    number(answer, right, hints, otherwise="How many blocks are there, and how many waves do they take?")
    return "the third wave has 56 blocks for 132 multiprocessors"


@exercise("gpu-primer.blocks", "function", "how many blocks of a kernel fit into a multiprocessor")
def blocks(write: Callable[..., Any]) -> str:
    from playbook.kernels.compiled import Compiled

    cases = (
        (256, 32, 0), (128, 18, 0), (32, 16, 0), (1024, 64, 0), (1024, 65, 0), (256, 180, 147456), (128, 33, 0),
        (256, 40, 0), (256, 32, 40000), (64, 32, 7100), (128, 32, 18 * 1024), (96, 100, 0),
    )  # fmt: skip
    for threads, registers, shared in cases:
        made = Compiled("", 90, threads // 32, registers, 0, shared, "")
        given = write(threads, registers, shared)
        if given == made.resident:
            continue
        case = f"blocks of {threads} threads with {registers} registers each and {shared:,} bytes of shared memory"
        for wrong, why in _slips(threads, registers, shared, made.limits):
            if given == wrong:
                raise NotYet(f"{case}: {why}")
        if isinstance(given, float) and given != int(given):
            raise NotYet(f"{case}: {given:g}, but a part of a block does not run")
        scarce = min(made.limits, key=lambda name: made.limits[name])
        raise NotYet(f"{case}: {given!r} is not what the {scarce} allow" + "s" * (scarce == "shared memory"))
    return f"as computed from the compiler's figures in {len(cases)} cases; each resource is the scarcest in at least one"


def _slips(threads: int, registers: int, shared: int, limits: dict[str, int]) -> list[tuple[int, str]]:
    """What a reader gets who forgets one thing."""
    without = {name: min(v for other, v in limits.items() if other != name) for name in limits}
    whole = limits | {"registers": 65536 // (registers * threads)}
    bare = limits | {"shared memory": 228 * 1024 // shared if shared else 32}
    less = limits | {"shared memory": 227 * 1024 // (shared + 1024)}
    return [
        (min(less.values()), "227 KiB is the most that one block can have; the multiprocessor has 228"),
        (min(whole.values()), "each warp is given registers in units of 256"),
        (min(bare.values()), "each block takes 1 KiB of shared memory besides its own"),
        (without["blocks"], "no more than 32 blocks run at a time, however small they are"),
        (without["threads"], "there is room for 2,048 threads"),
        (without["registers"], "there are not enough registers for so many blocks"),
        (without["shared memory"], "there is not enough shared memory for so many blocks"),
    ]


@exercise("gpu-primer.mask", "repair", "a sum of vectors with a mask that is made once and used four times")
def mask(mended: Any) -> str:
    import torch

    from playbook.kernels.jit import Kernel, cdiv
    from playbook.kernels.sectors import Sectors

    if not isinstance(mended, Kernel):
        raise NotYet(
            f"the grader launches a kernel: keep the line @kernel above it, got {type(mended).__name__}"
        )
    block, parts, beside = 64, 4, 4096
    for n in (512, 1000, 520, 8):
        x, y, z = torch.full((3, n + 2 * beside), -1.0)
        inside = slice(beside, beside + n)
        x[inside], y[inside] = torch.arange(n), torch.arange(n) * 10.0
        arguments = (x[inside], y[inside], z[inside])
        try:
            with Sectors() as counted:
                mended[cdiv(n, block * parts),](*arguments, n, BLOCK=block, PARTS=parts)
        except LookupError:
            raise NotYet(f"with {n:,} numbers: it reads or writes far outside the vectors") from None
        right_so_far = "right where blocks fill the vector; " if n != 512 else ""
        if wrong := int((z[inside] != 11.0 * torch.arange(n)).sum()):
            raise NotYet(f"{right_so_far}with {n:,} numbers, {wrong:,} of z are not x + y")
        z[inside] = -1.0
        if outside := int((z != -1.0).sum()):
            raise NotYet(
                f"{right_so_far}with {n:,} numbers, z is right, but {_numbers(outside)} overwritten after its end"
            )
        read = counted.dram.read // 8 - n
        if read > 0:
            raise NotYet(
                f"{right_so_far}with {n:,} numbers, z is right, but up to {_numbers(read)} read after the end of x "
                "and y: on a GPU, memory may end there"
            )
    return "every number once and nothing after the end of the vectors, whatever their length"


def _numbers(count: int) -> str:
    return "1 number is" if count == 1 else f"{count:,} numbers are"
