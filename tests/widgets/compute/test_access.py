"""The memory access widget: its counts against a memory simulated byte by byte, its code, what it says and refuses."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playbook_widgets.compute.access import compute
from playbook_widgets.compute.access_setting import CHOICES, DEFAULTS, LIMITS, SHARED, SIDES, read
from playbook_widgets.memory_access import EXAMPLES

from playbook.errors import ConfigError
from playbook_book.kernels.compiled import SHARED as OF_A_BLOCK
from playbook_book.ladder import count_product

NAMED = {name: inputs for name, inputs, _ in EXAMPLES}


@st.composite
def accesses(draw, memory=None):
    """Settings of all kinds, arrays of up to 96 × 96, those that are refused left out."""
    memory = memory or draw(st.sampled_from(CHOICES["memory"]))
    size = draw(st.sampled_from([1, 2, 4, 8, 16]))
    vector = draw(st.sampled_from([n for n in (1, 2, 4, 8, 16) if n * size <= 16]))
    layout = draw(st.sampled_from(CHOICES["layout"]))
    inner = "columns" if layout == "row-major" else "rows"
    remedy = draw(st.sampled_from(CHOICES["remedy"])) if memory == "shared" else "none"
    sides = {name: draw(st.integers(1, 96 if size < 16 else 48)) for name in ("rows", "columns")}
    step = 128 // size if remedy == "swizzle" else vector
    sides[inner] = draw(st.integers(1, max(1, 96 // step))) * step
    block = draw(st.sampled_from([(32, 3), (8, 8), (1, 40), (64, 1), (5, 7), (33, 2)]))
    return {
        "memory": memory,
        "access": draw(st.sampled_from(CHOICES["access"])),
        "layout": layout,
        "along": draw(st.sampled_from(CHOICES["along"])),
        "size": size,
        "vector": vector,
        **sides,
        "stride": draw(st.integers(0, 9)),
        "stride_y": draw(st.integers(0, 3)),
        "block_x": block[0],
        "block_y": block[1],
        "offset": draw(st.integers(0, 20)) * vector if memory == "global" else 0,
        "remedy": remedy,
        "padding": draw(st.integers(1, 4)) * vector,
    }


# --- The same in plain loops, from the CUDA that the page shows


def addresses(found: dict[str, Any]) -> list[int | None]:
    """The byte of each thread of the block: the lines of CUDA, evaluated; C has these operators as Python has them."""
    cuda, values = found["cuda"], found["values"]
    row, column = re.search(r"int row = (.*), column = (.*);", cuda).groups()
    rows, columns = map(int, re.search(r"if \(row < (\d+) && column < (\d+)\)", cuda).groups())
    at = re.search(r"A((?:\[[^\]]*\])+)", cuda.split("if (")[1])[1]
    indices = re.findall(r"\[([^\]]*)\]", at)
    pitch = int(re.search(r"__shared__ \w+ A\[\d+\]\[(\d+)\]", cuda)[1]) if len(indices) > 1 else 0
    places: list[int | None] = []
    for i in range(values["block_x"] * values["block_y"]):
        y, x = divmod(i, values["block_x"])
        names: dict[str, Any] = {}
        for name, text in (("row", row), ("column", column)):
            names[name] = eval(text.replace("threadIdx.x", str(x)).replace("threadIdx.y", str(y)))
        parts = [eval(text, {}, names) for text in indices]
        inside = names["row"] < rows and names["column"] < columns
        index = parts[0] if len(parts) == 1 else parts[0] * pitch + parts[1]
        places.append(index * values["size"] if inside else None)
    return places


def simulated_passes(places: list[int | None], size: int) -> tuple[int, int]:
    """Passes, in each of which a bank gives one word to all that want it, until all have theirs; parts of the warp."""
    each, total, parts = 128 // max(4, size), 0, 0
    for first in range(0, 32, each):
        wanted = {
            byte // 4
            for place in places[first : first + each]
            if place is not None
            for byte in range(place, place + size)
        }
        parts += bool(wanted)
        while wanted:
            given: dict[int, int] = {}
            for word in sorted(wanted):
                given.setdefault(word % 32, word)
            wanted -= set(given.values())
            total += 1
    return total, parts


@given(accesses())
@settings(max_examples=80, deadline=None)
def test_counts_are_those_of_a_simulated_memory(inputs):
    found = compute(inputs)
    assert "error" not in found, found
    places, wide = addresses(found), found["bytes"]
    for warp, picture in enumerate(found["pictures"]):
        own = places[32 * warp : 32 * warp + 32]
        own += [None] * (32 - len(own))
        assert [thread and thread[2] for thread in picture["threads"]] == own
        bytes_of = {byte for place in own if place is not None for byte in range(place, place + wide)}
        assert picture["needed"] == len(bytes_of)
        assert picture["lines"] == sorted({byte // 128 for byte in bytes_of})
        assert picture["active"] == sum(place is not None for place in own)
        assert {t: at for at, threads in picture["cells"] for t in threads} == {
            t: place for t, place in enumerate(own) if place is not None
        }
        if inputs["memory"] == "global":
            assert picture["sectors"] == sorted({byte // 32 for byte in bytes_of})
            assert picture["moved"] == 32 * len(picture["sectors"])
        else:
            assert (picture["passes"], picture["least"]) == simulated_passes(own, wide)
            assert sum(map(bool, picture["ways"])) == len({byte // 4 % 32 for byte in bytes_of})
            assert picture["least"] <= picture["passes"] <= picture["least"] * max(1, *picture["ways"])
    totals = {
        name: sum(one.get(name, 0) for one in found["pictures"]) for name in ("passes", "least", "needed")
    }
    assert {name: found["block"][name] for name in totals} == totals
    assert found["block"]["sectors"] == sum(len(one.get("sectors", ())) for one in found["pictures"])
    assert json.loads(json.dumps(found)) == found


@given(accesses())
@settings(max_examples=60, deadline=None)
def test_the_python_counts_the_same(inputs):
    found = compute(inputs)
    for picture in found["pictures"]:
        *lines, result = picture["python"].split("\n")
        names: dict[str, Any] = {}
        exec("\n".join(lines), names)
        counted = eval(result, names)
        if inputs["memory"] == "shared":
            assert counted == picture["passes"]
        else:
            assert counted == (len(picture["sectors"]), picture["needed"] / max(picture["moved"], 1))


@given(accesses())
@settings(max_examples=60, deadline=None)
def test_every_element_has_a_place_of_its_own(inputs):
    """Layouts, padding and swizzles are one to one, and stay in the bytes that the array has."""
    setting = read(inputs)
    places = {setting.index(row, column) for row in range(setting.rows) for column in range(setting.columns)}
    assert len(places) == setting.rows * setting.columns
    outer = setting.rows if setting.by_rows else setting.columns
    assert min(places) == setting.offset
    assert max(places) < setting.offset + outer * setting.pitch


@given(accesses(memory="global"))
@settings(max_examples=60, deadline=None)
def test_what_is_drawn_of_the_matrix_holds_what_is_asked_for(inputs):
    found, setting = compute(inputs), read(inputs)
    each = 32 // setting.size
    for picture in found["pictures"]:
        elements = {
            (row, column)
            for top, left, rows, columns in picture["runs"]
            for row in range(top, top + rows)
            for column in range(left, left + columns)
        }
        in_sectors = {
            (row, column)
            for row in range(setting.rows)
            for column in range(setting.columns)
            if setting.index(row, column) // each in picture["sectors"]
        }
        assert elements == in_sectors
        row, column, rows, columns = picture["window"]
        assert 0 <= row <= row + rows <= setting.rows
        assert 0 <= column <= column + columns <= setting.columns
        assert (rows >= min(32, setting.rows), columns >= min(32, setting.columns)) == (True, True)
        for thread in filter(None, picture["threads"]):
            assert row <= thread[0] < row + rows
            assert column <= thread[1] < column + columns


# --- Numbers worked out by hand


@pytest.mark.parametrize(
    ("name", "cost", "efficiency"),
    [
        ("Coalesced row", 4, 1),
        ("Column, row-major", 32, 1 / 8),
        ("Column, column-major", 4, 1),
        ("Misaligned row", 5, 4 / 5),
        ("Stride of 2", 8, 1 / 2),
        ("Vectors", 16, 1),
        ("Tile of 8 × 4", 4, 1),
        ("Matmul naive, A", 32, 1 / 8),
        ("Matmul naive, B", 1, 1 / 8),
        ("Transpose, no padding", 32, None),
        ("Transpose, padded to 33", 1, None),
        ("Transpose, swizzled", 1, None),
    ],
)
def test_what_an_example_costs_whichever_warp_executes_it(name, cost, efficiency):
    found = compute(NAMED[name])
    for picture in found["pictures"]:
        if efficiency is None:
            assert (picture["passes"], picture["least"], max(picture["ways"])) == (cost, 1, cost)
        else:
            assert len(picture["sectors"]) == cost
            assert picture["needed"] / picture["moved"] == efficiency


def test_examples_of_the_matmul_are_the_kernels_accesses():
    naive, coalesced = count_product("naive", 64, 32, 16), count_product("coalesced", 64, 32, 16)
    for name, cost in {
        "Matmul naive, A": naive.costs["load", "A"],
        "Matmul naive, B": naive.costs["load", "B"],
        "Column, row-major": naive.costs["store", "C"],
        "Coalesced row": coalesced.costs["store", "C"],
    }.items():
        assert len(compute(NAMED[name])["pictures"][0]["sectors"]) == cost.sectors / cost.requests, name


@pytest.mark.parametrize(
    ("inputs", "passes", "ways"),
    [
        ({"stride": 2, "columns": 64}, 2, 2),
        ({"stride": 0}, 1, 1),  # one word for all
        ({"size": 1}, 1, 1),  # four threads to a word
        ({"size": 8}, 2, 1),  # half of the warp at a time
        ({"vector": 4, "columns": 128}, 4, 1),
        ({"vector": 4, "along": "column"}, 32, 8),
        ({"vector": 4, "along": "column", "remedy": "swizzle"}, 4, 1),
        ({"vector": 4, "along": "column", "remedy": "padding", "padding": 4}, 4, 1),
        ({"along": "column", "columns": 64, "remedy": "swizzle"}, 1, 1),
        ({"along": "column", "columns": 48}, 16, 16),
        ({"along": "column", "layout": "column-major"}, 1, 1),
    ],
    ids=str,
)
def test_bank_conflicts(inputs, passes, ways):
    picture = compute({"memory": "shared", **inputs})["pictures"][0]
    assert (picture["passes"], max(picture["ways"])) == (passes, ways)


# --- What it says


SAID = [
    ({}, "The 32 threads of warp 0 read 128 bytes, which lie in 4 sectors of 32 bytes (1 line of 128): 128 bytes are "
         "moved, an efficiency of 100 %. Every byte that is moved is needed: the access is coalesced."),
    ({"along": "column"},
     "(32 lines of 128): 1 024 bytes are moved, an efficiency of 12.5 %. Neighbouring threads are 4 096 bytes apart, "
     "so each touches a sector of its own and uses 4 of its 32 bytes."),
    ({"offset": 1},
     "The bytes are contiguous, but begin 4 bytes into a sector: 1 sector more than if they were aligned."),
    ({"stride": 2, "access": "write"},
     "warp 0 write 128 bytes, which lie in 8 sectors of 32 bytes (2 lines of 128): 256 bytes are moved, an "
     "efficiency of 50 %. Neighbouring threads are 8 bytes apart; what lies between them is moved, too."),
    ({"stride": 0}, "The 32 threads of warp 0 read the same 4 bytes, which lie in 1 sector"),
    ({"stride": 0, "access": "write"},
     "Several threads write the same address: which of their values remains is not defined."),
    ({"columns": 20},
     "20 threads of warp 0 read 80 bytes, which lie in 3 sectors of 32 bytes (1 line of 128): 96 bytes are moved, an "
     "efficiency of 83.3 %. The bytes are contiguous, but do not fill their sectors. 12 threads are outside the "
     "matrix and inactive."),
    ({"columns": 31}, "1 thread is outside the matrix and inactive."),
    ({"columns": 1}, "One thread of warp 0 reads 4 bytes, which lie in 1 sector"),
    ({"block_x": 1, "block_y": 1, "size": 1}, "One thread of warp 0 reads 1 byte, which lies in 1 sector"),
    ({"memory": "shared", "along": "column"},
     "A 32-way bank conflict: the 32 threads of warp 0 read 32 words, all of them in bank 0. A bank delivers one word a "
     "pass: 32 passes instead of 1. Neighbouring threads are 32 words apart, and gcd(32, 32) = 32: 32 threads meet "
     "in each bank that is used."),
    ({"memory": "shared", "along": "column", "remedy": "padding"},
     "The 32 threads of warp 0 read 32 words in 32 banks: no bank conflict, 1 pass. Neighbouring threads are 33 "
     "words apart, and gcd(33, 32) = 1: no two threads meet in a bank."),
    ({"memory": "shared", "along": "column", "remedy": "swizzle"},
     "no bank conflict, 1 pass. The swizzle stores an element at place column ^ (row % 32) of its row."),
    ({"memory": "shared", "stride": 0}, "read the same word: it is broadcast to them, which is no conflict."),
    ({"memory": "shared", "vector": 4, "along": "column"},
     "An 8-way bank conflict: the 32 threads of warp 0 read 128 words, 8 of them in bank 0 at a time. A bank delivers "
     "one word a pass: 32 passes instead of 4. Threads that access 16 bytes are served 8 at a time."),
    ({"memory": "shared", "rows": 3, "columns": 4}, "28 threads are outside the tile and inactive."),
]  # fmt: skip


@pytest.mark.parametrize(("inputs", "said"), SAID, ids=str)
def test_a_sentence_says_what_is_seen(inputs, said):
    assert said in compute(inputs)["pictures"][0]["answer"].replace("\u202f", " ")


def test_a_warp_outside_of_the_matrix_accesses_nothing():
    picture = compute({"rows": 2})["pictures"][5]
    assert picture["answer"] == "All threads of warp 5 are outside the matrix: they access nothing."
    assert (picture["active"], picture["sectors"], picture["moved"], picture["cells"]) == (0, [], 0, [])
    tile = compute({"memory": "shared", "rows": 2})["pictures"][5]
    assert (tile["passes"], tile["least"], tile["ways"]) == (0, 0, [0] * 32)


def test_the_cuda_of_an_access():
    assert compute({})["cuda"].split("\n") == [
        "int row = threadIdx.y, column = threadIdx.x;",
        "float value;",
        "if (row < 1024 && column < 1024) value = A[row * 1024 + column];",
    ]
    tile = {"memory": "shared", "along": "column", "remedy": "swizzle", "vector": 4, "access": "write"}
    assert compute(tile)["cuda"].split("\n") == [
        "__shared__ float A[32][32];",
        "int row = threadIdx.x, column = 4 * threadIdx.y;",
        "uint4 value;",
        "if (row < 32 && column < 32) *(uint4 *)&A[row][column ^ 4 * (row % 8)] = value;",
    ]


# --- What it refuses


REFUSED = [
    ({"size": 3}, "size", "size must be one of 1, 2, 4, 8, 16, got 3"),
    ({"vector": 8}, "vector", "vector must be at most 4: a thread takes at most 16 bytes at once, got 8 elements of 4"),
    ({"vector": 4, "offset": 2}, "offset",
     "offset must be a multiple of vector = 4: a thread takes 16 bytes at a multiple of 16 bytes, got 2"),
    ({"vector": 2, "columns": 33}, "columns", "columns must be a multiple of vector = 2"),
    ({"vector": 2, "rows": 33, "layout": "column-major"}, "rows", "rows must be a multiple of vector = 2"),
    ({"memory": "shared", "vector": 2, "remedy": "padding"}, "padding", "padding must be a multiple of vector = 2"),
    ({"block_x": 64, "block_y": 32}, "block_x", "block_x * block_y must be at most 1024 threads of a block, got 2048"),
    ({"remedy": "padding"}, "remedy", "remedy must be none for global memory, got 'padding'"),
    ({"memory": "shared", "offset": 1}, "offset", "offset must be 0 for a tile in shared memory, got 1"),
    ({"memory": "shared", "rows": 1817}, "rows", "rows * columns must be at most 232448 bytes"),
    ({"memory": "shared", "columns": 40, "remedy": "swizzle"}, "columns",
     "columns must be a multiple of 32 for a swizzle, which moves elements within 128 bytes, got 40"),
    ({"memory": "texture"}, "memory", "unknown memory 'texture'"),
    ({"along": "diagonal"}, "along", "unknown along 'diagonal'"),
    ({"rows": 0}, "rows", "rows must be at least 1, got 0"),
    ({"stride": "two"}, "stride", "stride must be an integer, got 'two'"),
    ({"thread": 32}, "thread", "thread must be at most 31, got 32"),
    ({"warp": 1}, "warp", "warp is not a setting of the memory access widget"),
]  # fmt: skip


@pytest.mark.parametrize(("inputs", "field", "words"), REFUSED, ids=str)
def test_what_cannot_be_names_its_control(inputs, field, words):
    error = compute(inputs)["error"]
    assert error["field"] == field
    assert words in error["message"]
    with pytest.raises(ConfigError):
        read(inputs)


def test_shared_memory_is_as_large_as_a_block_of_an_h100_may_have():
    assert OF_A_BLOCK[90] == SHARED
    assert "error" not in compute({"memory": "shared", "rows": 1816, "remedy": "padding", "columns": 31})


def test_numbers_as_a_link_has_them():
    assert compute({"stride": "2", "size": "8", "rows": "64"})["values"]["rows"] == 64
    assert compute({"memory": "shared"})["values"]["rows"] == SIDES["shared"]
    for name, (least, most) in LIMITS.items():
        assert DEFAULTS[name] is None or least <= DEFAULTS[name] <= most
