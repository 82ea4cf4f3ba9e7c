"""Pipeline stages: which layers each holds, and how many micro-batches it keeps activations of at the worst moment.

Narayanan et al. 2021 (arXiv 2104.04473, section 2.2) for 1F1B and the interleaved schedule, Qi et al. 2023 (arXiv
2401.10241) for zero-bubble ones, DeepSeek-AI 2024 (arXiv 2412.19437, table 2) for DualPipe.
"""

from __future__ import annotations

from itertools import pairwise


def split_layers(layers: int, pp: int, vpp: int = 1) -> list[range]:
    """Contiguous runs of layers for the pp · vpp virtual stages, in the order of the forward pass.

    Sizes differ by one at most; the first stages take what is left over. Chunk c of rank r is virtual stage c·pp + r.
    """
    pieces = pp * vpp
    size, extra = divmod(layers, pieces)
    starts = [i * size + min(i, extra) for i in range(pieces + 1)]
    return [range(a, b) for a, b in pairwise(starts)]


def chunks_in_flight(schedule: str, pp: int, vpp: int, microbatches: int, stage: int) -> int:
    """Model chunks whose activations rank ``stage`` holds at once; a chunk is one of the rank's ``vpp`` pieces.

    AFAB keeps all micro-batches. 1F1B and ZB-H1 keep pp − stage of them, ZB-H2 2(pp − stage) − 1. The interleaved
    schedule starts backward after 2(pp − stage − 1) + (vpp − 1)·pp + 1 chunks. ZB-V holds 2·pp half-stages on every
    rank and DualPipe(V) pp + 1 micro-batches.
    """
    everything = microbatches * vpp
    if pp == 1:
        return vpp
    warm_up = {
        "afab": everything,
        "1f1b": (pp - stage) * vpp,
        "interleaved": 2 * (pp - stage - 1) + (vpp - 1) * pp + 1 if vpp > 1 else pp - stage,
        "zb-h1": (pp - stage) * vpp,
        "zb-h2": (2 * (pp - stage) - 1) * vpp,
        "zb-v": pp * vpp,
        "dualpipe": (pp + 1) * vpp,
        "dualpipev": (pp + 1) * vpp,
    }
    return min(everything, warm_up[schedule])
