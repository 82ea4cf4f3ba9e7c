"""``playbook train``: train a model on text."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from playbook._checks import check_int, check_positive
from playbook._interrupt import raise_again
from playbook._json import to_json
from playbook.commands.flags import add_fields, layout_of, named, read_fields, say
from playbook.errors import ConfigError
from playbook.layout import Layout
from playbook.planning.jobs import trained_parameters
from playbook.shapes import ModelShape, load
from playbook.training.config import TrainConfig

if TYPE_CHECKING:
    from playbook.commands.training import Outcome
    from playbook.training.saving import Saving

#: Flags of a layout: its schedule, and the options of its techniques.
TECHNIQUES = ("schedule", *Layout().options)
#: What the layout's text may say as well as a flag of the run.
BOTH = ("micro_batch", "recompute")
#: What sysexits.h says of a command that is to be tried again.
EX_TEMPFAIL = 75


def add(commands: Any) -> None:
    p = commands.add_parser(
        "train",
        help="train a model on text",
        description="Train a transformer on text, on one device or on the ranks of a layout. With --checkpoint, SIGTERM "
        "and SIGUSR1 have it save and leave after the step that it is at, with status 75 (under torchrun 0, which takes "
        "others for failures); --resume goes on from there.",
    )
    add = p.add_argument
    add("--model", default="tiny", metavar="M", help="preset, TOML, config.json or inline JSON")
    add_fields(p, ModelShape)
    add("--data", metavar="FILE", help="any text file (default: Python's own documentation)")
    add(
        "--layout",
        default="",
        metavar="dp=4,zero=2",
        help="ranks and how they share the work; they are launched here unless torchrun has",
    )
    add_fields(p, TrainConfig)
    add_fields(p, Layout, TECHNIQUES)
    add("--log", action="append", metavar="PATH", help="*.jsonl, *.csv or a TensorBoard folder; repeatable")
    add("--checkpoint", metavar="DIR", help="save checkpoints there, which any layout can go on from")
    add("--every", type=int, metavar="N", help="steps between checkpoints (default: the last step alone)")
    add("--keep", type=int, metavar="K", help="keep the newest so many (default: all)")
    add("--async", dest="background", action="store_true", help="write checkpoints while training goes on")
    add("--resume", action="store_true", help="go on from the newest whole checkpoint in DIR, if any")
    add("--max-restarts", type=int, default=0, metavar="N", help="how often ranks begin again after failures")
    add("--timeout", type=float, default=600.0, metavar="S", help="seconds that a rank waits for others")
    add(
        "--elastic",
        action="store_true",
        help="under torchrun: take dp from the ranks that there are, which a restart may have changed",
    )
    add(
        "--live-recovery",
        action="store_true",
        help="replicas (of replicate, or without ZeRO of dp) are fault domains: where one dies the others go on, and new "
        "ranks in its place get weights and moments from a peer",
    )
    add(
        "--on-spike",
        choices=("skip", "rewind", "stop"),
        help="what to do at a step whose loss or gradient norm is far above those before, or no number: skip it, go back "
        "to the newest checkpoint and pass over the batches since, or stop (default: make it)",
    )
    add(
        "--check-replicas",
        type=int,
        metavar="N",
        help="every N steps, and before each checkpoint, compare the weights of ranks that should have the same",
    )
    add(
        "--watch-ranks",
        type=int,
        metavar="N",
        help="every N steps, record what each rank computes, and name one that takes far longer than others (without pp)",
    )
    add("--quiet", action="store_true", help="no progress bar")
    add("--json", action="store_true", help="print one JSON object on stdout")
    p.set_defaults(run=_train)


def _train(args: argparse.Namespace) -> int:
    # Everything cheap is checked before torch is imported, so that a typing error is answered at once.
    size = os.environ.get("WORLD_SIZE")
    if args.elastic and size:
        args.layout = _as_many(args.layout, int(size))
    shape, config = prepared(args)
    if size is not None and size != str(config.layout.world_size):
        raise ConfigError(
            f"{size} ranks were launched, but the layout has {config.layout.world_size}: launch as many"
        )
    return _run(args, shape, config)


def _as_many(text: str, ranks: int) -> str:
    """The layout of this text, with the dp that makes it one of so many ranks."""
    layout = Layout.parse(text)
    one = layout.cp * layout.tp * layout.pp
    if ranks % one:
        raise ConfigError(
            f"{ranks} ranks were launched, but each replica of the layout has {one}: launch a multiple"
        )
    others = [part for part in text.split(",") if part.strip() and part.partition("=")[0].strip() != "dp"]
    return ",".join([f"dp={ranks // one}", *others])


def prepared(args: argparse.Namespace) -> tuple[ModelShape, TrainConfig]:
    """The model and the configuration of these flags. Raises PlaybookError for what cannot run, without torch."""
    shape, layout = load(args.model, args.train), layout_of(args, (*TECHNIQUES, *BOTH))
    given = read_fields(args, TrainConfig)
    given |= {name: getattr(layout, name) for name in BOTH if name in named(args)}
    config = TrainConfig(layout=layout, **given)
    config.layout.check(shape, seq=config.seq)
    return shape, config


def _run(args: argparse.Namespace, shape: ModelShape, config: TrainConfig) -> int:
    from playbook import launch

    if config.layout.world_size > 1 and "RANK" not in os.environ:
        launch.prepare()  # it imports torch while this process does
    from playbook.commands.live import check_live, train_live
    from playbook.commands.training import Run, check, launched, train_here, train_on_ranks, train_rank
    from playbook.launch.logs import check_new

    first = os.environ.get("RANK", "0") == "0"
    saving = _saving(args)
    looks = {name: getattr(args, name) for name in ("on_spike", "check_replicas", "watch_ranks")}
    for name in ("check_replicas", "watch_ranks"):
        if looks[name] is not None:
            check_int(name, looks[name], ConfigError)
    if args.on_spike == "rewind" and saving is None:
        raise ConfigError("on_spike is 'rewind', but there is no checkpoint folder: give --checkpoint DIR")
    run = Run(shape, config, args.data, progress=not args.quiet, watch=_LossWatch, saving=saving, **looks)
    if args.live_recovery:
        check_live(run)
    if args.timeout is not None:
        run = dataclasses.replace(run, patience=check_positive("timeout", args.timeout, ConfigError))
    corpus, device = check(run)
    if first and not args.resume:
        for log in args.log or ():
            check_new(log)
    if first:
        logs = tuple(args.log or [_default_log(shape.name)])
        ranks = config.layout.world_size
        where = f"{ranks} ranks ({config.layout.of_step()}), {device}" if ranks > 1 else device
        learn = f", of which {trained_parameters(shape):,} learn," if shape.train != "full" else ""
        text = (
            f"{shape.num_parameters:,} parameters{learn} on {where}, {len(corpus):,} tokens of {corpus.name}"
        )
        notes = _padding(config.layout, shape, config.seq)
        if config.kernels == "fused" and str(device).startswith("cpu"):
            notes.append("on a CPU fused kernels are interpreted, program by program: take few tokens")
        text += "".join(f"\nnote: {note}" for note in notes)
        if not args.log:
            text += f"\nlog: {logs[0]}"
        run = dataclasses.replace(run, logs=logs, announcement=text)
    raise_again()
    if launched():
        outcome = train_rank(run)
    elif config.layout.world_size == 1:
        outcome = train_here(run)
    else:
        try:
            outcome = train_live(run) if args.live_recovery else train_on_ranks(run, args.max_restarts)
        except launch.RankError as error:
            print(f"playbook train: {error}", file=sys.stderr)
            return 1
    return _report(args, outcome) if first else 0


def _padding(layout: Layout, shape: ModelShape, seq: int) -> list[str]:
    """What is made larger so that it can be sharded evenly, a sentence each."""
    said, padded = [], layout.padded(seq)
    if padded != seq:
        why = [
            f"cp={layout.cp} ranks in a zigzag" if layout.cp > 1 else "",
            f"tp={layout.tp} ranks with sp" if layout.sp else "",
        ]
        said.append(
            f"samples of {seq} tokens are padded to {padded}, to divide over {' and '.join(filter(None, why))}"
        )
    words = -(-shape.vocab // layout.tp) * layout.tp
    if words != shape.vocab:
        said.append(
            f"the vocabulary of {shape.vocab} is padded to {words}, to divide over tp={layout.tp} ranks"
        )
    return said


def _saving(args: argparse.Namespace) -> Saving | None:
    """When checkpoints are made. Raises ConfigError for flags that want a folder without --checkpoint."""
    from playbook.training.saving import Saving

    check_int("max_restarts", args.max_restarts, ConfigError, least=0)
    for field in ("every", "keep", "background", "resume", "max_restarts"):
        if args.checkpoint is None and (value := getattr(args, field)):
            flag = "async" if field == "background" else field
            raise ConfigError(f"{flag} is {value}, but there is no checkpoint folder: give --checkpoint DIR")
    if args.checkpoint is None:
        return None
    every = args.steps if args.every is None else args.every
    return Saving(args.checkpoint, every, args.keep, args.background, args.resume, args.timeout)


class _LossWatch:
    """A log that writes nothing, but says once on stderr that the loss has stopped being a number."""

    def __init__(self) -> None:
        self.finite = True

    def start(self, header: dict[str, Any]) -> None:
        pass

    def step(self, record: dict[str, Any]) -> None:
        from tqdm.auto import tqdm

        if self.finite and not math.isfinite(record["loss"]):
            self.finite = False
            # Written above the progress bar, if there is one.
            tqdm.write(
                f"the loss became {record['loss']}, which is no finite number, at step {record['step']}: "
                "try a smaller --lr, or --grad-clip 1",
                file=sys.stderr,
            )

    def close(self, outcome: str) -> None:
        pass


def _report(args: argparse.Namespace, outcome: Outcome) -> int:
    """Print what the run gave: JSON on stdout, or a sentence on stderr."""
    results, peak = outcome.results, max(outcome.peak_bytes, default=0)
    seconds = sum(r.seconds for r in results[1:]) or sum(r.seconds for r in results)
    tokens = sum(r.tokens for r in results[1:]) or sum(r.tokens for r in results)
    last = [r.loss for r in results[-20:]]
    if args.json:
        summary: dict[str, Any] = {
            "losses": [r.loss for r in results],
            "grad_norms": [r.grad_norm for r in results],
            "tokens_per_s": tokens / seconds if seconds else 0.0,
            "peak_bytes": outcome.peak_bytes,
            "bytes_sent": outcome.bytes_sent,
            "interrupted": outcome.interrupted,
            "first_step": outcome.first_step,
            "left": outcome.left,
            **outcome.recovered,
        }
        print(to_json(summary))
    ended = (
        "interrupted after"
        if outcome.interrupted
        else "saved and left, as asked, after"
        if outcome.left
        else "finished"
    )
    if last:
        where = " on the rank with the highest peak" if len(outcome.peak_bytes) > 1 else ""
        say(
            f"{ended} {len(results)} steps: mean loss of the "
            f"last {len(last)} is {sum(last) / len(last):.3f}, {tokens / seconds:,.0f} tokens/s"
            + (f", peak {peak / 2**20:,.0f} MiB{where}" if peak else "")  # ranks that were ended tell none
        )
    elif outcome.interrupted:
        say("interrupted before the first step")
    else:
        say(f"no step was left: {outcome.first_step} were done, and --steps is {args.steps}")
    if outcome.left:
        say(f"{args.steps - results[-1].step - 1} steps remain: the same command with --resume goes on")
        return (
            0 if "RANK" in os.environ else EX_TEMPFAIL
        )  # torchrun would take it for a failure, and start again
    return 130 if outcome.interrupted else 0


def _default_log(name: str) -> str:
    """A name of this process's own: another may start in the same second."""
    return f"runs/{name.replace('/', '-') or 'model'}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.jsonl"
