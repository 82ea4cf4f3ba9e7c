"""Exercises that a page grades: what a reader writes runs there, its verdict stays, and a loop without end is ended."""

import json

import pytest
from docutils import nodes
from playbook_widgets.site.exercises import GRADED, Answer, add_boxes

from playbook_book.exercises import exercises
from playbook_book.page import run

NAME, STUB = (
    "zero.owned",
    'def owned(lengths, rank, world):\n    raise NotImplementedError\n\n\ncheck("zero.owned", owned)',
)
RIGHT = """each = -(-sum(lengths) // world)
found, begin = [], 0
for length in lengths:
start, stop = max(rank * each, begin), min((rank + 1) * each, begin + length)
found.append((start - begin, stop - begin) if start < stop else None)
begin += length
return found"""


@pytest.mark.parametrize(
    ("source", "text", "solved"),
    [
        (STUB, f"✗ {NAME}: no answer yet: write the function in place of the line that raises", False),
        ('check("zero.bytes", 1e12)', "✗ zero.bytes: 1e+12 is too large. Which collectives", False),
        ('print("x")\nprint(2)', "x\n2", False),
        (
            f'from playbook_book.exercises import check\ncheck("{NAME}", ...)',
            f"✗ {NAME}: no answer yet",
            False,
        ),
    ],
)
def test_a_cell_runs_alone_and_says_what_it_printed(source, text, solved):
    answer = run({"name": NAME, "source": source})
    assert text in answer["text"]
    assert (answer["solved"], answer["line"]) == (solved, 0)


@pytest.mark.parametrize(
    ("source", "line", "sentence"),
    [
        (
            f'answer = 2\ncheck("{NAME}", lambda *given: 1 / 0)',
            2,
            "Line 2 raised ZeroDivisionError: division by ",
        ),
        (f'check("{NAME}", lambda: 1)', 1, "The check in line 1 cannot use what it was given (TypeError: "),
        ("x = 1\nfoo(", 2, "Line 2 is not Python: '(' was never closed."),
        (
            'y = load("tiny")',
            1,
            "Line 1 raised NameError: name 'load' is not defined. A page runs this cell alone",
        ),
        (
            "\nimport nothing_such",
            2,
            "Line 2 raised ModuleNotFoundError: No module named 'nothing_such'. A page has",
        ),
        ('check("zero.own", 1)', 1, "Line 1: unknown exercise 'zero.own'; did you mean"),
        ("def f(): return f()\nf()", 1, "Line 1 raised RecursionError: maximum recursion depth exceeded"),
        ("exit()", 1, "Line 1 raised SystemExit"),
        ("raise ValueError", 1, "Line 1 raised ValueError."),
    ],
)
def test_an_error_is_one_line_that_says_where(source, line, sentence):
    answer = run({"name": NAME, "source": source})
    assert answer["text"].startswith(sentence)
    assert "\n" not in answer["text"]
    assert (answer["solved"], answer["line"]) == (False, line)


def test_what_a_cell_prints_is_cut_and_what_it_is_told_is_not():
    answer = run({"name": NAME, "source": f'for i in range(10**5): print(i)\ncheck("{NAME}", ...)'})
    assert answer["text"].endswith(" …\n✗ zero.owned: no answer yet: put yours in place of the three dots")
    assert 10_000 < len(answer["text"]) < 10_100


@pytest.mark.browser
def test_a_reader_solves_one_in_the_page(open_page):
    box = Answer({"name": NAME, "source": STUB}, outputs={}).static_html()
    page = open_page(box)
    code, said, check = (
        page.locator("textarea"),
        page.locator(".pb-verdict"),
        page.get_by_role("button", name="Check"),
    )
    assert code.input_value() == STUB
    check.click()
    page.get_by_text("no answer yet: write the function").wait_for()
    code.focus()
    start = STUB.index("raise")
    code.evaluate(f"(box) => box.setSelectionRange({start}, {start + len('raise NotImplementedError')})")
    for i, line in enumerate(RIGHT.split("\n")):
        if i:
            page.keyboard.press("Enter")
        for _ in range(4 * line.startswith("return")):  # out of the loop
            page.keyboard.press("Backspace")
        page.keyboard.insert_text(line)
    code.press("Control+Enter")
    page.get_by_text(f"✓ {NAME}: one piece of the vector").wait_for()
    written = code.input_value()
    page.reload()
    page.get_by_text("✓ solved on 20").wait_for()
    assert code.input_value() == written
    page.get_by_role("button", name="Reset").click()
    assert code.input_value() == STUB
    assert not said.inner_text()
    page.keyboard.press("Control+z")  # a reader may have meant another button
    assert code.input_value() == written
    page.evaluate("localStorage.clear()")  # other tests have this page


@pytest.mark.browser
def test_a_loop_without_end_is_ended_and_the_next_answer_is_checked(open_page):
    source = f'while True:\n    pass\ncheck("{NAME}", ...)'
    html = Answer({"name": NAME, "source": source}, outputs={}).static_html()
    page = open_page(html.replace('"limit":30', '"limit":1'), errors=True)
    page.get_by_role("button", name="Check").click()
    page.get_by_text("Stopped after 1 seconds: is there a loop without an end?").wait_for()
    page.locator("textarea").fill(f'check("{NAME}", ...)')
    page.evaluate("window.setTimeout = () => 0")  # Python may take its time to start again
    page.get_by_role("button", name="Check").click()
    page.get_by_text("no answer yet: put yours").wait_for()


