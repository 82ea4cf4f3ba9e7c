"""The ring-attention widget: one pure function from what a reader sets to every step that the page draws.

``compute`` runs in a kernel and, as the same file, in the reader's browser. Inputs are a flat mapping that holds only
what differs from ``DEFAULTS``, so that it fits into a link: ``{"ranks": 8, "placement": "contiguous"}``. Who computes
which block is ``layout.tokens``'s, when it is computed is ``playbook_widgets.compute.ring_steps``'s. Standard library
only.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from playbook._checks import check_positive, typed_int, unknown
from playbook.collectives.links import AlphaBeta
from playbook.errors import ConfigError, PlaybookError
from playbook.hardware import load
from playbook.layout import Layout
from playbook.layout.fields import CONTEXT
from playbook.layout.tokens import PLACEMENT, TokenRanges, placement_of
from playbook.shapes import PRESETS, ModelShape
from playbook_book.collectives.network import Network
from playbook_widgets.compute.refusals import answered
from playbook_widgets.compute.ring_steps import RingSetting, Step, steps_of
from playbook_widgets.compute.ring_words import answer, sent_formula

#: What a control shows when nothing is set. ``step`` is the page's place in the ring and changes no output.
DEFAULTS: dict[str, Any] = {
    "context": "ring",
    "placement": None,  # that of ``context.placement_of``
    "ranks": 4,
    "seq": 8192,
    "causal": True,
    "backward": False,
    "model": "llama3-8b",
    "heads": None,  # the model's, as the next two
    "kv_heads": None,
    "head_dim": None,
    "itemsize": 2,
    "cluster": "h100-8",
    "bandwidth": None,  # GB/s; the cluster's between so many ranks
    "tflops": None,  # a share of the cluster's peak
    "step": 0,
}
RANKS = (2, 16)
SEQ = (32, 2**22)
HEADS = (1, 256)
HEAD_DIM = (2, 512)
ITEMSIZES = (2, 4)
BANDWIDTH = (0.01, 10_000)  # GB/s
TFLOPS = (0.001, 10_000)
#: The share of the peak in bf16 that attention is taken to reach where a reader sets no number of their own.
REACHED = 0.5
#: Models whose heads have keys and values of their own, or share them: all but those with latent attention.
MODELS = tuple(name for name, shape in PRESETS.items() if shape.mla is None)


def compute(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`describe` says of the setting, or ``{"error": {"field", "message"}}``: the control to change."""
    return answered(lambda: describe(read(inputs)))


# --- What a reader has set


def read(inputs: Mapping[str, Any]) -> RingSetting:
    """The setting that a flat mapping means; raises :class:`PlaybookError` in one sentence."""
    for key in inputs:
        if key not in DEFAULTS:
            raise ConfigError(f"{key} is not a setting of the ring-attention widget")
    values = {**DEFAULTS, **{key: value for key, value in inputs.items() if value is not None}}
    for field in ("causal", "backward"):
        if not isinstance(values[field], bool):
            raise ConfigError(f"{field} must be true or false, got {values[field]!r}")
    context, cluster = str(values["context"]), load(str(values["cluster"]))
    placement = placement_of(context, values["placement"])
    ranks, seq = _whole("ranks", values["ranks"], RANKS), read_tokens(values["seq"])
    itemsize = _whole("itemsize", values["itemsize"], (ITEMSIZES[0], ITEMSIZES[-1]))
    if itemsize not in ITEMSIZES:
        raise ConfigError(f"itemsize must be 2 or 4 bytes, got {itemsize}")
    bandwidth = _number("bandwidth", values["bandwidth"], BANDWIDTH, "GB/s")
    tflops = _number("tflops", values["tflops"], TFLOPS, "TFLOP/s")
    dtype, hop = {2: "bf16", 4: "fp32"}[itemsize], Network.of(cluster).hop(ranks)
    setting = RingSetting(
        _shape(values),
        context,
        TokenRanges(placement, Layout(cp=ranks).padded(seq), ranks, values["causal"]),
        seq,
        values["backward"],
        itemsize,
        cluster.name,
        AlphaBeta(hop.alpha, 1 / (bandwidth * 1e9) if bandwidth else hop.beta),
        tflops * 1e12 if tflops else REACHED * cluster.accelerator.peak(dtype),
    )
    setting.check()
    return setting


