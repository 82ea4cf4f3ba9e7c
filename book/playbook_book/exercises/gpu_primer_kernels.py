"""Answers to the primer's exercise on masks: Triton looks for ``tl`` in the module of a kernel."""

import triton.language as tl

from playbook.kernels.jit import kernel


@kernel
def masked(x, y, z, n, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    for part in range(PARTS):
        at = (tl.program_id(0) * PARTS + part) * BLOCK + tl.arange(0, BLOCK)
        tl.store(z + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@kernel
def planted(x, y, z, n, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    at = tl.program_id(0) * BLOCK * PARTS + tl.arange(0, BLOCK)
    inside = at < n
    for _ in range(PARTS):
        tl.store(z + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)
        at += BLOCK


@kernel
def writes_alone(x, y, z, n, BLOCK: tl.constexpr, PARTS: tl.constexpr):
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
