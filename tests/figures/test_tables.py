"""Tables say what they are given, numbers to the right."""

import pytest

from playbook.figures import table


def test_numbers_stand_right_and_texts_left():
    t = table(["model", "parameters", "change"], [["a <b>", 1234567, "+23 %"], ["c", -8, "−8 %"]])
    page = t._repr_html_()
    assert page.count('class="text-right"') == 6
    assert "<td>a &lt;b&gt;</td>" in page
    assert '<td class="text-right">1,234,567</td>' in page
    assert '<th scope="col">model</th>' in page
    assert repr(t).splitlines() == [
        "model  parameters  change",
        "a <b>   1,234,567   +23 %",
        "c              −8    −8 %",
    ]


def test_an_empty_cell_does_not_make_a_column_text():
    assert table(["n"], [[1], [""]]).right == [True]
    assert table(["n"], [[""]]).right == [False]


def test_rows_have_the_length_of_the_header():
    with pytest.raises(ValueError, match="has 1 cells, the header 2"):
        table(["a", "b"], [[1]])
