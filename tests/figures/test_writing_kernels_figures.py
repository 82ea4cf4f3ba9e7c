"""The figure of a grid: each number in one program, what lies behind the end masked."""

import pytest

from playbook_book.figures.writing_kernels import programs


@pytest.mark.parametrize(("n", "block", "rows"), [(10, 4, 3), (8, 4, 2), (1, 4, 1)])
def test_every_number_is_in_one_program_and_the_rest_is_masked(n, block, rows):
    (axes,) = programs(n, block).axes
    texts = [text.get_text() for text in axes.texts]
    assert [t for t in texts if t.startswith("program")] == [f"program {i}" for i in range(rows)]
    assert [t for t in texts if t.isdigit()] == [str(i) for i in range(rows * block)]
    assert texts.count("masked") == (n % block > 0)
    dotted = [patch for patch in axes.patches if patch.get_linestyle() == ":"]
    assert len(dotted) == rows * block - n
    assert [t for t in texts if t.startswith("x[")] == [f"x[{i}]" for i in range(n)]
