"""``playbook memory``: the memory of every rank, predicted; no torch, no GPU, no waiting."""

from __future__ import annotations

import argparse
import dataclasses
import re
import textwrap
from typing import Any

from playbook._checks import unknown
from playbook._json import to_json
from playbook.commands.flags import DOCUMENT, MODEL, add_fields, add_run, layout_of, pasted
from playbook.commands.simulate import fit_in_words
from playbook.errors import ConfigError
from playbook.figures.units import format_count
from playbook.hardware import (
    ACCELERATORS,
    UNITS,
    cluster_of,
    default_reserve,
    load_accelerator,
    read_bytes,
    usable_memory,
    verdict_of,
)
from playbook.layout import Layout
from playbook.layout.fields import OPTIMIZERS
from playbook.planning.calibration import Calibration, load_calibration, names
from playbook.planning.fusion import EVERYTHING, FUSED, KEPT
from playbook.planning.job import Job
from playbook.planning.jobs import trained_parameters
from playbook.planning.memory import MemoryReport, StageMemory, predict_job
from playbook.planning.recipes import RECIPES, load_recipe
from playbook.planning.search import Found, Problem, search
from playbook.planning.terms import SYMBOLS, Part, total
from playbook.shapes import ModelShape, load

#: Flags of a layout.
FIELDS = ("recompute", "micro_batch", "grad_acc", "bucket", "stage_layers", "muon")


def add(commands: Any) -> None:
    p = commands.add_parser(
        "memory",
        help="predict the memory of every rank",
        description="Bytes of parameters, gradients, optimizer states and activations on each pipeline stage.",
        epilog=_meanings(),
    )
    flag = p.add_argument
    flag("--model", metavar="M", help=f"preset, TOML, config.json or inline JSON (default: {MODEL})")
    add_fields(p, ModelShape)
    flag("--layout", default="", metavar="dp=8,tp=2,…", help="dp tp pp cp ep vpp sp zero recompute and more")
    flag("--gpus", type=int, metavar="N", help="ranks in all: dp is what is left, if not in the layout")
    add_fields(p, Layout, FIELDS)
    flag("--seq", type=int, metavar="N", help="tokens per sample (default: the model's max_seq)")
    flag("--precision", default="bf16-mixed", help=", ".join(RECIPES))
    flag("--attention", default="sdpa", help="sdpa (flash kernels) or reference (scores in memory)")
    some = "operations that run as one kernel (see below): some of them or, without a list, all that "
    some += "the book's kernels do (`playbook train --kernels fused`)"
    flag("--fused", nargs="?", const="all", default="none", metavar="K,…", help=some)
    products = "products of linear layers in FP8 or FP4, as `playbook train --fp8`: kept inputs with their scales, and "
    flag("--fp8", default="", metavar="RECIPE", help=products + "copies of the weights")
    flag(
        "--calibration",
        metavar="NAME",
        help="count what this framework keeps otherwise than the book's trainer, as `playbook simulate` does: "
        f"{', '.join(names())}, or a .toml file",
    )
    flag("--offload", action="store_true", help="keep master weights and moments in CPU memory")
    states = "bytes per parameter of optimizer states with master weights (default: Adam's)"
    flag("--optimizer-bytes", type=int, metavar="K", help=states)
    moments = f"{', '.join(OPTIMIZERS)}: of a block's matrix muon has one moment"
    flag("--optimizer", default=OPTIMIZERS[0], help=moments)
    flag("--document", type=int, metavar="N", help=DOCUMENT)
    fits = f"say whether it fits: {', '.join(ACCELERATORS)}, or a cluster of `playbook simulate`"
    flag("--accelerator", "--cluster", metavar="A", help=fits)
    flag("--memory", metavar="96GB", help="memory of a GPU that is none of these, or less of one")
    flag(
        "--reserve",
        metavar="4GiB",
        help="part of that memory that stays free for what no plan counts: the CUDA context, NCCL's buffers, "
        "fragmentation; a plan that leaves less is tight (4 %% if not given)",
    )
    flag("--unit", default="GB", help="GB (10⁹ bytes) or GiB (2³⁰, as nvidia-smi and torch)")
    add_run(p)
    flag("--explain", action="store_true", help="print every term with its formula")
    flag("--advice", action="store_true", help="fastest layouts that fit on as many GPUs (playbook search)")
    flag("--json", action="store_true", help="print one JSON object on stdout")
    p.set_defaults(run=run, parser=p)


