"""From naive to tensor cores: sectors of every access by hand, and the Python beside the CUDA that it mirrors."""

from __future__ import annotations

import functools
import io
import tokenize
from pathlib import Path

import pytest

from playbook.errors import ConfigError
from playbook_book import ladder
from playbook_book.kernels.cuda_build import SOURCES
from playbook_book.kernels.warps import Counted, Dim, count
from playbook_book.ladder import LADDER, add, add_pieces, add_vectors, elu, elu_select

count_product = functools.cache(ladder.count_product)


def per_request(found: Counted) -> dict[tuple[str, str], float]:
    return {
        where: cost.sectors / cost.requests for where, cost in found.costs.items() if where[0] != "shared"
    }


def test_naive_beside_coalesced():
    m, n, k = 64, 32, 16
    naive, coalesced = count_product("naive", m, n, k), count_product("coalesced", m, n, k)
    assert per_request(naive) == {("load", "A"): 32, ("load", "B"): 1, ("store", "C"): 32}
    assert per_request(coalesced) == {("load", "A"): 1, ("load", "B"): 4, ("store", "C"): 4}
    warps = m * n // 32
    assert naive.sectors == warps * (k * 33 + 32)
    assert coalesced.sectors == warps * (k * 5 + 4)


@pytest.mark.parametrize(
    ("step", "sizes", "side", "c"),
    [
        ("tiled", (64, 32, 64), 32, 4),
        ("coarsened", (128, 128, 16), 128, 4),
        ("tensor_cores", (256, 128, 64), 128, 2),
    ],
)
def test_tiles_read_what_their_formula_says(step, sizes, side, c):
    m, n, k = sizes
    found = count_product(step, m, n, k)
    assert found.sum("sectors", "load") * 32 == m * n * k * c * (1 / side + 1 / side)
    assert found.efficiency == 1.0
    if step != "tensor_cores":  # whose stores are the compiler's affair
        assert found.sum("sectors", "store") * 32 == m * n * 4


def test_shared_memory_of_the_ladder():
    tiled, coarsened = count_product("tiled", 32, 32, 32), count_product("coarsened", 128, 128, 8)
    assert tiled.bank_conflicts == coarsened.bank_conflicts == 0
    # Requests of shared memory for each multiplication of a warp: 2, and 16 for 64.
    reads = [("shared", "As, read"), ("shared", "Bs, read")]
    assert sum(tiled.costs[read].requests for read in reads) == 2 * 32 * 32 * 32 / 32
    assert sum(coarsened.costs[read].requests for read in reads) == 16 / 64 * 128 * 128 * 8 / 32
    # Rows of A are padded for fragments: eight threads write two of them, which meet in four banks.
    copies = count_product("tensor_cores", 128, 128, 32)
    assert copies.costs["shared", "As"].passes == 2 * copies.costs["shared", "As"].least
    assert copies.costs["shared", "Bs"].passes == copies.costs["shared", "Bs"].least


def test_edges_are_neither_read_nor_written():
    for step in ("naive", "coalesced", "tiled", "coarsened"):
        found = count_product(step, 33, 5, 9)
        assert found.costs["store", "C"].active == 33 * 5
        assert found.costs["load", "A"].active >= 33 * 9


def test_sums_of_vectors():
    assert count(add(1024), Dim(4), Dim(256)).sectors_per_request == 4
    assert count(add_pieces(8192), Dim(1), Dim(256)).sectors_per_request == 32
    four = count(add_vectors(1024), Dim(1), Dim(256))
    assert (four.sectors_per_request, four.efficiency) == (16, 1.0)
    assert four.sum("requests", "load", "store") == 3 * 1024 / 128  # a quarter of the requests
    assert count(add(1000), Dim(4), Dim(256)).costs["store", "z"].active == 1000


def test_elu_diverges_where_signs_mix():
    mixed, sorted_ = [1.0, -1.0] * 64, [1.0] * 64 + [-1.0] * 64
    apart = count(elu(mixed), Dim(1), Dim(128))
    assert (apart.active, apart.divergence) == ({"above": 0.5, "below": 0.5}, 0.5)
    assert apart.sectors == 4 * (4 + 4 + 4)  # both branches touch all sectors of y
    together = count(elu(sorted_), Dim(1), Dim(128))
    assert (together.divergence, together.sectors) == (0.0, 4 * (4 + 4))
    chosen = count(elu_select(128), Dim(1), Dim(128))
    assert (chosen.active, chosen.sectors) == ({}, 4 * (4 + 4))


def test_what_is_refused():
    with pytest.raises(ConfigError, match="step is 'fast', but must be one of naive, coalesced, tiled"):
        count_product("fast", 4, 4, 4)
    with pytest.raises(
        ConfigError, match="m, n and k are 64, 128 and 32, but must be multiples of 128, 128 and 32"
    ):
        count_product("tensor_cores", 64, 128, 32)


def test_each_step_asks_for_less():
    asked = [count_product(step, 64, 32, 16).sectors for step in list(LADDER)[:4]]
    assert asked == sorted(asked, reverse=True)


def squeezed(text: str) -> str:
    return "".join(text.split())


def test_the_cuda_beside_each_line_stands_in_the_sources():
    text = Path(ladder.__file__).read_text(encoding="utf-8")
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    comments = [t for t in tokens if t.type == tokenize.COMMENT]
    section, mirrored = "", 0
    for comment in comments:
        said = comment.string.removeprefix("# ")
        if said.startswith("#:"):
            continue
        if said.endswith(".cu"):
            section = squeezed((SOURCES / said).read_text(encoding="utf-8"))
            continue
        assert squeezed(said) in section, said
        mirrored += 1
    assert mirrored > 40


def test_sizes_are_those_of_the_sources():
    text = (SOURCES / "matmul.cu").read_text(encoding="utf-8")
    for name in ("TILE", "SIDE", "DEPTH", "EACH", "STEP", "PAD"):
        assert f"#define {name} {getattr(ladder, name)}\n" in text
