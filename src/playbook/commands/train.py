"""``playbook train``: train a model on text."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playbook._checks import check_int, check_positive
from playbook._interrupt import raise_again
from playbook._json import to_json
from playbook.commands.output import say
from playbook.errors import ConfigError

if TYPE_CHECKING:
    from playbook.commands.training import Outcome
    from playbook.layout import Layout
    from playbook.schedules.actions import Schedule
    from playbook.shapes import ModelShape
    from playbook.training.config import TrainConfig
    from playbook.training.saving import Saving

#: What sysexits.h says of a command that is to be tried again.
EX_TEMPFAIL = 75


def add(commands: Any) -> None:
    p = commands.add_parser(
        "train",
        help="train a model on text",
        description="Train a transformer on text, on one device or on the ranks of a layout. With --checkpoint, SIGTERM "
        "and SIGUSR1 have it save and leave after the step that it is at, with status 75 (under torchrun 0, which takes "
        "others for failures); --resume goes on from there.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = p.add_argument
    add("--model", default="tiny", metavar="M", help="preset, TOML, config.json or inline JSON")
    add("--data", metavar="FILE", help="any text file (default: Python's own documentation)")
    add(
        "--layout",
        default="",
        metavar="dp=4,zero=2",
        help="ranks and how they share the work; they are launched here unless torchrun has",
    )
    add("--steps", type=int, default=200, help="optimizer steps")
    add("--global-batch", type=int, default=16, metavar="N", help="samples per optimizer step")
    add(
        "--micro-batch",
        type=int,
        metavar="N",
        help="samples per forward pass (default: the layout's, or all of a rank; in a pipeline 1)",
    )
    add("--seq", type=int, default=256, metavar="N", help="tokens per sample")
    add("--lr", type=float, default=1e-3, help="peak learning rate")
    add("--warmup", type=int, metavar="N", help="warm-up steps (default: a twentieth of the steps)")
    add("--weight-decay", type=float, default=0.1, help="AdamW's decay of matrices")
    add(
        "--grad-clip",
        type=float,
        default=1.0,
        metavar="X",
        help="largest gradient norm; 0 turns clipping off",
    )
    add("--dtype", default="float32", help="float32, bfloat16 or float16: what matrix products run in")
    add(
        "--weights",
        default="float32",
        help="float32, or the 16 bits of --dtype with fp32 masters in the optimizer",
    )
    add(
        "--loss-scale",
        type=_scale,
        default="dynamic",
        metavar="S",
        help="what the loss is multiplied by in float16: dynamic, or a number",
    )
    add("--initial-loss-scale", type=float, default=2.0**16, metavar="S", help="the first dynamic scale")
    add(
        "--loss-scale-window",
        type=int,
        default=2000,
        metavar="N",
        help="steps in a row without overflow after which a dynamic scale is doubled",
    )
    add(
        "--moments",
        default="fp32",
        help="fp32, bf16 or fp8 (E4M3 and FP16): what AdamW's moments are kept in",
    )
    add(
        "--masters", default="fp32", help="fp32, fp16 or bf16: what the masters of 16-bit weights are kept in"
    )
    add("--compile", action="store_true", help="hand each block to torch.compile")
    add("--offload", action="store_true", help="keep masters and moments in CPU memory")
    add(
        "--data-parallel",
        default="bucketed",
        metavar="HOW",
        help="naive, overlapped or bucketed (all-reduce says this, too): how replicas add gradients; or what sends less: "
        "local:H=16, slowmo:H=16 and diloco:H=16 (H steps alone, then one average), gossip:TOPOLOGY (an average with "
        "neighbours), powersgd:r=4 and topk:0.01 (gradients compressed, with error feedback); with ,start=K each adds up "
        "whole gradients for K steps first",
    )
    add("--bucket-mb", type=int, default=25, metavar="N", help="size of a gradient bucket, in MiB")
    add(
        "--context",
        default="ring",
        help="ring, gather or ulysses: how attention reaches tokens of other cp ranks",
    )
    add(
        "--placement",
        help="contiguous or zigzag: the tokens of each cp rank (default: zigzag, for ulysses contiguous)",
    )
    add(
        "--tensor-overlap",
        default="async",
        help="none, async or chunked (with sp): how tp messages hide behind matrix products",
    )
    add(
        "--dispatch",
        default="all-to-all",
        help="gather, all-to-all or two-step: how tokens reach experts of other ep ranks",
    )
    add(
        "--node",
        type=int,
        metavar="N",
        help="for two steps: how many neighbours of an ep group are in a node",
    )
    add(
        "--schedule",
        metavar="1f1b",
        help="order of passes in a pipeline (pp above 1), by name as in `playbook schedule`, or a JSON file as its "
        "--json prints (default: the layout's)",
    )
    add("--stage-layers", metavar="3,5", help="layers of each pipeline stage (default: as even as can be)")
    add("--recompute", help="none, selective or full (default: the layout's, none)")
    add("--attention", default="sdpa", help="sdpa (fused kernels) or reference (the formula written out)")
    add(
        "--kernels",
        default="torch",
        help="torch or fused: norms, activations, attention, loss by the book's kernels",
    )
    add(
        "--fp8",
        default="",
        metavar="RECIPE",
        help="delayed, tensorwise, rowwise, blockwise or mxfp8: products of linear layers in FP8",
    )
    add("--device", help="cpu or cuda (default: cuda when there is one)")
    add("--seed", type=int, default=0, help="of weights, data order and dropout")
    add("--log", action="append", metavar="PATH", help="*.jsonl, *.csv or a TensorBoard folder; repeatable")
    add("--checkpoint", metavar="DIR", help="save checkpoints there, which any layout can go on from")
    add(
        "--every",
        type=int,
        metavar="N",
        help="steps from one checkpoint to the next (default: the last step alone)",
    )
    add("--keep", type=int, metavar="K", help="keep the newest so many (default: all)")
    add("--async", dest="background", action="store_true", help="write checkpoints while training goes on")
    add(
        "--resume", action="store_true", help="go on from the newest whole checkpoint in DIR, if there is one"
    )
    add(
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help="how often ranks begin again after one has failed",
    )
    add(
        "--timeout",
        type=float,
        default=600.0,
        metavar="S",
        help="seconds that a rank waits for others before it gives up",
    )
    add(
        "--elastic",
        action="store_true",
        help="under torchrun: take dp from the ranks that there are, which a restart may have changed",
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


def _scale(text: str) -> float | str:
    """A number, or a word that the config knows or refuses."""
    try:
        return float(text)
    except ValueError:
        return text


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
    from playbook.layout import Layout

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
    from playbook.layout import Layout
    from playbook.layout.options import ParallelOptions
    from playbook.layout.stages import parse_stage_layers
    from playbook.shapes import load
    from playbook.training.config import TrainConfig

    shape = load(args.model)
    layout, schedule = _scheduled(args, Layout.parse(args.layout))
    layout.check(shape)
    _take_from_layout(args, layout)
    techniques = ("data_parallel", "context", "placement", "tensor_overlap", "dispatch", "node")
    parallel = ParallelOptions(
        bucket=check_int("bucket_mb", args.bucket_mb, ConfigError) * 2**20,
        schedule=schedule,
        stage_layers=parse_stage_layers(args.stage_layers),
        **{name: getattr(args, name) for name in techniques},
    )
    fields = set(TrainConfig.__dataclass_fields__) - {"min_lr", "beta1", "beta2", "layout", "parallel"}
    given = {name: getattr(args, name) for name in fields}
    return shape, TrainConfig(layout=layout, parallel=parallel, **given)


def _scheduled(args: argparse.Namespace, layout: Layout) -> tuple[Layout, Schedule | None]:
    """The layout with the schedule of --schedule, or the schedule of a file."""
    from playbook.schedules.actions import Schedule

    name = args.schedule
    if name is None:
        return layout, None
    if layout.pp == 1:
        raise ConfigError(f"schedule is {name!r}, but the layout has no pipeline: give it pp=2 or more")
    if "schedule" in _named(args) and name != layout.schedule:
        raise ConfigError(f"schedule is {name!r}, but {layout.schedule!r} in the layout: give it once")
    if not name.endswith(".json"):
        return layout.replace(schedule=name), None
    try:
        data = json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"schedule {name} cannot be read: {error}") from error
    return layout, Schedule.from_json(data)


def _named(args: argparse.Namespace) -> set[str]:
    """Fields that the layout's text names."""
    return {part.partition("=")[0].strip() for part in args.layout.split(",")}


