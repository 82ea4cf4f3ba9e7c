"""What ranks send for experts is what a run counts, in every layout; without a count, an even load."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

import pytest
from all_pairs import all_pairs
from helpers import BLOCKS, DEEPSEEK, MIXTRAL
from traffic_runs import Cases, check

from playbook.layout import Layout
from playbook.layout.options import DISPATCH
from playbook.shapes import ModelShape

#: Every other layer dense; a dense first layer, biases, learned positions; latent attention, groups, a tied table.
SHAPES = {
    "every": MIXTRAL.replace(layers=4, heads=4, kv_heads=4, moe={"experts": 8, "top_k": 2, "ffn": 20, "every": 2}),
    "gpt": BLOCKS["gpt"].replace(
        layers=4, heads=4, ffn=36,
        moe={"experts": 8, "top_k": 1, "ffn": 8, "dense_layers": 1, "shared_experts": 1, "normalized": False},
    ),
    "deepseek": DEEPSEEK.replace(
        layers=4, heads=4, tied=True, moe=dataclasses.replace(DEEPSEEK.moe, experts=16, ffn=12, groups=4),
    ),
}  # fmt: skip
BALANCE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "capacity": {"capacity": 0.75},
    "loss": {"balance_loss": 0.1, "z_loss": 0.01},
    "loss of a sample": {"balance_loss": 0.1, "balance_over": "sample"},
    "loss of the batch": {"balance_loss": 0.1, "balance_over": "global_batch"},
    "bias": {"bias_rate": 0.01},
}
#: A shape and a balance each.
MODELS = (
    ("every", "nothing"), ("every", "loss of a sample"), ("gpt", "capacity"), ("gpt", "loss"), ("deepseek", "bias"),
    ("deepseek", "loss of the batch"),
)  # fmt: skip
AXES = {
    2: ("dp=2,ep=2", "cp=2,ep=2", "tp=2", "tp=2,sp", "pp=2"),
    4: ("dp=4,ep=2", "dp=2,cp=2,ep=4", "dp=2,tp=2,ep=2", "cp=2,tp=2,sp,ep=2", "dp=2,pp=2,ep=2", "cp=2,pp=2,ep=2"),
    8: ("dp=2,cp=2,tp=2,sp,ep=2", "dp=2,cp=2,pp=2,ep=4", "dp=2,tp=2,sp,pp=2,ep=2"),
}  # fmt: skip
OPTIONS: dict[str, tuple] = {
    "zero": (0, 1, 2, 3),
    "dispatch": (None, *DISPATCH),
    "model": MODELS,
    "pipeline": (None, "1f1b", "interleaved", "zb-v", "dualpipe", "dualpipev"),
    "recompute": ("none", "selective", "full"),
    "more": (None, "small buckets", "naive", "find_unused", "keep", "chunked", "gather", "ulysses"),
}
#: On more ranks fewer of them, for time.
FEWER: dict[int, dict[str, tuple]] = {
    2: {
        "pipeline": (None, "1f1b"),
        "more": ("small buckets", "naive", "find_unused", "keep", "chunked", "ulysses"),
    },
    4: {"more": (None, "small buckets", "keep"), "model": MODELS[1:5]},
    8: {"more": (None,), "pipeline": (None, "interleaved", "dualpipe"), "model": MODELS[1::2]},
}
MORE: dict[str | None, dict[str, Any]] = {
    None: {},
    "small buckets": {"bucket": 4096, "first_bucket": 512},
    "naive": {"data_parallel": "naive"},
    "find_unused": {"data_parallel": "overlapped", "find_unused": True},
    "keep": {"reshard": False},
    "chunked": {"tensor_overlap": "chunked"},
    "gather": {"context": "gather"},
    "ulysses": {"context": "ulysses"},
}


def fits(one: dict[str, Any]) -> bool:
    """Whether such a run is possible, and none of its options means nothing."""
    layout = Layout.parse(one["axes"])
    if (one["dispatch"] is None) == (layout.ep > 1) or (layout.pp == 1) != (one["pipeline"] is None):
        return False
    meaningful = {
        "naive": not one["zero"], "find_unused": not one["zero"], "keep": one["zero"] == 3, "chunked": layout.sp,
        "gather": layout.cp > 1, "ulysses": layout.cp > 1,
    }  # fmt: skip
    return meaningful.get(one["more"], True)


def cases(world: int) -> Iterator[dict[str, Any]]:
    """Some of all possible runs, the same every time."""
    draw = random.Random(world)
    options = {"axes": AXES[world], **OPTIONS, **FEWER[world]}
    for _ in range(20_000):
        one = {name: draw.choice(values) for name, values in options.items()}
        if fits(one):
            yield one


def run_of(one: dict[str, Any]) -> tuple[ModelShape, str, dict]:
    name, balance = one["model"]
    shape = SHAPES[name].replace(moe=dataclasses.replace(SHAPES[name].moe, **BALANCE[balance]))
    texts = [one["axes"], *(f"{name}={one[name]}" for name in ("zero", "recompute"))]
    texts.append(f"grad_acc={ {None: 2, '1f1b': 2, 'interleaved': 2}.get(one['pipeline'], 4) }")
    if one["pipeline"]:
        texts.append(f"schedule={one['pipeline']}" + ",vpp=2" * (one["pipeline"] == "interleaved"))
    options = {
        "dispatch": one["dispatch"] or "all-to-all",
        "node": 2 if one["dispatch"] == "two-step" else None,
    }
    return shape, ",".join(texts), {**options, **MORE[one["more"]]}


@pytest.mark.parametrize("world", AXES)
def test_any_two_options(ranks, world):
    runs: Cases = [run_of(one) for one in all_pairs(cases(world))]
    for start in range(0, len(runs), 8):
        check(ranks, runs[start : start + 8], world)
