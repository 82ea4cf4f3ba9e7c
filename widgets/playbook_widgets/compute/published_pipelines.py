"""Numbers that others have measured and published, for presets and for tests.

Qi et al. 2023, "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241): times of one stage for one micro-batch (table 9, in
milliseconds, on A100s) and bubble rates that follow from them (table 5). DeepSeek-AI 2024 (arXiv 2412.19437, table 2, and
the repository github.com/deepseek-ai/DualPipe): what schedules that go both ways cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from playbook.schedules.timeline import Times


@dataclass(frozen=True)
class Measured:
    """A model on ``stages`` GPUs with ``microbatches`` a step: times of one stage in ms, and published bubble rates.

    ``rest`` is what the weight gradient still needs of a micro-batch's activations once B is over: 32 of 34 + 5as/h bytes
    per token and hidden unit (the paper's appendix; sequences of 1024 tokens). ``chunks`` is how many stages a rank has
    where 1F1B is interleaved: a layer each. ``rates`` are waiting over span, by the names of `make`.
    """

    model: str
    stages: int
    microbatches: int
    f: float
    b: float
    w: float
    comm: float
    rest: float
    chunks: int
    rates: Mapping[str, float]

    def times(self, chunks: int = 1) -> Times:
        """Of the stages, if each rank has so many equal ones."""
        return Times(self.f / chunks, self.b / chunks, self.w / chunks, self.comm)


NAMES = ("1f1b", "interleaved", "zb-h1", "zb-h2", "zb-1p", "zb-2p")
_CHUNKS = {"1.5B": 3, "6.2B": 4, "14.6B": 3, "28.3B": 2}


def _row(
    model: str, stages: int, microbatches: int, times: tuple[float, ...], rates: tuple[float, ...]
) -> Measured:
    rest = 32 / 87 if model == "1.5B" else 32 / 74
    published = dict(zip(NAMES, rates, strict=True))
    f, b, w, comm = times
    return Measured(model, stages, microbatches, f, b, w, comm, rest, _CHUNKS[model], published)


#: All twelve rows.
# fmt: off
MEASURED = (
    _row("1.5B", 8, 24, (18.522, 18.086, 9.337, 0.601), (0.2431, 0.1055, 0.1585, 0.1083, 0.1585, 0.0433)),
    _row("1.5B", 8, 32, (18.513, 18.086, 9.331, 0.626), (0.1985, 0.0818, 0.1242, 0.0837, 0.1242, 0.0039)),
    _row("1.5B", 8, 64, (18.546, 18.097, 9.321, 0.762), (0.1240, 0.0443, 0.0674, 0.0444, 0.0674, 0.0026)),
    _row("6.2B", 8, 24, (29.718, 29.444, 19.927, 0.527), (0.2347, 0.0808, 0.1323, 0.0698, 0.1323, 0.0029)),
    _row("6.2B", 8, 32, (29.802, 29.428, 19.530, 0.577), (0.1898, 0.0628, 0.1045, 0.0559, 0.1045, 0.0022)),
    _row("6.2B", 8, 64, (29.935, 29.621, 19.388, 0.535), (0.1091, 0.0320, 0.0554, 0.0294, 0.0554, 0.0010)),
    _row("14.6B", 16, 48, (11.347, 11.248, 8.132, 0.377), (0.2552, 0.1104, 0.1397, 0.0672, 0.1397, 0.0066)),
    _row("14.6B", 16, 64, (11.307, 11.254, 8.101, 0.379), (0.2082, 0.0852, 0.1088, 0.0516, 0.1088, 0.0054)),
    _row("14.6B", 16, 128, (11.325, 11.308, 8.109, 0.378), (0.1251, 0.0445, 0.0576, 0.0266, 0.0576, 0.0028)),
    _row("28.3B", 32, 96, (10.419, 10.207, 7.715, 0.408), (0.2646, 0.1493, 0.1421, 0.0641, 0.1421, 0.0038)),
    _row("28.3B", 32, 128, (10.408, 10.204, 7.703, 0.408), (0.2168, 0.1164, 0.1106, 0.0490, 0.1106, 0.0029)),
    _row("28.3B", 32, 256, (10.402, 10.248, 7.698, 0.460), (0.1352, 0.0624, 0.0594, 0.0257, 0.0594, 0.0018)),
)
# fmt: on


@dataclass(frozen=True)
class BothWays:
    """A row of DeepSeek's table. F, B, W are passes (B the whole backward pass), F&B both side by side; activations are
    counted in micro-batches through a rank's part of the model, in the unit of 1F1B's ``p``."""

    schedule: str
    bubble: str
    copies_of_weights: int
    activations: str
    devices: str


BOTH_WAYS = (
    BothWays("1f1b", "(p − 1)·(F + B)", 1, "p", "p"),
    BothWays("zb-1p", "(p − 1)·(F + B − 2W)", 1, "p", "p"),
    BothWays("dualpipe", "(p/2 − 1)·(F&B + B − 3W)", 2, "p + 1", "p"),
    BothWays("dualpipev", "(p/2 − 1)·(F&B + B − 3W)", 2, "p + 1", "p/2"),
)