@pytest.mark.browser
def test_a_reader_stops_what_runs_by_keys_alone(open_page):
    page = open_page(Answer({"name": NAME, "source": STUB}, outputs={}).static_html())
    code, stop = page.locator("textarea"), page.get_by_role("button", name="Stop")
    page.keyboard.press("Tab")
    code.wait_for()
    while not code.evaluate("(box) => box === document.activeElement"):
        page.keyboard.press("Tab")
    assert not stop.is_visible()
    page.keyboard.press("Control+a")
    page.keyboard.type("while True:\npass")
    page.keyboard.press("Control+Enter")
    page.get_by_text("It runs …").wait_for()
    for key in ("Escape", "Tab", "Tab"):
        page.keyboard.press(key)
    assert stop.evaluate("(button) => button === document.activeElement")
    page.keyboard.press("Enter")
    page.get_by_text("Stopped.").wait_for()
    assert code.evaluate("(box) => box === document.activeElement")  # the button that had the focus is gone
    page.keyboard.press("Control+a")
    page.keyboard.type(f'check("{NAME}", ...)')
    page.keyboard.press("Control+Enter")
    page.get_by_text("no answer yet: put yours").wait_for()


@pytest.mark.browser
def test_the_box_is_an_editor(open_page):
    page = open_page(Answer({"name": NAME, "source": "a = 1\n\nb = 2"}, outputs={}).static_html())
    code, press = page.locator("textarea"), page.keyboard.press
    code.focus()
    press("Control+Home")
    for key in ("Tab", "ArrowRight", "Tab"):  # to the next multiple of four
        press(key)
    assert code.input_value() == "    a    = 1\n\nb = 2"
    press("Control+z")
    press("Control+z")
    assert code.input_value() == "a = 1\n\nb = 2"
    press("Control+a")
    press("Tab")
    assert code.input_value() == "    a = 1\n\n    b = 2"
    press("Tab")
    press("Shift+Tab")
    assert code.input_value() == "    a = 1\n\n    b = 2"
    press("Control+End")
    press("Shift+Tab")
    page.keyboard.type("; if b:\nc")
    assert code.input_value() == "    a = 1\n\nb = 2; if b:\n    c"
    assert page.locator(".pb-ex-lines").inner_text().split() == ["1", "2", "3", "4"]
    press("Escape")
    press("Shift+Tab")
    assert not code.evaluate("(box) => box === document.activeElement")
    assert code.input_value().endswith("\n    c")


@pytest.mark.browser
def test_a_page_loads_python_when_a_reader_writes_and_says_which_line_raised(open_page):
    page, asked = open_page(Answer({"name": NAME, "source": STUB}, outputs={}).static_html()), []
    page.on("request", lambda request: asked.append(request.url))
    code = page.locator("textarea")
    code.hover()
    code.click()
    page.keyboard.press("ArrowDown")
    assert not [url for url in asked if "python" in url]
    page.keyboard.press("Control+a")
    page.keyboard.type("\n")
    page.wait_for_function(
        "performance.getEntriesByName('pb-python').length"
    )  # before it is asked for anything
    page.keyboard.type("x")
    page.get_by_role("button", name="Check").click()
    page.get_by_text("Line 2 raised NameError: name 'x' is not defined.").wait_for()
    assert page.locator(".pb-ex-lines [data-raised]").inner_text() == "2"
    code.fill("def f(): return f()\nf()")
    code.press("Control+Enter")
    page.get_by_text("RecursionError").wait_for()
    code.fill(f'check("{NAME}", ...)')  # the same Python goes on
    code.press("Control+Enter")
    page.get_by_text("no answer yet: put yours").wait_for()


def test_boxes_stand_below_stubs_that_the_standard_library_can_grade(tmp_path):
    class App:
        outdir = tmp_path

    (tmp_path / GRADED).parent.mkdir(parents=True)
    (tmp_path / GRADED).write_text(f'["{NAME}"]')
    document = nodes.section()
    others = ("needed = 1", STUB.replace("owned)", "owned, record=False)"), 'check("zero.accumulate", x)')
    for source in (others[0], STUB, *others[1:]):
        document += nodes.container("", nodes.literal_block(source, source), nb_element="cell_code")
    add_boxes(App, document, "book/data-parallelism/zero")
    below = [node.astext() for node in document if isinstance(node, nodes.raw)]
    assert len(below) == 2
    assert "exercise.mjs" in below[0]
    assert "needed = 1\\n\\n\\ndef owned" in below[0]
    assert 'data-exercise="zero.accumulate"' in below[1]
    assert "answer it in the notebook, <code>book/data-parallelism/zero.ipynb</code>" in below[1]


#: A cell that gives every one its right answer.
ALL = """
from playbook_book.exercises import exercises, grade
for name in {names}:
    try:
        if not grade(name, exercises()[name].right[0]).right:
            print(name, "is not right")
    except BaseException as error:
        print(name, repr(error))
print("all tried")
"""


@pytest.mark.browser
def test_half_of_the_exercises_can_be_graded_in_a_page(open_page, browser_python):
    graded = json.loads((browser_python / "exercises.json").read_text())
    assert 2 * len(graded) >= len(exercises())
    html = Answer({"name": "all", "source": ALL.format(names=graded)}, outputs={}).static_html()
    page = open_page(html.replace('"limit":30', '"limit":600'))
    page.get_by_role("button", name="Check").click()
    said = page.locator(".pb-verdict", has_text="all tried")
    said.wait_for()
    assert said.inner_text() == "all tried"
