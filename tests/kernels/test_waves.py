"""Orders of tiles beside the drawing in ``matmul.py``, and what waves bring by hand."""

from __future__ import annotations

from playbook.kernels.matmul import Tiles
from playbook_book.waves import by_wave, order, read_by_waves


def test_the_order_is_that_of_the_drawing():
    tiles = Tiles(16, 32, 16, group=2)
    assert order(4 * 16, 4 * 32, tiles)[:10] == (
        (0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 0), (3, 0)
    )  # fmt: skip
    by_rows = Tiles(16, 32, 16, group=1)
    assert order(4 * 16, 4 * 32, by_rows) == tuple((row, column) for row in range(4) for column in range(4))


def test_each_tile_has_one_program_at_edges_too():
    for m, n, group in ((65, 33, 4), (7, 100, 8), (48, 96, 3)):
        tiles = Tiles(16, 32, 16, group=group)
        expected = {(row, column) for row in range(-(-m // 16)) for column in range(-(-n // 32))}
        found = order(m, n, tiles)
        assert (set(found), len(found)) == (expected, len(expected))


def test_a_wave_brings_each_row_and_column_once():
    # Four programs at once: a row of blocks of x and four columns of w by rows, two and two in groups of two.
    by_rows, grouped = Tiles(16, 16, 16, group=1), Tiles(16, 16, 16, group=2)
    assert len(by_wave(64, 64, by_rows, 4)) == 4
    assert read_by_waves(64, 64, 10, by_rows, 2, programs=4) == 4 * (1 + 4) * 16 * 10 * 2
    assert read_by_waves(64, 64, 10, grouped, 2, programs=4) == 4 * (2 + 2) * 16 * 10 * 2
    # One wave for all: each number once. Edges are not more than there is.
    assert read_by_waves(60, 50, 10, grouped, 4, programs=16) == (60 + 50) * 10 * 4
