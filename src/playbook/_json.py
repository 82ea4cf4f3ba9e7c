"""JSON as the standard has it, which knows no NaN and no Infinity, and files of it that are whole."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def to_json(value: Any, **options: Any) -> str:
    """``value`` as JSON text, with null for every number that is not finite; ``options`` as ``json.dumps`` takes them."""
    return json.dumps(_finite(value), allow_nan=False, **options)


def write_json(path: Path, value: Any) -> None:
    """Write a file that is whole, or not there."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, indent=1), encoding="utf-8")
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    part.replace(path)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
