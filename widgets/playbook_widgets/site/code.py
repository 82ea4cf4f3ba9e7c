"""Code cells in colour: the lexer of IPython, which also knows the book's own cell magics."""

from __future__ import annotations

from typing import Any

from ipython_pygments_lexers import IPython3Lexer
from pygments.lexer import bygroups, using
from pygments.lexers.python import Python3Lexer
from pygments.token import Keyword, Operator, Text
from sphinx.application import Sphinx

#: Cell magics whose cell is Python; IPython's lexer takes the cells of magics that it does not know for plain text.
MAGICS = ("torchrun",)


class BookLexer(IPython3Lexer):
    """IPython's, with the cells of ``MAGICS`` as the Python that they are."""

    tokens = IPython3Lexer.tokens | {
        "root": [
            (
                rf"(?s)(\s*)(%%)({'|'.join(MAGICS)})\b([^\n]*\n)(.*)",
                bygroups(Text, Operator, Keyword, Text, using(Python3Lexer)),
            ),
            *IPython3Lexer.tokens["root"],
        ]
    }


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_lexer("ipython3", BookLexer)
    return {}