def _take_from_layout(args: argparse.Namespace, layout: Layout) -> None:
    """Fields that the layout's text names and that are flags as well: given once, or twice the same."""
    for field in {"micro_batch", "recompute"} & _named(args):
        flag, value = getattr(args, field), getattr(layout, field)
        if flag not in (None, value):
            raise ConfigError(f"{field} is {flag!r}, but {value!r} in the layout: give it once")
        setattr(args, field, value)
    args.recompute = args.recompute or "none"


def _run(args: argparse.Namespace, shape: ModelShape, config: TrainConfig) -> int:
    from playbook import launch

    if config.layout.world_size > 1 and "RANK" not in os.environ:
        launch.prepare()  # it imports torch while this process does
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
        text = f"{shape.num_parameters:,} parameters on {where}, {len(corpus):,} tokens of {corpus.name}"
        notes = list(config.layout.padding(shape, config.seq))
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
            outcome = train_on_ranks(run, args.max_restarts)
        except launch.RankError as error:
            print(f"playbook train: {error}", file=sys.stderr)
            return 1
    return _report(args, outcome) if first else 0


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
        say(
            f"{ended} {len(results)} steps: mean loss of the "
            f"last {len(last)} is {sum(last) / len(last):.3f}, {tokens / seconds:,.0f} tokens/s, "
            f"peak {peak / 2**20:,.0f} MiB"
            + (" on the rank with the highest peak" if len(outcome.peak_bytes) > 1 else "")
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
