"""A run that a reader pastes where a model is asked for: which settings of a page it is, and what it leaves open."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from playbook.errors import PlaybookError, ShapeError
from playbook.layout import FIELDS, Layout
from playbook.planning.flags import form, read
from playbook.shapes import PRESETS


def settings_of(
    config: Mapping[str, Any], known: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """``config`` with the settings of a run that is pasted as its model, and what the page is told of it, None for none.

    Only settings that are ``known`` are set. Raises ShapeError, which begins with "model", for a run that is not read.
    """
    text = str(config.get("model", ""))
    if not form(text):
        return dict(config), None
    try:
        framework, found, unknown = _read(text)
    except PlaybookError as error:
        raise ShapeError(f"model: {error}") from None
    left = [f"{name}={found[name]}: no setting here" for name in ("context", "stage_layers") if name in found]
    given = {name: value for name, value in found.items() if name in known}
    kept = {
        key: value for key, value in config.items() if key in ("accelerator", "memory", "reserve", "unit")
    }
    return {**kept, **given}, {"from": framework, "set": given, "unknown": [*unknown, *left]}


@lru_cache(maxsize=16)
def _read(text: str) -> tuple[str, dict[str, Any], list[str]]:
    """The framework, the settings by name that differ from those that nobody sets, and sentences."""
    run = read(text)
    fields, unknown = run.spread()
    layout, rest = Layout(**fields), ("seq", "precision", "fp8", "attention", "fused")
    found = {name: value for name in rest if (value := getattr(run, name))}
    if run.shape:
        preset = PRESETS.get(run.shape.name) == run.shape
        found["model"] = run.shape.name if preset else json.dumps(run.shape.sizes(), separators=(",", ":"))
    found |= {"offload": True} if run.offload else {}
    for name in (*FIELDS, "context", "stage_layers"):
        if (value := getattr(layout, name)) != getattr(Layout, name):
            found[name] = value
    unknown += (
        ["Muon: no setting here, so that AdamW's states are planned"] if run.optimizer == "muon" else []
    )
    whole = {"gpus": layout.world_size, "global_batch": layout.global_batch, "layout": str(layout)}
    return run.framework, {**found, **whole}, unknown
