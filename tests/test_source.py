"""``show`` prints what runs, with a link that leads to it."""

import html
import re
from pathlib import Path

import pytest

import playbook
import playbook_book
from playbook import show
from playbook.model.recompute import checkpoint


def test_the_text_is_the_file_at_that_line():
    source = show(checkpoint)
    lines = source.path.read_text(encoding="utf-8").splitlines()
    assert source.text.splitlines()[0] == lines[source.line - 1]
    assert source.relative == "src/playbook/model/recompute.py"
    assert source.text.startswith("def checkpoint(")


def test_the_link_opens_the_file_from_the_notebooks_folder(monkeypatch):
    folder = Path(playbook.__file__).parents[2] / "book"
    monkeypatch.chdir(folder)
    page = show(checkpoint)._repr_html_()
    href = re.search(r'class="pb-source" href="([^"]+)"', page)[1]
    assert (folder / href).resolve() == Path(show(checkpoint).path)
    assert f'data-line="{show(checkpoint).line}"' in page
    text = html.unescape(re.sub(r"<[^>]+>", "", page.split("<pre")[1].split(">", 1)[1]))
    assert show(checkpoint).text.strip() in text


def test_without_docstring():
    full, body = show(checkpoint), show(checkpoint, body_only=True)
    assert '"""' in full.text
    assert '"""' not in body.text
    assert body.text.startswith("def checkpoint(")
    assert body.text.rstrip().endswith("*args)")
    compile(body.text, "body", "exec")


def test_methods_are_dedented_and_classes_and_modules_work():
    from playbook.training.data import TokenBatches

    assert show(TokenBatches.batch).text.startswith("def batch(")
    assert show(TokenBatches).text.startswith("class TokenBatches")
    assert show(playbook).line == 1
    assert "src/playbook/training/data.py" in repr(show(TokenBatches))


@pytest.mark.parametrize("thing", [3, len, "text"])
def test_what_has_no_python_source(thing):
    with pytest.raises(TypeError, match="written in Python"):
        show(thing)


def test_a_kernel_in_cuda_with_what_stands_above_it():
    cuda = Path(playbook_book.__file__).parent / "kernels" / "cuda" / "matmul.cu"
    tiled = show(cuda, function="tiled")
    lines = cuda.read_text(encoding="utf-8").splitlines()
    assert lines[tiled.line - 1 :][: tiled.text.count("\n")] == tiled.text.splitlines()
    assert tiled.text.startswith("// 3. Tiled")
    assert tiled.text.endswith("\n}\n")
    assert tiled.relative == "book/playbook_book/kernels/cuda/matmul.cu"
    assert 'data-file="book/playbook_book/kernels/cuda/matmul.cu"' in tiled._repr_html_()
    assert show(cuda).text == cuda.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"matmul\.cu has no function 'fast'"):
        show(cuda, function="fast")
