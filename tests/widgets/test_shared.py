"""What widgets share: numbers in words, settings in links, a number that is typed or slid."""

from __future__ import annotations

import pytest
from widget_homes import in_module, stop_time

NUMBERS = {
    "rounded": [(0, "0"), (1234.5, "1235"), (0.012345, "0.0123"), (2.5, "2.5"), (-3, "−3")],
    "grouped": [(999, "999"), (1_048_576, "1\u202f048\u202f576"), (1234.56789, "1\u202f234.56789")],
    "bytes": [(0, "0 B"), (999_999, "1 MB"), (1_670_000, "1.67 MB"), (63_412_345_856, "63.4 GB"), (-117e6, "−117 MB")],
    "exactly": [(10**7, "10 MB"), (2**20, "1 MiB"), (1536, "1.5 KiB"), (1250, "1.25 kB"), (1_234, "1\u202f234 B")],
    "seconds": [(6.28e-5, "62.8 µs"), (3.4e-6, "3.4 µs"), (0.99999e-3, "1 ms"), (2, "2 s"), (4e-7, "400 ns"),
                (59.99, "1 min"), (5793, "1.61 h"), (0, "0 s")],
    "count": [(124, "124"), (8_030_261_248, "8.03B"), (999_999_999, "1B"), (2e16, "20000T")],
    "percent": [(0.084, "8\u202f%"), (1, "100\u202f%")],
    "listed": [([], ""), ([4], "4"), ([0, 1, 2], "0, 1 and 2")],
}  # fmt: skip


@pytest.mark.browser
def test_numbers_in_words(open_page):
    page = open_page("")
    for name, pairs in NUMBERS.items():
        values, texts = zip(*pairs, strict=True)
        assert in_module(page, "shared/numbers.mjs", f"x.map((value) => m.{name}(value))", values) == list(
            texts
        )


@pytest.mark.browser
def test_numbers_of_two_arguments_in_words(open_page):
    page = open_page("")
    for expression, text in {
        'm.bytes(63412345856, "GiB")': "59.1 GiB",
        "m.share(1, 3)": "33\u202f%",
        "m.share(1, 200)": "0.5\u202f%",
        "m.share(1, 5000)": "<0.1\u202f%",
        "m.share(0, 0)": "0\u202f%",
        'm.plural(1, "step")': "1 step",
        'm.plural(1024, "step")': "1\u202f024 steps",
    }.items():
        assert in_module(page, "shared/numbers.mjs", expression) == text


@pytest.mark.browser
def test_a_link_tells_numbers_truths_and_texts_apart(open_page):
    page = open_page("")
    for text, value in {
        "8": 8,
        " 8 ": 8,
        "0.5": 0.5,
        "true": True,
        "1f1b": "1f1b",
        "1e5": 100_000,
        "8,192": 8192,
        "8k": 8192,
        "2,4": "2,4",
        "9" * 20: "9" * 20,
    }.items():
        found = in_module(
            page, "shared/address.mjs", "m.decodePairs(`a=${encodeURIComponent(x)}&b=1`, ['a'])", text
        )
        assert found == {"a": value}
    assert in_module(page, "shared/address.mjs", "m.decodePairs('a=100%', ['a'])") == {"a": "100%"}
    as_typed = in_module(
        page, "shared/address.mjs", "m.decodePairs('a=-0&b=0.10&c=2', ['a', 'b', 'c'], ['a', 'b'])"
    )
    assert as_typed == {"a": "-0", "b": "0.10", "c": 2}
    assert (
        in_module(page, "shared/address.mjs", "m.encodePairs(x)", {"a": 1, "b": None, "c": "x & y"})
        == "a=1&c=x%20%26%20y"
    )


@pytest.mark.browser
def test_a_text_counts_when_typing_pauses_or_ends(open_page):
    page = open_page("")
    made = """(() => {
      window.told = [];
      window.field = new m.TextField({ id: "t", tell: (value) => (window.told.push(value), window.field.show(value)) });
      document.querySelector("main").append(window.field.text);
      window.field.show("1");
    })()"""
    in_module(page, "shared/text_field.mjs", made)
    box, elapse = page.locator("input[type=text]"), stop_time(page)
    assert box.input_value() == "1"
    box.fill("")
    box.press_sequentially("-0")
    assert page.evaluate("window.told") == []
    elapse()
    assert page.evaluate("window.told") == ["-0"]
    box.press_sequentially(".10")
    page.evaluate("window.field.show('something else')")
    assert box.input_value() == "-0.10"  # what arrives meanwhile does not write over it
    box.press("Enter")
    box.press("Enter")
    assert page.evaluate("window.told") == ["-0", "-0.10"]
    box.fill("2")
    page.evaluate("window.field.stop()")
    elapse()
    assert page.evaluate("window.told") == ["-0", "-0.10"]


FIELD = """(() => {
  window.told = [];
  const tell = (value) => (window.told.push(value), window.field.show(value));
  const next = (by) => Number(window.field.text.value) + by;
  window.field = new m.NumberField({ id: "n", label: "Number", stops: [0, 1, 2, 4, 8], tell, next });
  document.querySelector("main").append(window.field.slider, window.field.text);
  window.field.show(2);
})()"""


@pytest.fixture
def field(open_page):
    page = open_page("")
    in_module(page, "shared/number_field.mjs", FIELD)
    return page


@pytest.mark.browser
def test_a_number_counts_when_typing_pauses_and_is_left_as_it_was_typed(field):
    box, elapse = field.locator("input[type=text]"), stop_time(field)
    assert box.input_value() == "2"
    box.fill("")
    box.press_sequentially("0.0")
    elapse()
    assert box.input_value() == "0.0"  # so that 0.07 can follow
    box.press_sequentially("7")
    assert field.evaluate("window.told") == [0]
    box.press("Enter")
    assert field.evaluate("window.told") == [0, 0.07]
    box.fill("2.00")
    box.press("Enter")
    box.fill("2")  # the same in other words
    box.press("Enter")
    elapse()
    assert field.evaluate("window.told") == [0, 0.07, 2]


@pytest.mark.browser
def test_an_arrow_takes_what_stands_there_and_nothing_comes_after(field):
    box, elapse = field.locator("input[type=text]"), stop_time(field)
    box.fill("5")
    box.press("ArrowUp")
    elapse()
    assert field.evaluate("window.told") == [6]
    assert box.input_value() == "6"
    assert field.locator("input[type=range]").input_value() == "4"  # 8, the upper of two as near
    field.locator("input[type=range]").press("ArrowLeft")
    assert field.evaluate("window.told") == [6, 4]
    assert box.input_value() == "4"
