"""``playbook search``: all layouts that fit on a cluster, fastest first."""

from __future__ import annotations

import argparse
import math
from typing import Any

from playbook._json import to_json
from playbook.commands.simulate import add_problem, job_of
from playbook.errors import ConfigError
from playbook.figures.units import format_seconds
from playbook.planning.flags import FRAMEWORKS, can_say, emit
from playbook.planning.search import Found, Problem, Result, Space, explain, search

EPILOG = """examples: playbook search --model llama3-70b --cluster h100-8 --gpus 32 --global-batch 512 --seq 4096
          playbook search --model mixtral-8x7b --cluster h100-8 --gpus 64 --global-batch 512 --emit megatron"""

#: Sizes that may be chosen among.
SIZES = ("tp", "cp", "pp", "ep", "etp", "vpp", "replicate")
#: What is chosen from where nothing is said, and is not all that can be.
ELSE = {
    "replicate": "1, and one by which shards fill a node",
    "etp": "1 where ranks have no more of experts by it",
}


def add(commands: Any) -> None:
    p = commands.add_parser(
        "search",
        help="all layouts that fit on a cluster, fastest first",
        description="Every way to spread a model over all GPUs of a cluster that fits, by predicted seconds.",
        epilog=EPILOG,
    )
    add_problem(p)
    flag = p.add_argument
    flag("--top", type=int, default=10, metavar="N", help="how many of them (default: 10)")
    for axis in SIZES:
        flag(
            f"--{axis}",
            metavar="1,2,…",
            help=f"sizes of {axis} to choose from (default: {ELSE.get(axis, 'all that can be')})",
        )
    flag("--micro-batches", metavar="1,2,…", help="micro-batches to choose from (default: all that can be)")
    for name, what in (("zero", "ZeRO stages"), ("recompute", "recomputation"), ("schedules", "schedules")):
        default = ",".join(map(str, getattr(Space, name)))
        more = "; full:N: of each stage as few blocks as fit" * (name == "recompute")
        flag(f"--{name}", default=default, metavar="…", help=f"{what} to choose from ({default}{more})")
    flag("--runs-in", metavar="FRAMEWORK", help="only layouts that megatron, torchtitan or deepspeed can run")
    flag("--emit", metavar="FRAMEWORK", help=f"write the best one as flags of {', '.join(FRAMEWORKS)}")
    flag("--json", action="store_true", help="print one JSON object on stdout")
    p.set_defaults(run=run)


def problem_of(args: argparse.Namespace) -> Problem:
    """The problem that the flags describe."""
    from playbook.planning.jobs import problem_of as problem

    job = job_of(args)
    for key, why in (("gpus", "how many GPUs there are"), ("global_batch", "the samples of a step")):
        if key not in job:
            raise ConfigError(f"{key} is missing: say {why}, with --{key.replace('_', '-')}")
    return problem(job)


def space_of(args: argparse.Namespace) -> Space:
    """What to choose from."""
    sizes = {name: _numbers(name, getattr(args, name)) for name in SIZES}
    return Space(
        **sizes,
        zero=_numbers("zero", args.zero) or (),
        recompute=tuple(filter(None, args.recompute.split(","))),
        schedules=tuple(filter(None, args.schedules.split(","))),
        micro_batch=_numbers("micro-batches", args.micro_batches),
    )


def _numbers(name: str, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{name} must be whole numbers such as 1,2,4, got {text!r}") from None


def run(args: argparse.Namespace) -> int:
    """Search and print."""
    for name in ("emit", "runs_in"):
        if (given := getattr(args, name)) and given not in FRAMEWORKS:
            raise ConfigError(f"{name} must be one of {', '.join(FRAMEWORKS)}, got {given!r}")
    problem, where = problem_of(args), args.runs_in
    result = search(problem, space_of(args), args.top, accept=lambda run: not where or can_say(where, run))
    if args.json:
        print(to_json(to_object(result)))
    elif args.emit:
        print(emit(args.emit, problem.run(result.best.layout)))
    else:
        print(_table(problem, result))
    return 0


def to_object(result: Result) -> dict[str, Any]:
    """The object of ``playbook search --json``."""
    return {
        "layouts": [
            {
                "layout": str(one.layout), "micro_batch": one.layout.micro_batch, "grad_acc": one.layout.grad_acc,
                "expected_regret": None if math.isnan(one.regret) else one.regret, **one.step.to_json(),
            }
            for one in result.found
        ],
        "candidates": result.candidates,
        "evaluated": result.evaluated,
    }  # fmt: skip


def _table(problem: Problem, result: Result) -> str:
    lines = [
        f"{problem.shape.name or 'model'} on {problem.gpus} × {problem.cluster.accelerator.title}, "
        f"{problem.global_batch} samples of {problem.seq} tokens: {result.candidates:,} layouts can run, "
        f"{result.evaluated:,} had to be simulated",
        f"{problem.reserve / 1e9:.1f} GB of each GPU's {problem.cluster.accelerator.memory_bytes / 1e9:.1f} GB stay free "
        "(--reserve 0 fills them)"
        if problem.reserve
        else "all memory may be filled",
        f"{'step':>9}{'80 % interval':>20}{'regret':>8}{'tokens/s/GPU':>14}{'MFU':>7}{'memory':>10}  layout",
    ]
    lines += [_row(one, result.best) for one in result.found]
    if len(result.found) > 1:
        lines += [
            "≈: its interval overlaps that of the first, which loses least if the calibration is a little wrong (regret)"
        ]
        lines += ["", explain(result.found[0], result.found[1])]
    return "\n".join(lines)


def _row(one: Found, best: Found) -> str:
    step = one.step
    least, most = step.interval
    alike = "≈" if one is not best and least < best.step.interval[1] and best.step.interval[0] < most else " "
    interval = f"{format_seconds(least)}–{format_seconds(most)}"
    regret = "" if math.isnan(one.regret) else f"{one.regret:.1%}"
    return (
        f"{format_seconds(step.seconds):>9}{interval:>19}{alike}{regret:>8}{step.tokens_per_s_per_gpu:14,.0f}{step.mfu:7.1%}"
        f"{step.needs / 1e9:7.1f} GB  {str(one.layout) or 'one device'}"
    )
