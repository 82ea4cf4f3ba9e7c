"""What numbers of a text rest on, as ``tools/claims.py`` finds it."""

import nbformat
from claims import claims

TEXT = """## Part 77

It takes 1,024 steps of 0.5 s, hence 512 s, on 16 ranks; elsewhere 99 % {cite:p}`someone2024`. In 2024 it was `333`.
"""


def test_numbers_rest_on_outputs_code_and_sources(tmp_path):
    run = nbformat.v4.new_code_cell("RANKS = 16")
    run.outputs = [nbformat.v4.new_output("stream", text="1,024 steps of 0.50 s, 0.5 each\n")]
    path = tmp_path / "some.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[run, nbformat.v4.new_markdown_cell(TEXT)]), path)
    found = {number: where for number, where, _ in claims(path)}
    assert found == {"1,024": "output", "0.5": "output", "512": "source", "16": "code", "99": "source"}
    uncited = TEXT.replace(" {cite:p}`someone2024`", "")
    nbformat.write(nbformat.v4.new_notebook(cells=[run, nbformat.v4.new_markdown_cell(uncited)]), path)
    assert [number for number, where, _ in claims(path) if not where] == ["512", "99"]