def _meanings() -> str:
    """What precisions and fused operations mean, for the end of --help."""
    lines = ["precisions, in bytes per parameter:"]
    for name, recipe in RECIPES.items():
        states = recipe.states
        lines.append(
            f"  {name:24}weights {states.parameters}, gradients {states.gradients}, master weights {states.master}, "
            f"moments {states.optimizer}; products in {recipe.compute}"
        )
    lines += ["", "fused operations:"]
    for name, meaning in FUSED.items():
        lines += textwrap.wrap(f"{name:22}{meaning}", 100, initial_indent="  ", subsequent_indent=" " * 24)
    lines += ["  " + f"{'all':22}" + ", ".join(sorted(EVERYTHING))]
    return "\n".join(lines)


def run(args: argparse.Namespace) -> int:
    """Predict and print."""
    if args.unit not in UNITS:
        raise ConfigError(unknown("unit", args.unit, UNITS))
    job, known = pasted(args, args.parser) or _job(args), Calibration("")
    if args.calibration:
        known = load_calibration(args.calibration, load_accelerator(args.accelerator or "h100"))
        job = job.within(known.kernels, known.keeps)
    shape, layout = job.shape, job.layout
    report = predict_job(job)
    needs = round(report.peak * known.reserved)
    memory, reserve = memory_of(args)
    if args.advice and memory is None:
        raise ConfigError("advice is about a GPU: give --accelerator with it, or --memory")
    asked = job, args.accelerator, memory or 0, reserve, known
    if args.json:
        fits = {} if memory is None else fit(needs, memory, reserve)
        found = advice(*asked) if args.advice else ()
        rows = [{"layout": str(one.layout), **one.step.to_json()} for one in found]
        told = {"advice": rows} if args.advice else {}
        print(to_json({**_counts(shape), **report.to_json(), **fits, **told, **args.left_open}))
        return 0
    words = "" if memory is None else fit_in_words(needs, memory, reserve, args.unit, digits=2)
    print(_table(shape, layout, report, args.unit) + words)
    if memory is not None and needs > memory and not args.advice:
        print("--advice looks for layouts that fit on as many GPUs")
    for name in sorted(job.keeps):
        print(f"{known.name} keeps {name}: {KEPT[name]}")
    if args.explain:
        print(_explanation(report, args.unit))
    for one in advice(*asked) if args.advice else ():
        peak = f"{one.step.needs / UNITS[args.unit]:.2f} {args.unit}"
        print(f"{one.layout}: {peak}, a step of {one.step.seconds:.3g} s")
    return 0


def _job(args: argparse.Namespace) -> Job:
    shape = load(MODEL if args.model is None else args.model, args.train)
    return Job(
        shape,
        layout_of(args, FIELDS),
        seq=shape.max_seq if args.seq is None else args.seq,
        recipe=load_recipe(args.precision).with_optimizer(args.optimizer_bytes).with_fp8(args.fp8),
        attention=args.attention,
        offload=args.offload,
        optimizer=args.optimizer,
        document=args.document,
        fused=args.fused,
    )


def advice(
    job: Job, accelerator: str | None, memory: int, reserve: int | None, known: Calibration
) -> tuple[Found, ...]:
    """The fastest layouts that fit on as many GPUs, for the same global batch."""
    gpu = dataclasses.replace(load_accelerator(accelerator or "h100"), memory_bytes=memory)
    cluster = dataclasses.replace(cluster_of(gpu), gpus=job.layout.world_size)
    free = default_reserve(memory) if reserve is None else reserve
    anew = job.relayout(stage_layers=None, own_schedule=None)
    problem = Problem(anew, cluster, job.layout.global_batch, known if known.name else None, reserve=free)
    return search(problem, top=5).found


def fit(peak: int, memory: int, reserve: int | None) -> dict[str, Any]:
    """What --json says of a GPU: its ``capacity`` is its memory less the reserve that was asked for, if any; the verdict
    is by that one or by the default."""
    capacity = memory - (reserve or 0)
    verdict = verdict_of(peak, memory, reserve)
    return {"capacity": capacity, "fits": peak <= capacity, "verdict": verdict}


