"""Tables say what they are given, numbers to the right."""

import pytest

from playbook.figures import table


def test_numbers_stand_right_and_texts_left():
    t = table(["model", "parameters", "change"], [["a <b>", 1234567, "+23 %"], ["c", -8, "−8 %"]])
    page = t._repr_html_()
    assert page.count('style="text-align: right"') == 6
    assert '<td style="text-align: left">a &lt;b&gt;</td>' in page
    assert '<td style="text-align: right">1,234,567</td>' in page
    assert '<th scope="col" style="text-align: left">model</th>' in page
    assert repr(t).splitlines() == [
        "model  parameters  change",
        "a <b>   1,234,567   +23 %",
        "c              −8    −8 %",
    ]


def test_a_number_stays_with_its_unit():
    long = "a remark of more than a few words wraps"
    page = table(["the model", "size"], [["a name", "1.5 GB"], ["b", long]])._repr_html_()
    assert ">1.5&nbsp;GB</td>" in page
    assert f">{long}</td>" in page
    assert ">a name</td>" in page


def test_an_empty_cell_does_not_make_a_column_text():
    assert table(["n"], [[1], [""]]).right == [True]
    assert table(["n"], [[""]]).right == [False]


def test_rows_have_the_length_of_the_header():
    with pytest.raises(ValueError, match="has 1 cells, the header 2"):
        table(["a", "b"], [[1]])
