"""Figures of a profile draw the operations and the roof that they are given."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex

from playbook.figures import PALETTE, display
from playbook_book.figures.profile import operations, roofline, short_name


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def bars(figure) -> list[tuple[float, float, float, str]]:
    """(place, left, width, colour) of each bar."""
    return [
        (
            round(p.get_y() + p.get_height() / 2, 6),
            round(p.get_x(), 9),
            round(p.get_width(), 9),
            to_hex(p.get_facecolor()),
        )
        for p in figure.axes[0].patches
    ]


def test_operations_are_cut_by_phase_and_carry_time_and_share():
    rows = {"aten::mm": {"forward": 2000.0, "backward": 4000.0}, "aten::add_": {"optimizer": 500.0}}
    figure = operations(rows, total=10_000)
    assert bars(figure) == [
        (0, 0, 0.002, PALETTE["F"]),
        (1, 0, 0, PALETTE["F"]),
        (0, 0.002, 0.004, PALETTE["B"]),
        (1, 0, 0, PALETTE["B"]),
        (0, 0.006, 0, PALETTE["optimizer"]),
        (1, 0, 0.0005, PALETTE["optimizer"]),
    ]
    svg = display(figure, alt="x").svg
    assert all(words in svg for words in ("6 ms (60%)", "500 µs (5%)", ">mm<", ">add_<", "self time"))
    assert "other" not in svg


def test_an_operation_and_autograd_s_wrapper_share_a_bar():
    rows = {"aten::mm": {"backward": 10.0}, "MmBackward0": {"backward": 6.0}}
    figure = operations({**rows, "autograd::engine::evaluate_function: MmBackward0": {"backward": 5.0}})
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["MmBackward0", "mm"]
    assert [width for _, _, width, _ in bars(figure)] == [1.1e-5, 1e-5]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("aten::mm", "mm"),
        ("autograd::engine::evaluate_function: MmBackward0", "MmBackward0"),
        (
            "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float)",
            "vectorized_layer_norm_kernel",
        ),
        (
            "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128",
            "sm90_xmma_gemm_f3…tn_n_tilesize128",
        ),
    ],
)
def test_names_of_kernels_become_readable(name, short):
    assert short_name(name) == short


def test_roofline_marks_operations_on_the_roof():
    figure = roofline(1e12, 1e10, {"norm": (2e9, 2e9), "product": (5e12, 1e10)}, device="a device")
    slope, roof, norm, product = figure.axes[0].lines
    assert slope.get_xdata()[1] == roof.get_xdata()[0] == 100  # FLOPs per byte at the ridge
    assert (*norm.get_xdata(), *norm.get_ydata()) == (1, 1e10)
    assert (*product.get_xdata(), *product.get_ydata()) == (500, 1e12)
    svg = display(figure, alt="x").svg
    assert all(words in svg for words in ("a device", "limited by memory", "FLOPs per byte"))