def memory_of(args: argparse.Namespace) -> tuple[int | None, int | None]:
    """Bytes that a GPU has, and those that are asked to stay free; None where nobody says."""
    memory = load_accelerator(args.accelerator).memory_bytes if args.accelerator else None
    if args.memory is not None:
        memory = read_bytes("memory", args.memory)
    if args.reserve is None:
        return memory, None
    if memory is None:
        raise ConfigError(f"reserve is {args.reserve} of no GPU: give --accelerator or --memory with it")
    reserve = read_bytes("reserve", args.reserve, least=0)
    usable_memory(memory, reserve)  # refuses a reserve of all of it
    return memory, reserve


def _counts(shape: ModelShape) -> dict[str, Any]:
    differs = {"differs": shape.differs} if shape.differs else {}
    learn = {"trained_parameters": trained_parameters(shape)} if shape.train != "full" else {}
    sizes = {"parameters": shape.num_parameters, "active_parameters": shape.active_parameters}
    return sizes | learn | differs


def _table(shape: ModelShape, layout: Layout, report: MemoryReport, unit: str) -> str:
    columns = ("params", "gradients", "optimizer", "activations", "buffers", "working", "total")
    ranks = "1 rank" if layout.world_size == 1 else f"{layout.world_size:,} ranks"
    where = f"{ranks} ({layout})" if str(layout) else "one device"
    active = f", {format_count(shape.active_parameters)} active for each token" if shape.moe else ""
    active += f", of which {trained_parameters(shape):,} learn" if shape.train != "full" else ""
    lines = [f"{shape.name or 'model'}, {shape.num_parameters:,} parameters{active}, on {where}"]
    lines += [f"planned as the book's model of these sizes: {shape.planned}"] * bool(shape.planned)
    lines.append(
        f"{f'{unit} at the peak':16}{'layers':>7}{'in flight':>11}" + "".join(f"{c:>13}" for c in columns)
    )
    for stage in report.stages:  # what each holds at its fullest moment, so that a row adds up
        numbers = {**stage.at_peak, "params": stage.parameters, "total": stage.total}
        cells = "".join(f" {numbers[c] / UNITS[unit]:12.2f}" for c in columns)
        lines.append(f"{f'stage {stage.stage}':16}{stage.layers:7}{stage.in_flight:11.2f}{cells}")
    lines.append(f"peak {report.peak / UNITS[unit]:.2f} {unit}")
    return "\n".join(lines)


def _explanation(report: MemoryReport, unit: str) -> str:
    """The terms of the stage with the highest peak: numbers of parameters, then bytes of activations."""
    stage: StageMemory = report.fullest
    lines = [f"\nparameters of stage {stage.stage}, which has the highest peak"]
    for part in stage.counts.parts:
        lines += [f"  {part.name}: {part.value:,} = {part.times:g} × {total(part.terms):,}", *_terms(part)]
    lines += [f"\nbuffers of stage {stage.stage}"] * bool(stage.buffer_parts)
    lines += [line for part in stage.buffer_parts for line in _sized(part, unit)]
    lines += [f"\nactivations of stage {stage.stage}"]
    for part in stage.parts:
        lines += _sized(part, unit)
    parts = (*stage.counts.parts, *stage.buffer_parts, *stage.parts)
    formulas = [term.formula for part in parts for term in part.terms]
    used = set(re.findall("[A-Za-z]+", " ".join(formulas)))
    return "\n".join(
        [*lines, "", *(f"  {symbol}  {meaning}" for symbol, meaning in SYMBOLS.items() if symbol in used)]
    )


def _sized(part: Part, unit: str) -> list[str]:
    size, each = f"{part.value / UNITS[unit]:.3f} {unit}", part.value / part.times
    return [f"  {part.name}: {size} = {part.times:g} × {each:,.0f} bytes", *_terms(part)]


def _terms(part: Part) -> list[str]:
    return [f"    {t.part:15} {t.name:46} {t.text:18} {t.value:>16,}" for t in part.terms]
