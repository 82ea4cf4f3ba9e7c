"""``playbook schedule``: a pipeline schedule in time, as a picture in characters or as JSON."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playbook.errors import ScheduleError

if TYPE_CHECKING:
    from playbook.schedules.actions import Schedule
    from playbook.schedules.solver.exact import Solved
    from playbook.schedules.timeline import PerStage, Slot, Timeline, Times

EPILOG = """examples: playbook schedule zb-h1 --stages 4 --microbatches 8 --times f=1,b=1,w=1,comm=0
          playbook schedule interleaved --stages 4 --microbatches 8 --vpp 2 --why
          playbook schedule exact --stages 4 --microbatches 8 --limit 4 --times f=2,b=2,w=1,comm=0.1 --time-limit 10
          playbook schedule mine.json --limit 3     where mine.json is like what --json prints"""


def add(commands: Any) -> None:
    p = commands.add_parser(
        "schedule",
        help="a pipeline schedule: its bubble, its activations in flight, its timeline",
        description="Make a pipeline schedule by name, or read one from a file, and simulate it.",
        epilog=EPILOG,
    )
    flag = p.add_argument
    flag("name", help="1f1b, zb-h1, zb-1.5p, exact, … or a JSON file with a schedule of your own")
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
        help="how long passes take; f=1/1/2/1 by stage of the model; fb= both at once; comm= latency of a message, "
        "transfer= how long it fills its link, overlap=no: the sender waits for it",
    )
    flag("--limit", metavar="X", help="micro-batches whose activations fit on a rank; 4/3/3/2 by rank")
    flag("--rest", default="1", metavar="X", help="the part of them that is kept from B to W (default: 1)")
    flag("--time-limit", type=float, default=10.0, metavar="S", help="seconds for the exact solver (10)")
    flag("--makespan", action="store_true", help="the solver makes the makespan short, not the span (exact)")
    flag("--why", action="store_true", help="for every gap, why the rank waits; what the step hangs on")
    flag("--json", action="store_true", help="print one JSON object on stdout")
    p.set_defaults(run=_schedule)


def _schedule(args: argparse.Namespace) -> int:
    from playbook.schedules.timeline import simulate

    times = parse_times(args.times)
    schedule, solved = _made(args, times)
    line = simulate(schedule, times)
    if args.json:
        found = summary(line) | ({"solver": _report(solved)} if solved else {})
        print(json.dumps(found | ({"idles": _idles(line)} if args.why else {}), allow_nan=False))
    else:
        print("\n".join(_said(args, line, solved)))
    return 0


def _made(args: argparse.Namespace, times: Times) -> tuple[Schedule, Solved | None]:
    from playbook.schedules.catalogue import EXACT, default_limit, make
    from playbook.schedules.solver.exact import solve
    from playbook.schedules.validate import validate

    limit = None if args.limit is None else _numbers("limit", args.limit)
    rest = _numbers("rest", args.rest)
    if Path(args.name).suffix == ".json":
        schedule = _read(args)
        validate(schedule, _of_stages(schedule, limit), rest)
        return schedule, None
    stages = 4 if args.stages is None else args.stages
    microbatches = 2 * stages if args.microbatches is None else args.microbatches
    if args.name in EXACT and args.vpp == 1 and args.turn is None:
        given = default_limit(args.name, stages) if limit is None else limit
        goal = {"time_limit": args.time_limit, "makespan": args.makespan}
        solved = solve(stages, microbatches, given, times, rest=rest, **goal)
        return solved.schedule, solved
    schedule = make(args.name, stages, microbatches, args.vpp, times, run=args.turn, limit=limit, rest=rest)
    if limit is not None:
        validate(schedule, _of_stages(schedule, limit), rest)
    return schedule, None


def _of_stages(schedule: Schedule, limit: PerStage | None) -> PerStage | None:
    """A limit counts a rank's part of the model; where that is several stages, each is less."""
    share = schedule.depth / max(1, len(schedule.ranks))
    if limit is None or isinstance(limit, int | float):
        return None if limit is None else limit * share
    return [one * share for one in limit]


