"""LoRA on many ranks: losses, gradients and norms of one device; kept, saved and sent what is foretold, to the byte."""

from __future__ import annotations

import functools
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from all_pairs import all_pairs, combined
from helpers import BLOCKS, DEEPSEEK
from parallel_runs import Case, on_ranks, reference, world_of
from torch import nn
from traffic_runs import SEQ, check_kept, check_run, kept

from playbook.errors import LayoutError
from playbook.layout import Layout
from playbook.shapes import ModelShape

#: Odd sizes and biases; keys and values of which tensor-parallel ranks hold copies; latent attention.
SHAPES = {
    "gpt": BLOCKS["gpt"].replace(hidden=24, heads=4),
    "llama": BLOCKS["llama"].replace(hidden=32, heads=8, kv_heads=1, ffn=52, vocab=38, qk_norm=True),
    "latent": DEEPSEEK.replace(moe=None, heads=4, tied=True, bias=True, qkv_bias=False, ffn=52),
}
#: Adapters, or parts of a model.
TRAIN = {
    "gpt": ("lora:3", "attention+norms", "mlp+head", "embedding"),
    "llama": ("lora:3", "mlp", "embedding+norms", "attention+head"),
    "latent": ("lora:3", "norms+head", "norms", "embedding+mlp"),
}


def stir(model: nn.Module) -> None:
    """B at other numbers than the zeros that it begins with, beside which A has no gradient."""
    generator = torch.Generator().manual_seed(7)
    for name, p in model.named_parameters():
        if name.endswith("lora_B.weight"):
            p.data.copy_(torch.randn(p.shape, generator=generator) / 10)


def text_of(one: dict[str, Any]) -> str:
    axes = ",".join(f"{axis}={one[axis]}" for axis in ("dp", "tp", "cp", "pp", "replicate"))
    more = f"zero={one['zero'] or 0},grad_acc={passes(one)},schedule={one['schedule']},micro_batch=1"
    return f"{axes},{more}" + ",sp" * bool(one["sp"])


def passes(one: dict[str, Any]) -> int:
    return one["grad_acc"] or (2 if one["schedule"] == "1f1b" else 4)


def shape_of(one: dict[str, Any]) -> ModelShape:
    layers = 4 if one["schedule"] in ("zb-v", "dualpipe") else 2
    return SHAPES[one["block"]].replace(layers=layers, train=TRAIN[one["block"]][one["train"]])


def fits(one: dict[str, Any]) -> bool:
    piped = one["pp"] > 1
    if world_of(one) not in WORLDS or piped == (one["schedule"] == "naive"):
        return False
    there = {"sp": one["tp"] > 1, "zero": one["dp"] * one["cp"] > 1, "grad_acc": not piped}
    if any((one[name] is None) == here for name, here in there.items()):
        return False
    if one["replicate"] > 1 and not one["zero"]:
        return False
    if (
        piped and one["zero"] and (one["schedule"] == "dualpipe" or one["zero"] == 1)
    ):  # adapters change nothing there
        return False
    if piped and TRAIN[one["block"]][one["train"]] == "embedding":  # the other stage would learn nothing
        return False
    with suppress(LayoutError):
        Layout.parse(text_of(one)).check(shape_of(one), seq=SEQ)
        return True
    return False


def cost(one: dict[str, Any]) -> float:
    """About the messages between all ranks, and their passes."""
    return world_of(one) * (world_of(one) + passes(one) * shape_of(one).layers / one["pp"])


WORLDS = (2, 4)


@functools.cache
def chosen() -> list[dict[str, Any]]:
    """Options of what is not there are None: else a layout without it would stand for one that has it."""
    every = combined(
        dp=(1, 2), tp=(1, 2), sp=(None, False, True), cp=(1, 2), pp=(1, 2), zero=(None, 0, 1, 2, 3), replicate=(1, 2),
        schedule=("naive", "1f1b", "zb-v", "dualpipe"), grad_acc=(None, 1, 2), recompute=("none", "mlp", "full"),
        block=tuple(SHAPES), train=(0, 1, 2, 3),
    )  # fmt: skip
    return all_pairs(filter(fits, every), cost)


def run_of(one: dict[str, Any]) -> tuple[Case, str, dict]:
    samples = one["dp"] * passes(one)
    case = Case(shape_of(one), one["recompute"], steps=2, seq=SEQ, samples=samples, prepare=stir)
    return case, text_of(one), {"bucket": 2000, "first_bucket": 500} if one["zero"] in (1, 2) else {}


CASE = Case(SHAPES["llama"].replace(layers=2, train="lora:3"), steps=2, seq=SEQ, samples=8, prepare=stir)
LARGER: list[tuple[Case, str, dict]] = [
    (CASE, "tp=4,sp,micro_batch=8", {}),
    (CASE, "dp=4,zero=3,replicate=2,grad_acc=2,micro_batch=1", {}),
]


@pytest.mark.parametrize("world", WORLDS)
def test_any_two_options_are_one_device(ranks, world):
    """And each message is one that was foretold, and each byte of weights, gradients and optimizer states."""
    runs = [run_of(one) for one in chosen() if world_of(one) == world]
    runs += LARGER if world == 4 else []
    assert {world_of(one) for one in chosen()} == set(WORLDS)
    every = ranks(on_ranks, runs, kept, True, ranks=world).values
    for i, (case, text, options) in enumerate(runs):
        check_kept(case, text, options, [results[i][1] for results in every])
        for rank, (run, _) in enumerate(results[i] for results in every):
            assert run.error(reference(replace(case, recompute="none"))) <= 1e-5, (case, text, rank)
            check_run(replace(case, prepare=None), text, options, rank, run)
