"""Bytes per parameter, and the table of model sizes that follows from them."""

import pytest

from playbook.planning.states import PRECISIONS


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