def _shape(values: Mapping[str, Any]) -> ModelShape:
    """The model, with the heads that a reader gives it."""
    name = str(values["model"])
    if name not in MODELS:
        raise ConfigError(unknown("model", name, MODELS))
    limits = {"heads": HEADS, "kv_heads": HEADS, "head_dim": HEAD_DIM}
    given = {key: _whole(key, values[key], limits[key]) for key in limits if values[key] is not None}
    shape = PRESETS[name]
    known = {"heads": shape.heads, "kv_heads": shape.n_kv_heads, "head_dim": shape.qk_dim}
    changed = {key: value for key, value in given.items() if value != known[key]}
    if not changed:
        return shape
    sizes = {**known, **changed}
    if sizes["heads"] % sizes["kv_heads"]:
        raise ConfigError(f"kv_heads must divide heads = {sizes['heads']}, got {sizes['kv_heads']}")
    return shape.replace(**sizes)


def read_tokens(value: Any) -> int:
    """A number of tokens, or one as windows are written: 8192, 128k (times 1024), 1M."""
    units = {"": 1, "k": 2**10, "m": 2**20}
    text = re.sub(r"(?<=\d)[\s,_\u202f](?=\d{3})", "", str(value).strip().lower())
    found = re.fullmatch(r"(\d{1,9})\s*([km]?)", text)
    if not found or isinstance(value, bool):
        raise ConfigError(f"seq must be a number of tokens such as 8192 or 128k, got {value!r}")
    count = int(found[1]) * units[found[2]]
    if not SEQ[0] <= count <= SEQ[1]:
        raise ConfigError(f"seq must be from {SEQ[0]} to {SEQ[1]} tokens, got {value}")
    return count


def _whole(name: str, value: Any, limits: tuple[int, int]) -> int:
    return typed_int(name, value, ConfigError, least=limits[0], most=limits[1])


def _number(name: str, value: Any, limits: tuple[float, float], unit: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, str) and re.fullmatch(r"\s*\d{1,9}(\.\d{1,9})?\s*", value):
        value = float(value)
    number = check_positive(name, value, ConfigError)
    if not limits[0] <= number <= limits[1]:
        raise ConfigError(f"{name} must be from {limits[0]} to {limits[1]} {unit}, got {value}")
    return number


# --- What the page draws


def describe(setting: RingSetting) -> dict[str, Any]:
    """All that the page shows of a setting: one layer, one sample. Times in seconds, sizes in bytes of one rank."""
    steps, ranges = steps_of(setting), setting.ranges
    result = {
        "values": _values(setting),
        "padded": ranges.seq,
        "layers": setting.shape.layers,
        "ranges": [[[p.start, p.stop] for p in ranges.ranges(rank)] for rank in range(ranges.ranks)],
        "blocks": _blocks(setting, steps),
        "steps": _steps(steps),
        "work": _work(setting, steps),
        **_sums(steps),
        "share": setting.share,
        "formula": sent_formula(setting),
        "held": setting.held,
        "pair_flops": setting.pair_flops,
        "link": {"alpha": setting.link.alpha, "bandwidth": setting.link.bandwidth},
        "flops": setting.flops,
        "rivals": _rivals(setting),
        "code": _code(setting),
        "command": _command(setting),
    }
    return {**result, "answer": answer(setting, result)}


def _values(setting: RingSetting) -> dict[str, Any]:
    """What every control shows, with what follows from others filled in."""
    shape, ranges = setting.shape, setting.ranges
    return {
        "context": setting.context,
        "placement": ranges.kind,
        "ranks": ranges.ranks,
        "seq": setting.seq,
        "causal": ranges.causal,
        "backward": setting.backward,
        "model": shape.name,
        "heads": shape.heads,
        "kv_heads": shape.n_kv_heads,
        "head_dim": shape.qk_dim,
        "itemsize": setting.itemsize,
        "cluster": setting.cluster,
        "bandwidth": round(setting.link.bandwidth / 1e9, 6),
        "tflops": round(setting.flops / 1e12, 6),
    }


