"""The table of published recipes: computed from formats, as it was printed and as their own sources have it."""

from __future__ import annotations

import pytest

from playbook.errors import ConfigError
from playbook.planning.recipes import PRECISIONS, RECIPES, load_recipe
from playbook_book.recipe_table import PUBLISHED, published_rows

# The Ultra-Scale Playbook's table: its sums, and the savings that it gives against the first row.
PRINTED = {
    "BF16, FP32 accumulation": ("4 + 4 + 2 + 2 + 4 + 4 = 20", 0),
    "BF16": ("4 + 2 + 2 + 4 + 4 = 16", 20),
    "Transformer Engine": ("4 + 4 + 4 + 4 = 16", 20),
    "FP8-LM O3": ("2 + 2 + 1 + 1 + 1 + 2 = 9", 55),
    "DeepSeek-V3": ("4 + 4 + 1 + 2 + 2 + 2 = 15", 25),
    "nanotron": ("2 + 4 + 1 + 1 + 1 + 1 = 10", 50),
}


def test_the_printed_sums_follow_from_the_formats():
    assert {name: one.printed.sum for name, one in PUBLISHED.items()} == {
        name: text for name, (text, _) in PRINTED.items()
    }
    for row in published_rows():
        assert row[8:10] == [PRINTED[row[0]][0], f"{PRINTED[row[0]][1]}%"]


def test_what_is_kept_leaves_out_what_is_gone_at_once():
    """A gradient that is added to one in fp32 and freed is there for one layer, not for the model."""
    less = {name: one.printed.states.total - one.kept.states.total for name, one in PUBLISHED.items()}
    assert less == {
        "BF16, FP32 accumulation": 2, "BF16": 0, "Transformer Engine": 0, "FP8-LM O3": 2, "DeepSeek-V3": 2, "nanotron": 1
    }  # fmt: skip
    for one in PUBLISHED.values():
        if one.kept.accumulated:
            assert not one.kept.gradients


@pytest.mark.parametrize(
    ("recipe", "published"),
    [
        ("bf16-mixed-fp32-grads", "BF16, FP32 accumulation"),
        ("bf16-mixed", "BF16"),
        ("fp8-transformer-engine", "Transformer Engine"),
        ("fp8-lm-o3", "FP8-LM O3"),
        ("fp8-deepseek-v3", "DeepSeek-V3"),
        ("fp8-nanotron", "nanotron"),
    ],
)
def test_the_planner_has_the_same_bytes(recipe, published):
    assert RECIPES[recipe].states == PUBLISHED[published].printed.states


def test_main_gradients_are_what_the_first_row_keeps():
    assert (
        RECIPES["bf16-mixed-main-grads"].states.total
        == PUBLISHED["BF16, FP32 accumulation"].kept.states.total
    )


def test_moments_and_masters_of_another_format():
    recipe = load_recipe("bf16-mixed").with_moments("fp8", "fp16")
    assert (recipe.states.master, recipe.states.optimizer, recipe.widened) == (2, 3, 12)
    assert load_recipe("fp32").with_moments("bf16").states.total == 12
    assert load_recipe("fp32").with_moments("fp32") == load_recipe("fp32")
    with pytest.raises(ConfigError, match="unknown moments 'fp4'"):
        recipe.with_moments("fp4")


@pytest.mark.parametrize(
    ("precision", "parts", "total"),
    [
        ("fp32", (4, 4, 0, 8), 16),
        ("bf16-mixed", (2, 2, 4, 8), 16),
        ("bf16-mixed-fp32-grads", (2, 2 + 4, 4, 8), 20),
        ("bf16-mixed-main-grads", (2, 4, 4, 8), 18),
    ],
)
def test_bytes_per_parameter(precision, parts, total):
    found = PRECISIONS[precision]
    assert (found.parameters, found.gradients, found.master, found.optimizer) == parts
    assert found.total == total


@pytest.mark.parametrize(
    ("billions", "gigabytes", "with_fp32_gradients"),
    [(1, 16, 20), (7, 112, 140), (70, 1120, 1400), (405, 6480, 8100)],
)
def test_table_of_model_sizes(billions, gigabytes, with_fp32_gradients):
    # The Ultra-Scale Playbook's table: GB for fp32 or bf16, and for bf16 with fp32 gradients.
    parameters = billions * 10**9
    assert PRECISIONS["fp32"].total * parameters == gigabytes * 10**9
    assert PRECISIONS["bf16-mixed"].total * parameters == gigabytes * 10**9
    assert PRECISIONS["bf16-mixed-fp32-grads"].total * parameters == with_fp32_gradients * 10**9
