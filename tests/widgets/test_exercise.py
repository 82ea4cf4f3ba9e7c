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
        ('answer = 2\ncheck("zero.owned", lambda *given: 1 / 0)', "line 2: check(", False),
        ("x = 1\nfoo(", "line 2: foo(\nSyntaxError: '(' was never closed", False),
        ('y = load("tiny")', "NameError: name 'load' is not defined\nA page runs this cell alone", False),
        ('check("zero.own", 1)', "unknown exercise 'zero.own'", False),
    ],
)
def test_a_cell_runs_alone_and_says_what_it_printed(source, text, solved):
    answer = run({"name": NAME, "source": source})
    assert text in answer["text"]
    assert answer["solved"] == solved


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
    page.get_by_text("✓ solved in this browser").wait_for()
    assert code.input_value() == written
    page.get_by_role("button", name="Start again").click()
    assert code.input_value() == STUB
    assert not said.inner_text()
    page.evaluate("localStorage.clear()")  # other tests have this page


@pytest.mark.browser
def test_a_loop_without_end_is_ended_and_the_next_answer_is_checked(open_page):
    source = f'while True:\n    pass\ncheck("{NAME}", ...)'
    html = Answer({"name": NAME, "source": source}, outputs={}).static_html()
    page = open_page(html.replace('"limit":30', '"limit":1'), errors=True)
    page.get_by_role("button", name="Check").click()
    page.get_by_text("could not be checked here (no answer within 1 seconds)").wait_for()
    page.locator("textarea").fill(f'check("{NAME}", ...)')
    page.evaluate("window.setTimeout = () => 0")  # Python may take its time to start again
    page.get_by_role("button", name="Check").click()
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
    add_boxes(App, document, "zero")
    below = [node.astext() for node in document if isinstance(node, nodes.raw)]
    assert len(below) == 2
    assert "exercise.mjs" in below[0]
    assert "needed = 1\\n\\n\\ndef owned" in below[0]
    assert "answer it in the notebook" in below[1]


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
