"""Wrong answers that readers of the primer on GPUs may well give, and what they are told."""

import pytest
import triton.language as tl

from playbook.kernels.jit import kernel
from playbook_book.exercises import grade

NEEDED = 4.8e12 * 478.8 / 1.755e9 / 132  # bytes in flight in a multiprocessor of an H200


def by(
    threads, registers, shared, *, unit=256, beside=1024, most=32, room=2048, size=65536, on_chip=228 * 1024
):
    warps = threads // 32
    per_warp = -(-registers * 32 // unit) * unit
    return min(most, room // threads, size // (per_warp * warps), on_chip // max(shared + beside, 1))


def right_blocks(threads, registers, shared):
    return by(threads, registers, shared)


def registers_one_by_one(threads, registers, shared):
    return by(threads, registers, shared, unit=1)


def nothing_beside(threads, registers, shared):
    return by(threads, registers, shared, beside=0)


def of_one_block(threads, registers, shared):
    return by(threads, registers, shared, on_chip=227 * 1024)


def any_number_of_blocks(threads, registers, shared):
    return by(threads, registers, shared, most=10**6)


def threads_of_a_block(threads, registers, shared):
    return by(threads, registers, shared, room=1024)


def no_registers(threads, registers, shared):
    return by(threads, registers, shared, size=10**9)


def no_shared_memory(threads, registers, shared):
    return by(threads, registers, shared, on_chip=10**9)


def not_rounded(threads, registers, shared):
    return min(32, 2048 / threads, 65536 / (registers * threads))


@kernel
def planted(x, y, z, n, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    at = tl.program_id(0) * BLOCK * PARTS + tl.arange(0, BLOCK)
    inside = at < n
    for _ in range(PARTS):
        total = tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside)
        tl.store(z + at, total, mask=inside)
        at += BLOCK


@kernel
def masked_writes_alone(x, y, z, n, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    for part in range(PARTS):
        at = (tl.program_id(0) * PARTS + part) * BLOCK + tl.arange(0, BLOCK)
        tl.store(z + at, tl.load(x + at) + tl.load(y + at), mask=at < n)


@kernel
def one_too_many(x, y, z, n, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    for part in range(PARTS):
        at = (tl.program_id(0) * PARTS + part) * BLOCK + tl.arange(0, BLOCK)
        tl.store(z + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at <= n)


@kernel
def whole_blocks_alone(x, y, z, n, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    for part in range(PARTS):
        first = (tl.program_id(0) * PARTS + part) * BLOCK
        at = first + tl.arange(0, BLOCK)
        whole = (at < n) & (first + BLOCK <= n)
        tl.store(z + at, tl.load(x + at, mask=whole) + tl.load(y + at, mask=whole), mask=whole)


@kernel
def first_part_alone(x, y, z, n, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    at = tl.program_id(0) * BLOCK * PARTS + tl.arange(0, BLOCK)
    tl.store(z + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@kernel
def right(x, y, z, n, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    for part in range(PARTS):
        at = (tl.program_id(0) * PARTS + part) * BLOCK + tl.arange(0, BLOCK)
        tl.store(z + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("in-flight", NEEDED, "the bytes in flight in one multiprocessor"),
        ("in-flight", NEEDED / 16, "those are the threads"),
        ("in-flight", NEEDED / 4 / 2048, "a thread waits for 16 bytes"),
        ("in-flight", NEEDED / 16 / 2048 * 132, "bytes of all multiprocessors, but threads of one"),
        ("in-flight", NEEDED / 32 / 2048, "one load at a time"),
        ("in-flight", NEEDED / 16 / 2048 * 3.35 / 4.8, "that is an H100"),
        ("in-flight", NEEDED / 16 / 1024, "the most threads in one block"),
        ("in-flight", 0.9, "0.9 is too large. Little's law"),
        ("tail", 320 / 396, "the share in which they have a block"),
        ("tail", 1 - 56 / 132, "that is the last wave alone"),
        ("tail", 56 / 132, "how full the last wave is"),
        ("tail", 1 - 320 / 324, "that is an A100"),
        ("tail", 3, "how many waves there are"),
        ("tail", 0.5, "0.5 is too large. How many blocks"),
        ("blocks", registers_one_by_one, "in units of 256"),
        ("blocks", nothing_beside, "takes 1 KiB of shared memory besides"),
        ("blocks", of_one_block, "the most that one block can have"),
        ("blocks", any_number_of_blocks, "no more than 32 blocks"),
        ("blocks", threads_of_a_block, "4 is not what the threads allow"),
        ("blocks", no_registers, "there are not enough registers for so many blocks"),
        ("blocks", no_shared_memory, "there is not enough shared memory for so many blocks"),
        ("blocks", not_rounded, "a part of a block does not run"),
        ("mask", planted, "with 1,000 numbers, z is right, but 24 numbers are overwritten after its end"),
        (
            "mask",
            masked_writes_alone,
            "with 1,000 numbers, z is right, but up to 24 numbers are read after the end of x and y",
        ),
        ("mask", one_too_many, "with 1,000 numbers, z is right, but 1 number is overwritten after its end"),
        ("mask", whole_blocks_alone, "with 1,000 numbers, 40 of z are not x + y"),
        ("mask", first_part_alone, "with 512 numbers, 384 of z are not x + y"),
        ("mask", lambda x, y, z, n: None, "keep the line @kernel"),
    ],
)
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"gpu-primer.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text


@pytest.mark.parametrize(
    ("name", "answer"),
    [("in-flight", NEEDED / 16 / 2048), ("tail", 1 - 320 / 396), ("blocks", right_blocks), ("mask", right)],
)
def test_right_answers_are_right(name, answer):
    assert grade(f"gpu-primer.{name}", answer).right
