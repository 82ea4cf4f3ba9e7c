"""``playbook simulate``: how long a step takes, predicted; one layout, or a file of jobs."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playbook._json import to_json
from playbook.block import Kind
from playbook.commands.flags import DOCUMENT, MODEL, add_fields, add_run, pasted
from playbook.errors import ConfigError, LayoutError
from playbook.figures.units import format_seconds
from playbook.hardware import FITS, TIGHT, TOO_LARGE, UNITS, default_reserve, read_bytes, verdict_of
from playbook.layout import Layout
from playbook.layout.fields import OPTIMIZERS
from playbook.planning import operations
from playbook.planning.calibration import names
from playbook.planning.operations import Operation
from playbook.planning.simulator import PARTS, Run, Step
from playbook.planning.stage_times import StageTimes
from playbook.planning.terms import label
from playbook.shapes import ModelShape

EPILOG = """a job is an object with the flags' names as keys (micro_batch, global_batch, …), one a line; cluster may be
an object with a base and fields of its own: {"base": "h100-8", "memory_bandwidth": 2.4e12, "inter_bandwidth": 25e9, …}.
Answers come in the order of the jobs, {"error": "one sentence"} for one that cannot run or does not fit.

examples: playbook simulate --model llama3-70b --cluster h100-8 --gpus 64 --layout tp=8,sp,pp=2,zero=1 --global-batch 256
          playbook simulate --jobs jobs.jsonl > answers.jsonl"""


def add(commands: Any) -> None:
    p = commands.add_parser(
        "simulate",
        help="predict how long a step takes, and where the time goes",
        description="Seconds of a training step, part by part, on a cluster that need not be there.",
        epilog=EPILOG,
    )
    add_problem(p)
    flag = p.add_argument
    flag("--layout", default="", metavar="tp=8,pp=4,…", help="dp is what is left of the GPUs, if not given")
    flag("--micro-batch", type=int, metavar="N", help="samples per forward pass (default: the layout's, 1)")
    flag(
        "--imbalance",
        type=float,
        metavar="X",
        help="tokens that experts of the busiest rank get, as a multiple of a rank's share (default: 1)",
    )
    add_run(p)
    flag("--jobs", type=Path, metavar="FILE", help="answer every line of a file of jobs (- is stdin)")
    flag("--explain", action="store_true", help="print every operation and message with its size and seconds")
    flag("--no-limit", action="store_true", help="time what does not fit into memory as well")
    flag("--json", action="store_true", help="print one JSON object on stdout")
    p.set_defaults(run=run, parser=p)


def add_problem(p: argparse.ArgumentParser) -> None:
    """Flags of what is trained on what: simulate and search have them in common."""
    flag = p.add_argument
    flag("--model", metavar="M", help=f"preset, TOML, config.json or inline JSON (default: {MODEL})")
    add_fields(p, ModelShape)
    flag("--cluster", default="h100-8", metavar="C", help="preset, or JSON with a base (default: h100-8)")
    flag("--gpus", type=int, metavar="N", help="GPUs (default: as many as the layout has ranks)")
    flag("--global-batch", type=int, metavar="N", help="samples of a step")
    flag("--seq", type=int, metavar="N", help="tokens of a sample (default: the model's max_seq)")
    flag("--precision", default="bf16", metavar="P", help="bf16 (default), fp16, fp32, fp8, fp8:blockwise, …")
    flag("--attention", default="flash", metavar="A", help="flash or reference (default: flash)")
    flag(
        "--fused", action=argparse.BooleanOptionalAction, help="elementwise operations as one kernel, or not"
    )
    flag("--optimizer", metavar="O", help=f"{', '.join(OPTIMIZERS)} (default: {OPTIMIZERS[0]})")
    add_fields(p, Layout, ["muon"])
    flag("--document", type=int, metavar="N", help=DOCUMENT)
    flag("--overlap", default="", metavar="dp,tp=no", help="messages that are hidden (default: calibrated)")
    flag(
        "--calibration",
        metavar="NAME",
        help=f"what device and framework reach: {', '.join(names())}, or a .toml file (default: the GPU's)",
    )
    flag(
        "--reserve",
        metavar="4GiB",
        help="part of a GPU's memory that stays free for what no plan counts: the CUDA context, NCCL's buffers, "
        "fragmentation (default: 4 %%; simulate calls what leaves less tight, search leaves it out; 0 fills all of it)",
    )


def job_of(args: argparse.Namespace) -> dict[str, Any]:
    """The flags as a job."""
    keys = (
        "model", "train", "gpus", "global_batch", "seq", "precision", "attention", "fused", "calibration", "layout",
        "micro_batch", "imbalance", "optimizer", "muon", "document",
    )  # fmt: skip
    job = {name: getattr(args, name) for name in keys if getattr(args, name, None) is not None}
    job.setdefault("model", MODEL)
    cluster = args.cluster.strip()
    try:
        job["cluster"] = json.loads(cluster) if cluster.startswith("{") else cluster
    except ValueError as error:
        raise ConfigError(f"the cluster's inline JSON cannot be read: {error}") from None
    job["overlap"] = _overlap(args.overlap)
    if args.reserve:
        job["reserve"] = read_bytes("reserve", args.reserve, least=0)
    return job


def _overlap(text: str) -> dict[str, bool]:
    truths = {"": True, "yes": True, "true": True, "no": False, "false": False}
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        axis, _, value = part.partition("=")
        if value.lower() not in truths:
            raise ConfigError(f"overlap is written dp,tp=no: {part!r} is neither")
        found[axis] = truths[value.lower()]
    return found


def run(args: argparse.Namespace) -> int:
    """Predict and print."""
    from playbook.planning import jobs

    if args.jobs:
        for number, line in enumerate(_lines(args.jobs), 1):
            if line.strip():
                print(to_json(jobs.answer(line, number)), flush=False)
        return 0
    job = job_of(args)
    found = jobs.run_of(
        {key: value for key, value in job.items() if key != "reserve"}, pasted(args, args.parser)
    )
    found.check()
    try:
        step = found.step(job.get("reserve"), limit=not args.no_limit)
    except LayoutError as error:
        more = "playbook search finds layouts that fit, and --no-limit times this one"
        raise LayoutError(f"{error}; {more}") from None
    if args.json:
        print(to_json({**step.to_json(), **args.left_open}))
        return 0
    print(_table(found, step, job.get("reserve")))
    if args.explain:
        print("\n".join(explanation(found)))
    return 0


def _lines(path: Path) -> Iterator[str]:
    try:
        if str(path) == "-":
            yield from sys.stdin
        else:
            with path.open(encoding="utf-8", errors="replace") as file:
                yield from file
    except OSError as error:
        raise ConfigError(f"jobs: {error.strerror}: {str(path)!r}") from None


def _table(found: Run, step: Step, reserve: int | None) -> str:
    layout, shape = found.layout, found.shape
    lines = [
        f"{shape.name or 'model'} on {layout.world_size} × {found.cluster.accelerator.title} "
        f"({str(layout) or 'one device'}), {layout.global_batch} samples of {found.seq} tokens",
        f"a step takes {format_seconds(step.seconds)}: {step.tokens_per_s_per_gpu:,.0f} tokens/s per GPU, "
        f"MFU {step.mfu:.1%}, HFU {step.hfu:.1%}; calibration {found.calibration.name}",
        f"80 % interval, from steps that its fit has not seen: {' to '.join(map(format_seconds, step.interval))}",
        "",
    ]
    for part in PARTS:
        seconds = step.breakdown[part]
        if seconds > 0:
            lines.append(f"  {part:12}{format_seconds(seconds):>10}{seconds / step.seconds:8.1%}")
    memory = found.cluster.accelerator.memory_bytes
    fit = fit_in_words(step.needs, memory, reserve, "GB", digits=1)
    return "\n".join([*lines, "", f"memory: {step.needs / 1e9:.1f} GB on the fullest rank{fit}"])


def fit_in_words(needs: int, memory: int, reserve: int | None, unit: str, digits: int) -> str:
    """Of how much memory, and whether that fits: the end of a sentence about ``needs`` bytes."""
    free = default_reserve(memory) if reserve is None else reserve
    sizes = {"memory": memory, "left": memory - needs, "over": needs - memory, "free": free}
    said = {key: f"{size / UNITS[unit]:.{digits}f} {unit}" for key, size in sizes.items()}
    words = {
        FITS: "fits, with {left} to spare",
        TIGHT: "tight, with {left} to spare, which is less than the {free} that should stay free",
        TOO_LARGE: "does not fit, by {over}",
    }
    return " of {memory}: ".format(**said) + words[verdict_of(needs, memory, reserve)].format(**said)


@dataclass(frozen=True)
class Timed:
    """Operations with their seconds, for those who ask where the time goes: ``times`` they are done in a pass."""

    part: str
    direction: str
    operation: Operation
    seconds: float


def timed(times: StageTimes) -> Iterator[Timed]:
    """Every operation of a micro-batch with its seconds, part by part."""
    kinds = times.sizes.job.kinds
    parts = [(f"{label(kind)} block", kind, times.operations(kind)) for kind in kinds]
    ends = {"embedding": operations.embedding(times.sizes), "head": operations.head(times.sizes)}
    parts += [(name, Kind(whole=True), passes) for name, passes in ends.items()]
    for name, kind, passes in parts:
        again = times.again(kind, passes)
        for direction, some in (
            ("forward", passes.forward), ("inputs", passes.inputs), ("again", again), ("weights", passes.weights),
        ):  # fmt: skip
            for operation in some:
                yield Timed(name, direction, operation, times.device.seconds(operation))


def explanation(found: Run) -> Iterator[str]:
    """Every operation and message of a micro-batch, and what comes after all of them, with sizes and seconds."""
    device = found.device
    yield f"\noperations of one micro-batch on a rank ({device.dtype}; {found.calibration.source})"
    for one in timed(found.times):
        o = one.operation
        size = (
            f"({o.m}×{o.k})·({o.k}×{o.n})" + f" × {o.batch}" * (o.batch > 1)
            if o.kind != "pass"
            else f"{o.bytes / 1e6:,.1f} MB"
        )
        rate = (
            f"{o.work / one.seconds / 1e12:6.1f} TFLOP/s"
            if o.work
            else f"{o.bytes / one.seconds / 1e9:6.0f} GB/s"
        )
        yield f"  {one.part:12} {one.direction:8} {o.name:22} {size:32} {one.seconds * 1e6:12,.1f} µs  {rate}"
    yield "\nmessages of one block and micro-batch"
    for kind, message, seconds in found.times.messages():
        yield (
            f"  {kind:12} {message.phase:8} {message.axis:3} {message.count} × {message.collective} of "
            f"{message.payload / 1e6:,.2f} MB over {message.ranks} ranks: {seconds * 1e6:,.1f} µs each"
        )
    yield "\nafter the last micro-batch"
    for line in after(found):
        yield f"  {line}"


def after(run: Run) -> Iterator[str]:
    """What is not part of micro-batches, in words: gradients, optimizer, parameters of the fullest rank."""
    held, states = run.held[run.memory.fullest.stage], run.recipe.states
    busy = run.busy[held.stage]
    for parameters, ranks, axis in run._replicas(held):
        if ranks > 1:
            yield f"{parameters:,.0f} parameters have {ranks} replicas ({axis})"
    if run.layout.replicate > 1:
        yield f"{run.layout.replicate} groups have all shards: {run._across(held) * 1e3:,.2f} ms to add them up"
    yield f"gradients: {run._reduce(held) * 1e3:,.2f} ms in all, {run._exposed(held, busy) * 1e3:,.2f} ms exposed"
    updated = held.counts.shard
    yield (
        f"optimizer: {updated:,} parameters × {2 * (states.master + states.optimizer)} bytes of states read and "
        f"written, and gradients: {run._optimizer(held) * 1e3:,.2f} ms"
    )
    if run.layout.zero:
        gather, exposed = run._gather(held), run._gathered(held, busy)
        yield f"parameters: {gather * 1e3:,.2f} ms to gather once, {exposed * 1e3:,.2f} ms exposed"
    if run.layout.pp > 1:
        yield f"a message to the next stage: {run.hop * 1e3:,.3f} ms"
    ranks = run.layout.world_size
    yield f"the slowest of {ranks} ranks: {math.sqrt(2 * math.log(ranks)):.2f} deviations above the mean"
