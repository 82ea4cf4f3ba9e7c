"""Exercises of the primer on GPUs."""

from __future__ import annotations

from functools import partial
from typing import Any

from playbook_book.exercises.exercise import (
    NotYet,
    answers,
    answers_made,
    exercise,
    function,
    number,
)


@number(
    "gpu-primer.in-flight",
    "the occupancy that keeps the memory of an H200 busy",
    praise="less than a third of the threads is enough, if each asks for 16 bytes",
    otherwise="Little's law gives bytes; divide them among multiprocessors, then threads.",
)
def in_flight() -> tuple[float, dict[float, str]]:
    from playbook.hardware import ACCELERATORS
    from playbook_book.chips import CHIPS, LATENCY, bytes_in_flight

    def needed(name: str) -> float:
        bandwidth, latency = ACCELERATORS[name].memory_bandwidth, LATENCY["device memory"]
        return bytes_in_flight(bandwidth, latency) / CHIPS["h200"].multiprocessors

    size, share = needed("h200"), needed("h200") / 16 / 2048
    return share, {
        100 * share: "almost: as a share, between 0 and 1",
        size: "those are the bytes in flight in one multiprocessor; how many threads wait for them?",
        size
        / 16: "those are the threads; occupancy is their share of the most that a multiprocessor can hold",
        size * 132: "those are the bytes in flight in the whole GPU",
        share * 132: "bytes of all multiprocessors, but threads of one",
        share * 4: "a thread waits for 16 bytes, not for one number of 4",
        share / 2: "a thread waits for one load at a time",
        needed("h100") / 16 / 2048: "that is an H100; the memory of an H200 is faster",
        size / 16 / 1024: "1,024 is the most threads in one block; a multiprocessor has room for more",
    }


def _not_allowed(given: Any, wanted: int) -> str:
    if isinstance(given, float) and given != int(given):
        return f"{given:g}, but a part of a block does not run"
    return f"{given!r} is too {'many' if given > wanted else 'few'}: which resource is the scarcest?"


@function(
    "gpu-primer.blocks",
    "how many blocks of a kernel fit into a multiprocessor",
    cases=(
        (256, 32, 0), (128, 18, 0), (32, 16, 0), (1024, 64, 0), (1024, 65, 0), (256, 180, 147456), (128, 33, 0),
        (256, 40, 0), (256, 32, 40000), (64, 32, 7100), (128, 32, 18 * 1024), (96, 100, 0),
    ),
    case="blocks of {} threads with {} registers each and {:,} bytes of shared memory".format,
    praise="as computed from the compiler's figures in 12 cases; each resource is the scarcest in at least one",
    otherwise=_not_allowed,
)  # fmt: skip
def blocks(threads: int, registers: int, shared: int) -> int:
    from playbook_book.kernels.compiled import Compiled

    return Compiled("", 90, threads // 32, registers, 0, shared, "").resident


def _blocks(
    threads: int,
    registers: int,
    shared: int,
    *,
    unit=256,
    beside=1024,
    most=32,
    room=2048,
    size=65536,
    kib=228,
) -> int:
    per_warp = -(-registers * 32 // unit) * unit
    return min(
        most, room // threads, size // (per_warp * threads // 32), kib * 1024 // max(shared + beside, 1)
    )


answers(
    "gpu-primer.blocks",
    right=[_blocks],
    wrong={
        "227 KiB is the most that one block can have; the multiprocessor has 228": partial(_blocks, kib=227),
        "each warp is given registers in units of 256": partial(_blocks, unit=1),
        "each block takes 1 KiB of shared memory besides its own": partial(_blocks, beside=0),
        "no more than 32 blocks run at a time, however small they are": partial(_blocks, most=10**6),
        "1,024 is the most threads of one block; there is room for 2,048": partial(_blocks, room=1024),
        "there is room for 2,048 threads": partial(_blocks, room=10**6),
        "there are not enough registers for so many blocks": partial(_blocks, size=10**9),
        "there is not enough shared memory for so many blocks": partial(_blocks, kib=10**6),
        "2.66667, but a part of a block does not run": lambda t, r, s: min(32, 2048 / t, 65536 / (r * t)),
    },
)


@exercise("gpu-primer.mask", "repair", "a sum of vectors with a mask that is made once and used four times")
def mask(mended: Any) -> str:
    import torch

    from playbook.kernels.jit import Kernel, cdiv
    from playbook_book.kernels.sectors import Sectors

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


@answers_made("gpu-primer.mask")
def _masks() -> tuple[list[Any], dict[str, Any]]:
    from playbook_book.exercises import gpu_primer_kernels as kernels

    return [kernels.masked], {
        "with 1,000 numbers, z is right, but 24 numbers are overwritten after its end": kernels.planted,
        "z is right, but up to 24 numbers are read after the end of x and y": kernels.writes_alone,
        "with 1,000 numbers, z is right, but 1 number is overwritten after its end": kernels.one_too_many,
        "with 1,000 numbers, 40 of z are not x + y": kernels.whole_blocks_alone,
        "with 512 numbers, 384 of z are not x + y": kernels.first_part_alone,
        "keep the line @kernel": lambda x, y, z, n: None,
    }
