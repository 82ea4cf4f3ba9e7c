"""An optimizer's states at rest in few bits: numbers of a narrow format, and one scale for each tensor.

FP8-LM keeps the first moment in E4M3 and the second, by whose square root is divided, in FP16, both with a scale per
tensor (Peng et al. 2023, arXiv 2310.18313, section 2); DeepSeek-V3 keeps both in BF16, which has the range of fp32 and
needs no scale (arXiv 2412.19437, section 3.3.3).

Scales are powers of two, as in FP8-LM's code (MS-AMP, ``ScalingMeta``). Then all but the smallest numbers of a tensor,
those below the format's normal range, are rounded alike whatever the scale is: it hardly matters that ZeRO cuts a tensor
into shards, each with a scale of its own. And a number at rest, brought to fp32 and back, is the same number.
"""

from __future__ import annotations

from torch import Tensor

from playbook.precision.casts import DTYPES
from playbook.precision.formats import FORMATS, load_format
from playbook.precision.scaling import scales_of


def narrow(kind: str, x: Tensor, form: str) -> dict[str, Tensor]:
    """A state of this ``kind`` in ``form``: {kind: numbers} and, where the range is narrower than that of fp32,
    {kind_scale: a scalar} that they are multiplied by.

    Raises ConfigError for an unknown format, and KeyError for one that PyTorch has no dtype for.
    """
    found = load_format(form)
    if found.exponent == FORMATS["fp32"].exponent:
        return {kind: x.to(DTYPES[form])}
    largest = x.abs().amax() if x.numel() else x.new_zeros(())
    scale = scales_of(largest, found, powers="up")
    return {kind: (x / scale).to(DTYPES[form]), f"{kind}_scale": scale}