def _blocks(setting: RingSetting, steps: list[Step]) -> list[dict[str, Any]]:
    """The blocks of the mask: who computes each with whose keys, in which step, and the pieces ``[first query, end, first
    key, end, triangle]`` that it lies in."""
    if setting.context == "ulysses":  # every rank the whole mask, of its heads
        seq, causal = setting.ranges.seq, setting.ranges.causal
        return [{"rank": None, "source": None, "step": 1, "pieces": [[0, seq, 0, seq, causal]]}]
    return [
        {"rank": rank, "source": source, "step": number, "pieces": setting.pieces(rank, source)}
        for number, step in enumerate(steps)
        for rank, part in enumerate(step.parts)
        for source in part.sources
        if part.pairs and setting.pieces(rank, source)
    ]


def _steps(steps: list[Step]) -> list[dict[str, Any]]:
    """Each step from ``start`` to ``end``: it lasts as long as its slowest rank or, if that is longer, its messages."""
    found, start = [], 0.0
    for step in steps:
        found.append(
            {
                "does": step.does,
                "ranks": [
                    {"sources": list(part.sources), "pairs": part.pairs, "seconds": part.seconds}
                    for part in step.parts
                ],
                "moves": [[what, float(size)] for what, size in step.moves],
                "sent": float(step.sent),
                "compute": step.compute,
                "message": step.message,
                "exposed": step.exposed,
                "start": start,
                "end": start + step.seconds,
                "idle": [rank for rank, part in enumerate(step.parts) if not part.pairs],
            }
        )
        start += step.seconds
    return found


def _work(setting: RingSetting, steps: list[Step]) -> dict[str, Any]:
    """Pairs of a query and a key of each rank, for each of ``heads``; busiest over mean; seconds of each rank's own."""
    parts = list(zip(*(step.parts for step in steps), strict=True))
    pairs = [sum(part.pairs for part in mine) for mine in parts]
    return {
        "pairs": pairs,
        "seconds": [sum(part.seconds for part in mine) for mine in parts],
        "heads": setting.heads_each,
        "balance": max(pairs) * len(pairs) / sum(pairs),
    }


def _sums(steps: list[Step]) -> dict[str, float]:
    """Of all steps: their time, what of it is computing and what is waiting for messages, and what a rank sends."""
    return {
        "seconds": sum(step.seconds for step in steps),
        "compute": sum(step.compute for step in steps),
        "message": sum(step.message for step in steps),
        "exposed": sum(step.exposed for step in steps),
        "sent": float(sum(step.sent for step in steps)),
    }


def _rivals(setting: RingSetting) -> list[dict[str, Any]]:
    """Time, bytes and balance of every other way to do the same, or why it is not possible."""
    found = []
    for context in CONTEXT:
        for placement in PLACEMENT if context != "ulysses" else PLACEMENT[:1]:
            other = setting.other(context, placement)
            entry: dict[str, Any] = {"context": context, "placement": placement}
            try:
                other.check()
            except PlaybookError as error:
                found.append({**entry, "error": str(error)})
                continue
            steps = steps_of(other)
            balance = _work(other, steps)["balance"]
            found.append({**entry, **_sums(steps), "balance": balance, "held": other.held})
    return found


def _code(setting: RingSetting) -> str:
    """The Python that counts the same pairs, rank by rank."""
    ranges = setting.ranges
    causal = "" if ranges.causal else ", causal=False"
    made = f'TokenRanges("{ranges.kind}", seq={ranges.seq}, ranks={ranges.ranks}{causal})'
    return f"from playbook.layout.tokens import TokenRanges\n[{made}.work(rank) for rank in range({ranges.ranks})]"


def _command(setting: RingSetting) -> str:
    """The ``playbook train`` line that computes attention so; none where nothing can be trained: without a mask, or with
    more tokens than a model has learned positions."""
    shape, ranks = setting.shape, setting.ranges.ranks
    if not setting.ranges.causal or (shape.positions == "learned" and setting.seq > shape.max_seq):
        return ""
    known = PRESETS.get(shape.name) == shape
    model = shape.name if known else json.dumps(shape.sizes(), separators=(",", ":"))
    words = ["playbook", "train", "--model", model, "--layout", f"cp={ranks}", "--context", setting.context]
    words += ["--placement", setting.ranges.kind, "--seq", str(setting.seq), "--global-batch", "1"]
    return shlex.join(words + (["--dtype", "bfloat16"] if setting.itemsize == 2 else []))
