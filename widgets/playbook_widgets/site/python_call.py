"""What a page asks Python for: one function, called with JSON. This file runs in the reader's browser."""

import importlib
import json


def call(target: str, text: str) -> str:
    """The result of the function "module:name" for the JSON ``text``, as JSON."""
    module, _, name = target.partition(":")
    return json.dumps(getattr(importlib.import_module(module), name)(json.loads(text)))
