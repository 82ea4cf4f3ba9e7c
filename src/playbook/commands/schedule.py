"""``playbook schedule``: a pipeline schedule in time, as a picture in characters or as JSON."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playbook._json import to_json
from playbook.errors import ScheduleError

if TYPE_CHECKING:
    from playbook.schedules.actions import Schedule
    from playbook.schedules.timeline import Timeline, Times


def add(commands: Any) -> None:
    p = commands.add_parser(
        "schedule",
        help="a pipeline schedule: its bubble, its activations in flight, its timeline",
        description="Make a pipeline schedule by name, or read one from a file, and simulate it.",
        epilog="example: playbook schedule zb-h1 --stages 4 --microbatches 8 --times f=1,b=1,w=1,comm=0",
    )
    flag = p.add_argument
    flag("name", help="1f1b, zb-h1, … or a JSON file with a schedule of your own")
    flag("--stages", type=int, metavar="N", help="ranks of the pipeline (default: 4)")
    flag("--microbatches", type=int, metavar="N", help="micro-batches of a step (default: twice the stages)")
    flag("--vpp", type=int, default=1, metavar="N", help="chunks of the model on each rank (interleaved)")
    flag(
        "--run",
        dest="turn",
        type=int,
        metavar="N",
        help="micro-batches through a chunk at a time (interleaved; default: stages)",
    )
    flag(
        "--times",
        default="",
        metavar="f=1,b=1,w=1,comm=0",
        help="how long an action takes; f=1/1/2/1 by stage; also fb=",
    )
    flag("--limit", type=float, metavar="X", help="micro-batches whose activations fit (zb-1p, zb-2p)")
    flag(
        "--rest",
        type=float,
        default=1.0,
        metavar="X",
        help="the part of activations that W needs (zb-1p, zb-2p)",
    )
    flag("--json", action="store_true", help="print one JSON object on stdout")
    p.set_defaults(run=_schedule)


def _schedule(args: argparse.Namespace) -> int:
    from playbook.schedules.timeline import simulate

    times = parse_times(args.times)
    schedule = _made(args, times)
    line = simulate(schedule, times)
    print(to_json(summary(line)) if args.json else _said(line), end="\n")
    return 0


def _made(args: argparse.Namespace, times: Times) -> Schedule:
    from playbook.schedules.actions import Schedule
    from playbook.schedules.catalogue import make
    from playbook.schedules.validate import validate

    path = Path(args.name)
    if path.suffix == ".json":
        try:
            schedule = Schedule.from_json(json.loads(path.read_text()))
        except (OSError, ValueError) as error:
            if isinstance(error, ScheduleError):
                raise
            raise ScheduleError(f"{path} is no schedule: {error}") from error
        validate(schedule)
        return schedule
    stages = 4 if args.stages is None else args.stages
    microbatches = 2 * stages if args.microbatches is None else args.microbatches
    return make(
        args.name, stages, microbatches, args.vpp, times, run=args.turn, limit=args.limit, rest=args.rest
    )


def parse_times(text: str) -> Times:
    """``f=1,b=1/1/2,w=1,comm=0.1`` as `Times`. Raises ScheduleError for what is no time."""
    from playbook.schedules.timeline import Times

    found: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, _, value = part.partition("=")
        if key not in ("f", "b", "w", "comm", "fb") or key in found:
            raise ScheduleError(f"times has {part!r}, but must be f=, b=, w=, comm= or fb=, each once")
        try:
            numbers = [float(n) for n in value.split("/")]
        except ValueError:
            numbers = [-1.0]
        if not all(0 <= n < float("inf") for n in numbers) or (len(numbers) > 1 and key in ("comm", "fb")):
            raise ScheduleError(
                f"times has {part!r}, but a time is a number of at least 0 (f, b, w: one, or one by stage)"
            )
        found[key] = numbers[0] if len(numbers) == 1 else tuple(numbers)
    return Times(**found)


def summary(line: Timeline) -> dict[str, Any]:
    """The object of ``--json``."""
    return {
        "schedule": line.schedule.name,
        "makespan": line.makespan,
        "span": line.span,
        "ideal": line.ideal,
        "bubble_fraction": line.bubble_fraction,
        "bubble_fraction_span": line.bubble_fraction_span,
        "bubble_ratio": line.bubble_ratio,
        "peak_in_flight": [line.peak_in_flight(rank) for rank in range(len(line.ranks))],
        "ranks": [
            [
                {
                    "op": s.action.op,
                    "stage": s.action.stage,
                    "microbatch": s.action.microbatch,
                    "start": s.start,
                    "end": s.end,
                }
                for s in slots
            ]
            for slots in line.ranks
        ],
    }


def _said(line: Timeline) -> str:
    peaks = [line.peak_in_flight(rank) for rank in range(len(line.ranks))]
    return (
        f"{line.schedule.name}: makespan {line.makespan:g}, of which the busiest rank waits {line.bubble_fraction:.1%} "
        f"({line.bubble_fraction_span:.1%} if steps overlap)\n"
        f"micro-batches in flight at most, by rank: {', '.join(map(str, peaks))}"
    )