def _read(args: argparse.Namespace) -> Schedule:
    from playbook.schedules.validate import schedule_of

    for flag, value in (("stages", args.stages), ("microbatches", args.microbatches), ("run", args.turn)):
        if value is not None:
            raise ScheduleError(f"{flag} is {value}, but {args.name} says it already: leave it out")
    try:
        data = json.loads(Path(args.name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ScheduleError(f"{args.name} is no schedule: {error}") from error
    return schedule_of(data)


def _numbers(name: str, text: str) -> PerStage:
    """``4`` or ``4/3/3/2``. Raises ScheduleError for what is no number of at least 0."""
    try:
        numbers = [float(n) for n in text.split("/")]
    except ValueError:
        numbers = [-1.0]
    if not all(0 <= n < float("inf") for n in numbers):
        raise ScheduleError(
            f"{name} is {text!r}, but must be a number of at least 0, or one by rank as in 4/3/3/2"
        )
    return numbers[0] if len(numbers) == 1 else numbers


def parse_times(text: str) -> Times:
    """``f=1,b=1/1/2,w=1,comm=0.1,overlap=no`` as `Times`. Raises ScheduleError for what is no time."""
    from playbook.schedules.timeline import Times

    found: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, _, value = (word.strip() for word in part.partition("="))
        if key not in ("f", "b", "w", "comm", "fb", "transfer", "overlap") or key in found:
            raise ScheduleError(
                f"times has {part!r}, but must be f=, b=, w=, comm=, fb=, transfer= or overlap=, each once"
            )
        found[key] = _yes(part, value) if key == "overlap" else _time(part, key, value)
    return Times(**found)


def _yes(part: str, value: str) -> bool:
    if value.lower() not in ("yes", "no", "true", "false", "1", "0"):
        raise ScheduleError(f"times has {part!r}, but overlap must be yes or no")
    return value.lower() in ("yes", "true", "1")


def _time(part: str, key: str, value: str) -> PerStage:
    try:
        numbers = [float(n) for n in value.split("/")]
    except ValueError:
        numbers = [-1.0]
    # No step takes longer than that in any unit, and sums of such numbers stay numbers.
    if not all(0 <= n <= 1e15 for n in numbers) or (len(numbers) > 1 and key not in ("f", "b", "w")):
        raise ScheduleError(
            f"times has {part!r}, but a time is a number from 0 to 1e15 (f, b, w: one, or one by stage as in 1/1/2/1)"
        )
    return numbers[0] if len(numbers) == 1 else tuple(numbers)


def summary(line: Timeline) -> dict[str, Any]:
    """The object of ``--json``: the numbers, and the schedule as a file may hold it, with the times of each action."""
    found = line.schedule.to_json()
    del found["ranks"]
    return {
        **found,
        **line.numbers(),
        "peak_in_flight": [line.peak_in_flight(rank) for rank in range(len(line.ranks))],
        "ranks": [
            [
                {"op": op, "stage": stage, "microbatch": microbatch, "start": start, "end": end}
                for (op, stage, microbatch), start, end, _, _ in slots
            ]
            for slots in line.ranks
        ],
    }


def _report(solved: Solved) -> dict[str, Any]:
    return {key: value for key, value in vars(solved).items() if key != "schedule"}


def _idles(line: Timeline) -> list[dict[str, Any]]:
    from playbook.schedules.explain import idles

    return [
        {"rank": i.rank, "start": i.start, "end": i.end, "cause": i.cause, "text": i.text}
        for i in idles(line)
    ]


def _said(args: argparse.Namespace, line: Timeline, solved: Solved | None) -> list[str]:
    from playbook.schedules.explain import CAUSES, bubble_by_cause, critical_path, idles

    schedule = line.schedule
    chunks = f", {schedule.chunks} stages on each" if schedule.chunks > 1 else ""
    ranks = "1 rank" if len(line.ranks) == 1 else f"{len(line.ranks)} ranks"
    microbatches = "1 micro-batch" if schedule.microbatches == 1 else f"{schedule.microbatches} micro-batches"
    said = [f"{schedule.name}: {ranks}{chunks}, {microbatches}"]
    said += picture(line, shutil.get_terminal_size((100, 24)).columns)
    said.append(
        f"makespan {line.makespan:.6g}, longest span of a rank {line.span:.6g}, work of the busiest {line.ideal:.6g}"
    )
    said.append(
        f"bubble {line.bubble_fraction:.2%} of the makespan; if steps overlap {line.bubble_fraction_span:.2%} of the span"
    )
    said += _on_paper(args, line)
    waits = {cause: time for cause, time in bubble_by_cause(line).items() if time > 0}
    if waits:
        told = ", ".join(f"{time:.6g} {cause} ({CAUSES[cause]})" for cause, time in waits.items())
        said.append(f"ranks wait, all together: {told}")
    said += _in_flight(args, line)
    if solved:
        said.append(f"solver: {solved.stopped} (heuristic {solved.heuristic:.6g}, {solved.seconds:.1f} s)")
    if args.why:
        said += [f"{i.start:10.6g} to {i.end:<10.6g} {i.cause:<13} {i.text}" for i in idles(line)]
        path = critical_path(line)
        said.append(f"the step hangs on these {len(path)} actions:")
        said += [f"{s.start:10.6g} to {s.end:<10.6g} {s.action}" for s in path]
    return said


def _in_flight(args: argparse.Namespace, line: Timeline) -> list[str]:
    """F to W; and what is less where B frees a part."""
    ranks, rest = range(len(line.ranks)), _numbers("rest", args.rest)
    what = "activations of a stage and micro-batch, at most at once, by rank"
    said = [f"{what}: {', '.join(f'{line.peak_in_flight(r):g}' for r in ranks)}"]
    if isinstance(rest, float) and rest != 1:
        parts = ", ".join(f"{line.peak_in_flight(r, 1, rest):g}" for r in ranks)
        said.append(f"if B frees all but {rest:g} of them: {parts}")
    return said


def _on_paper(args: argparse.Namespace, line: Timeline) -> list[str]:
    """The closed form, where there is one: for equal stages, messages that cost nothing and the usual limit."""
    from playbook.schedules.explain import bubble_on_paper

    schedule, times = line.schedule, line.times
    # DualPipeV's is written down for one of a rank's two stages, the others for all that a rank has.
    parts = 1 if args.name == "dualpipev" else schedule.depth // len(line.ranks)
    f, b, w = ([t * parts] if isinstance(t, int | float) else [] for t in (times.f, times.b, times.w))
    if args.name.endswith(".json") or args.limit is not None or not (f and b and w):
        return []
    fb = None if times.fb is None else times.fb * parts
    told = bubble_on_paper(args.name, len(line.ranks), schedule.microbatches, args.vpp, f[0], b[0], w[0], fb)
    if told is None:
        return []
    took = (line.span if told.of == "span" else line.makespan) - line.ideal
    return [f"bubble of the {told.of}, on paper: {told.text} = {told.time:.6g}; simulated: {took:.6g}"]


def picture(timeline: Timeline, width: int) -> list[str]:
    """Lines of at most ``width`` characters: actions by letter and micro-batch (where ranks have several stages: letter,
    stage, ":" and micro-batch), ``·`` where a rank waits, ``…`` where it goes on beyond the edge.

    Time is to scale: the shortest action has room for its label, unless it is far shorter than most.
    """
    several = timeline.schedule.chunks > 1
    cell = max(3, 2 + len(str(timeline.schedule.microbatches - 1)) + 2 * several)  # of the shortest action
    head = len(f"rank {len(timeline.ranks) - 1} ")
    room = max(width - head, 2 * cell)
    lengths = sorted(s.end - s.start for slots in timeline.ranks for s in slots[:200] if s.end > s.start)
    if not lengths:
        return []
    scale = cell / max(lengths[0], lengths[len(lengths) // 2] / 3)
    return [
        f"rank {rank}".ljust(head) + _line(slots, scale, room, several)
        for rank, slots in enumerate(timeline.ranks)
    ]


def _line(slots: tuple[Slot, ...], scale: float, room: int, several: bool) -> str:
    line, i = "", 0
    while i < len(slots) and len(line) <= room:
        slot, beside = slots[i], slots[i + 1 : i + 2]
        label = _label(slot, several)
        if beside and beside[0][1:3] == slot[1:3] and slot.end > slot.start:
            label += "+" + _label(beside[0], several)
            i += 1
        line = line.ljust(min(round(slot.start * scale), room + 1), "·")
        length = min(round(slot.end * scale), room + 1) - len(line)
        if length > 0:
            line += label[: max(length - 1, 1)].ljust(length - 1, "-").ljust(length)
        i += 1
    return line.rstrip() if len(line) <= room else line[: room - 1] + "…"


def _label(slot: Slot, several: bool) -> str:
    op, stage, microbatch = slot.action
    return f"{op}{stage}:{microbatch}" if several else f"{op}{microbatch}"
