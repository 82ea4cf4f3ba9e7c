"""``playbook bench``: ours beside the best public peer, and predictions beside measurements."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from playbook._checks import check_int, check_positive
from playbook._json import to_json
from playbook.errors import ConfigError


def add(commands: Any) -> None:
    p = commands.add_parser(
        "bench",
        help="measure ours against the best public peer, side by side",
        description="Alternate ours and a peer in one run and print the ratio of medians (below 1: ours is faster).",
    )
    kinds = p.add_subparsers(dest="what", required=True, metavar="WHAT")
    _add_train(kinds)
    _add_trainer(kinds)
    _add_memory(kinds)
    _add_checkpoint(kinds)
    _add_collectives(kinds)
    _add_parallel(kinds)
    _add_pipeline(kinds)
    _add_experts(kinds)
    _add_communication(kinds)
    _add_final_losses(kinds)
    _add_kernels(kinds)
    _add_fp8(kinds)
    _add_faults(kinds)


def add_kind(kinds: Any, name: str, text: str) -> argparse.ArgumentParser:
    """A subcommand of ``bench`` with the flags that all of them take."""
    p = kinds.add_parser(name, help=text, description=text)
    p.add_argument("--device", help="cpu or cuda (default: cuda when there is one)")
    p.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    p.add_argument("--record", type=Path, metavar="FILE", help="write the JSON to a file as well")
    return p


def finish(args: argparse.Namespace, result: dict[str, Any], report: str) -> int:
    """Print what was asked for, and record it."""
    record(args, result)
    print(to_json(result) if args.json else report)
    return 0


def record(args: argparse.Namespace, result: dict[str, Any]) -> None:
    """Write the result down, if that was asked for."""
    if args.record:
        args.record.parent.mkdir(parents=True, exist_ok=True)
        args.record.write_text(to_json(result, indent=1) + "\n", encoding="utf-8")


def _add_train(kinds: Any) -> None:
    p = add_kind(kinds, "train", "one model's forward and backward, and recomputation")
    p.add_argument("--model", default="tiny", metavar="M", help="preset, TOML, config.json or inline JSON")
    p.add_argument("--micro-batch", type=int, default=4, metavar="N", help="samples")
    p.add_argument("--seq", type=int, default=256, metavar="N", help="tokens per sample")
    p.add_argument("--repeats", type=int, default=9, metavar="N", help="turns; the median counts")
    p.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"], help="of all weights")
    p.set_defaults(run=_train)


def _train(args: argparse.Namespace) -> int:
    from playbook.shapes import load

    shape = load(args.model)
    _check_sizes(args, shape, "micro_batch", "seq", "repeats")

    import torch

    from playbook.bench.train import bench_train, report_train
    from playbook.training.checks import check_device
    from playbook.training.trainer import default_device

    device = args.device or default_device()
    check_device(shape, device)
    dtype = getattr(torch, args.dtype)
    result = bench_train(shape, args.micro_batch, args.seq, args.repeats, device, dtype)
    return finish(args, result, report_train(result))


def _add_trainer(kinds: Any) -> None:
    p = add_kind(kinds, "trainer", "tokens per second, MFU and memory of training on one device")
    p.add_argument("--model", default="tiny", metavar="M", help="preset, TOML, config.json or inline JSON")
    p.add_argument("--micro-batch", type=int, default=2, metavar="N", help="samples")
    p.add_argument("--seq", type=int, default=256, metavar="N", help="tokens per sample")
    p.add_argument("--grad-acc", type=int, default=1, metavar="N", help="micro-batches per step")
    p.add_argument("--steps", type=int, default=10, metavar="N", help="timed steps; the median counts")
    p.add_argument("--kernels", default="torch", choices=["torch", "fused"], help="between matrix products")
    p.set_defaults(run=_trainer)


def _trainer(args: argparse.Namespace) -> int:
    from playbook.shapes import load

    shape = load(args.model)
    _check_sizes(args, shape, "micro_batch", "seq", "grad_acc", "steps")

    from playbook.bench.trainer import bench_trainer, report_trainer
    from playbook.training.trainer import default_device

    device = args.device or default_device()
    result = bench_trainer(shape, args.micro_batch, args.seq, args.grad_acc, args.steps, device, args.kernels)
    return finish(args, result, report_trainer(result))


def _add_memory(kinds: Any) -> None:
    p = add_kind(kinds, "memory", "predicted against measured peak of training steps")
    p.set_defaults(run=_memory)


def _memory(args: argparse.Namespace) -> int:
    from playbook.bench.memory import CASES, bench_memory, report_memory
    from playbook.shapes import load
    from playbook.training.checks import check_device
    from playbook.training.trainer import default_device

    device = args.device or default_device()
    kind = device if device in CASES else "cpu"
    check_device(max((load(case.model) for case in CASES[kind]), key=lambda s: s.num_parameters), device)
    result = bench_memory(device)
    return finish(args, result, report_memory(result))


def _add_checkpoint(kinds: Any) -> None:
    p = add_kind(
        kinds, "checkpoint", "saving and loading a training state, beside torch.save and PyTorch's checkpoint"
    )
    p.add_argument(
        "--model", default="", metavar="M", help="preset or JSON (default: a state of about 100 MB)"
    )
    p.add_argument("--folder", metavar="DIR", help="where to write (default: where temporary files are)")
    p.add_argument("--repeats", type=int, default=9, metavar="N", help="turns; the median counts")
    p.set_defaults(run=_checkpoint)


def _checkpoint(args: argparse.Namespace) -> int:
    from playbook.shapes import load

    shape = load(
        args.model or {"layers": 8, "hidden": 288, "heads": 8, "ffn": 1152, "vocab": 256, "max_seq": 64}
    )
    _check_sizes(args, shape, "repeats")

    from playbook.bench.checkpoint import bench_checkpoint, report_checkpoint
    from playbook.training.trainer import default_device

    result = bench_checkpoint(shape, args.repeats, args.device or default_device(), args.folder)
    return finish(args, result, report_checkpoint(result))


def _add_faults(kinds: Any) -> None:
    p = add_kind(kinds, "faults", "short training runs that something happens to, and what comes of each")
    p.add_argument("--count", type=int, default=1000, metavar="N", help="trials")
    p.add_argument("--seed", type=int, default=0, help="of layouts, faults and moments")
    p.add_argument("--start", type=int, default=0, metavar="N", help="number of the first trial")
    p.add_argument("--only", metavar="N,…", help="the trials of these numbers alone")
    p.add_argument("--jobs", type=int, default=2, metavar="N", help="trials at a time")
    p.add_argument(
        "--limit", type=float, default=120.0, metavar="S", help="seconds after which a run is said to hang"
    )
    p.set_defaults(run=_faults)


def _faults(args: argparse.Namespace) -> int:
    limit = check_positive("limit", args.limit, ConfigError)
    for field, least in {"count": 1, "start": 0, "jobs": 1}.items():
        check_int(field, getattr(args, field), ConfigError, least=least)
    if args.device not in (None, "cpu"):
        raise ConfigError(f"device is {args.device!r}, but faults are put into ranks on cpu")

    from playbook.bench.faults import bench_faults, report_faults

    indices = list(range(args.start, args.start + args.count))
    if args.only is not None:
        indices = [_number("only", text) for text in args.only.split(",")]
    result: dict[str, Any] = {}
    for result in bench_faults(args.seed, indices, args.jobs, limit):
        record(args, result)  # what ends this run loses nothing that it has found
    return finish(args, result, report_faults(result))


def _add_collectives(kinds: Any) -> None:
    p = add_kind(
        kinds,
        "collectives",
        "collectives from send and receive against the backend's, and the cost of talking",
    )
    p.add_argument("--ranks", default="2,4,8", metavar="N,…", help="numbers of ranks")
    p.add_argument(
        "--sizes", metavar="B,…", help="bytes of the all-reduced vector, as 1K,4M (default: 1K to 64M)"
    )
    p.add_argument("--repeats", type=int, default=7, metavar="N", help="turns; the median counts")
    p.set_defaults(run=_collectives)


def _collectives(args: argparse.Namespace) -> int:
    ranks = [_number("ranks", text) for text in args.ranks.split(",")]
    from playbook.bench.collectives import SIZES, bench_collectives, report_collectives

    sizes = [_number("sizes", text) for text in args.sizes.split(",")] if args.sizes else SIZES
    result = bench_collectives(ranks, sizes, args.repeats, args.device or _device_of_ranks(max(ranks)))
    return finish(args, result, report_collectives(result))


def _add_parallel(kinds: Any) -> None:
    p = add_kind(
        kinds,
        "parallel",
        "training steps on many ranks against torch's DDP, ZeRO, FSDP2, DTensor and attention",
    )
    p.add_argument("--ranks", type=int, default=4, metavar="N", help="ranks (two around the ring)")
    p.add_argument(
        "--only",
        metavar="G,…",
        help="groups of contenders: data, tensor, context, ring (default: all of them)",
    )
    p.add_argument("--model", default="tiny", metavar="M", help="preset, TOML, config.json or inline JSON")
    p.add_argument("--micro-batch", type=int, default=1, metavar="N", help="samples")
    p.add_argument(
        "--seq", type=int, default=256, metavar="N", help="tokens per sample; context: of one rank"
    )
    p.add_argument("--grad-acc", type=int, default=1, metavar="N", help="micro-batches per step on each rank")
    p.add_argument(
        "--long-seq", type=int, default=8192, metavar="N", help="tokens of two ranks around a ring"
    )
    p.add_argument(
        "--steps", type=int, default=16, metavar="N", help="timed steps of each; the median counts"
    )
    p.set_defaults(run=_parallel)


def _parallel(args: argparse.Namespace) -> int:
    from playbook.shapes import load

    shape = load(args.model)
    _check_sizes(args, shape, "micro_batch", "seq", "grad_acc", "long_seq", "steps")

    from playbook.bench.parallel import bench_parallel, report_parallel
    from playbook.bench.rounds import GROUPS
    from playbook.bench.turns import Work
    from playbook.training.checks import check_device

    device = args.device or _device_of_ranks(args.ranks)
    check_device(shape, device, args.ranks)
    work = Work(shape, args.micro_batch, args.seq, args.grad_acc)
    only = args.only.split(",") if args.only else tuple(GROUPS)
    result = bench_parallel(work, args.ranks, args.steps, device, only, args.long_seq)
    return finish(args, result, report_parallel(result))


def _add_pipeline(kinds: Any) -> None:
    p = add_kind(kinds, "pipeline", "pipeline schedules on many ranks against torch.distributed.pipelining")
    p.add_argument("--ranks", type=int, default=4, metavar="N", help="ranks")
    p.add_argument(
        "--only",
        metavar="S,…",
        help="schedules: afab, 1f1b, interleaved, zb-v, dualpipev, naive (default: all of them)",
    )
    p.add_argument("--model", default="tiny", metavar="M", help="preset, TOML, config.json or inline JSON")
    p.add_argument(
        "--layers",
        type=int,
        metavar="N",
        help="layers, in place of the model's (default: 2 on each rank, at least)",
    )
    p.add_argument("--micro-batch", type=int, default=1, metavar="N", help="samples")
    p.add_argument("--seq", type=int, default=256, metavar="N", help="tokens per sample")
    p.add_argument(
        "--grad-acc", type=int, metavar="N", help="micro-batches per step (default: 2 for each rank)"
    )
    p.add_argument(
        "--launches", type=int, default=4, metavar="N", help="times that the ranks are started anew"
    )
    p.add_argument(
        "--steps", type=int, default=8, metavar="N", help="timed steps of each in a launch; the median counts"
    )
    p.set_defaults(run=_pipeline)


def _pipeline(args: argparse.Namespace) -> int:
    from playbook.shapes import load

    shape = load(args.model)
    args.layers = args.layers or max(shape.layers, 2 * args.ranks)
    args.grad_acc = 2 * args.ranks if args.grad_acc is None else args.grad_acc
    _check_sizes(args, shape, "layers", "micro_batch", "seq", "grad_acc", "steps", "launches")

    from playbook.bench.pipeline import bench_pipeline, report_pipeline
    from playbook.bench.turns import Work
    from playbook.training.checks import check_device

    shape = shape.replace(layers=args.layers)
    device = args.device or _device_of_ranks(args.ranks)
    check_device(shape, device, args.ranks)
    work = Work(shape, args.micro_batch, args.seq, args.grad_acc, alike=True)
    only = args.only.split(",") if args.only else None
    result = bench_pipeline(work, args.ranks, args.steps, device, only, args.launches)
    return finish(args, result, report_pipeline(result))


def _add_experts(kinds: Any) -> None:
    p = add_kind(
        kinds,
        "experts",
        "a mixture of experts against transformers', and ways to spread experts over four ranks",
    )
    p.add_argument("--only", metavar="G,…", help="groups: layer, dispatch, layout (default: all of them)")
    p.add_argument("--tokens", default="512,2048", metavar="N,…", help="tokens of a layer on one process")
    p.add_argument(
        "--model",
        default="tiny-moe",
        metavar="M",
        help="preset, TOML, config.json or inline JSON; layout: what is trained",
    )
    p.add_argument("--seq", type=int, default=512, metavar="N", help="tokens of each rank: one sample")
    _add_launches(p, "steps")
    p.set_defaults(run=_experts)


def _experts(args: argparse.Namespace) -> int:
    from playbook.shapes import load

    shape = load(args.model)
    _check_sizes(args, shape, "seq", "steps", "launches")
    tokens = [_number("tokens", text) for text in args.tokens.split(",")]

    from playbook.bench.experts import GROUPS, bench_experts, report_experts
    from playbook.bench.experts_peers import RANKS
    from playbook.training.checks import check_device

    device = args.device or _device_of_ranks(RANKS)
    check_device(shape, device, RANKS)
    only = args.only.split(",") if args.only else tuple(GROUPS)
    result = bench_experts(shape, tokens, args.seq, args.steps, device, only, args.launches)
    return finish(args, result, report_experts(result))


def _add_launches(p: Any, timed: str) -> None:
    """How often ranks are started, and what is timed in each of these launches."""
    p.add_argument(
        "--launches", type=int, default=3, metavar="N", help="times that the ranks are started anew"
    )
    p.add_argument(
        "--steps",
        type=int,
        default=12,
        metavar="N",
        help=f"timed {timed} of each in a launch; the median counts",
    )


def _add_communication(kinds: Any) -> None:
    p = add_kind(
        kinds, "communication", "PowerSGD and local steps against torch's hook of DDP and post-local SGD"
    )
    p.add_argument("--only", metavar="G,…", help="groups: powersgd, local (default: both)")
    p.add_argument("--ranks", default="2,4", metavar="N,…", help="numbers of ranks")
    p.add_argument(
        "--model", default="", metavar="M", help="preset or JSON (default: two layers as wide as GPT-2's)"
    )
    p.add_argument("--micro-batch", type=int, default=1, metavar="N", help="samples")
    p.add_argument("--seq", type=int, default=32, metavar="N", help="tokens per sample")
    p.add_argument("--rank", type=int, default=4, metavar="R", help="columns of PowerSGD's factors")
    p.add_argument("--period", type=int, default=4, metavar="H", help="local steps of a round")
    _add_launches(p, "turns")
    p.set_defaults(run=_communication)


def _communication(args: argparse.Namespace) -> int:
    from playbook.bench.communication import GROUPS, MODEL, bench_communication, report_communication
    from playbook.bench.turns import Work
    from playbook.shapes import load
    from playbook.training.checks import check_device

    shape = load(args.model or MODEL)
    _check_sizes(args, shape, "micro_batch", "seq", "rank", "period", "steps", "launches")
    ranks = [_number("ranks", text) for text in args.ranks.split(",")]
    device = args.device or _device_of_ranks(max(ranks))
    check_device(shape, device, max(ranks))
    work = Work(shape, args.micro_batch, args.seq)
    only = args.only.split(",") if args.only else tuple(GROUPS)
    settings = (args.rank, args.period, args.steps, device, only, args.launches)
    result = bench_communication(work, ranks, *settings)
    return finish(args, result, report_communication(result))


def _add_final_losses(kinds: Any) -> None:
    p = add_kind(
        kinds, "final-losses", "where training ends that sends less, beside all-reduce, in loss and bytes"
    )
    p.add_argument(
        "--method", action="append", metavar="M", help="as in --data-parallel; repeatable (default: six)"
    )
    p.add_argument("--ranks", default="4,8", metavar="N,…", help="numbers of replicas")
    p.add_argument("--model", default="tiny", metavar="M", help="preset, TOML, config.json or inline JSON")
    p.add_argument("--seq", type=int, default=64, metavar="N", help="tokens per sample")
    p.add_argument(
        "--global-batch", type=int, default=8, metavar="N", help="samples of a step, of all replicas"
    )
    p.add_argument("--steps", type=int, default=400, metavar="N", help="steps of a run")
    p.add_argument(
        "--start", type=int, default=300, metavar="N", help="first steps, all with whole gradients"
    )
    p.add_argument("--lr", type=float, default=1e-3, help="highest learning rate")
    p.set_defaults(run=_final_losses)


def _final_losses(args: argparse.Namespace) -> int:
    from playbook.bench.final_losses import METHODS, bench_final_losses, report_final_losses
    from playbook.shapes import load
    from playbook.training.checks import check_device
    from playbook.training.config import TrainConfig

    shape, device = load(args.model), args.device or "cpu"
    if device != "cpu":
        raise ConfigError(
            f"device is {device!r}, but final losses are compared on cpu, where every rank has its turn"
        )
    _check_sizes(args, shape, "seq", "global_batch", "steps", "start")
    if args.start >= args.steps:
        raise ConfigError(
            f"start is {args.start}, but must be below steps={args.steps}: nothing would be compared"
        )
    check_device(shape, device, 1)
    ranks = [_number("ranks", text) for text in args.ranks.split(",")]
    config = TrainConfig(
        steps=args.steps, global_batch=args.global_batch, seq=args.seq, lr=args.lr, device=device
    )
    result = bench_final_losses(shape, config, ranks, args.method or METHODS, args.start)
    return finish(args, result, report_final_losses(result))


def _add_kernels(kinds: Any) -> None:
    text = "the book's kernels against PyTorch's, torch.compile, Liger Kernel, cuBLAS and cuDNN"
    _add_cases(kinds, "kernels", text, "kernels, such as attention, rms_norm").set_defaults(run=_kernels)


def _add_fp8(kinds: Any) -> None:
    text = "FP8 products, quantisation and whole steps against PyTorch's, DeepGEMM's and torchao's"
    only = "recipes and kernels, such as blockwise, quantize, and emulated, steps"
    _add_cases(kinds, "fp8", text, only).set_defaults(run=_fp8)


def _add_cases(kinds: Any, name: str, text: str, only: str) -> argparse.ArgumentParser:
    """Flags of what measures case by case."""
    p = add_kind(kinds, name, text)
    p.add_argument("--only", metavar="K,…", help=f"{only} (default: all of them)")
    p.add_argument(
        "--sizes", choices=["small", "large"], help="of the tensors (default: large on a GPU, small without)"
    )
    p.add_argument("--repeats", type=int, default=50, metavar="N", help="turns at most; the median counts")
    return p


def _kernels(args: argparse.Namespace) -> int:
    _check_repeats(args)
    from playbook.bench.kernels import KERNELS, bench_kernels, report_kernels

    return _cases(args, bench_kernels, KERNELS, report_kernels)


def _fp8(args: argparse.Namespace) -> int:
    _check_repeats(args)
    from playbook.bench.fp8 import FP8, bench_fp8, report_fp8

    return _cases(args, bench_fp8, FP8, report_fp8)


def _check_repeats(args: argparse.Namespace) -> None:
    if args.repeats < 1:
        raise ConfigError(f"repeats is {args.repeats}, but must be at least 1")


def _cases(
    args: argparse.Namespace,
    bench: Callable[..., Iterator[dict[str, Any]]],
    names: Sequence[str],
    report: Callable[[dict[str, Any]], str],
) -> int:
    from playbook.bench.kernels import wrong_results
    from playbook.training.trainer import default_device

    large = None if args.sizes is None else args.sizes == "large"
    only = args.only.split(",") if args.only else names
    result: dict[str, Any] = {}
    for result in bench(args.device or default_device(), only, large, args.repeats):
        record(args, result)  # what ends this run loses nothing that it has measured
    finish(args, result, report(result))
    wrong = wrong_results(result)
    if wrong:
        print(f"these results are wrong: {'; '.join(wrong)}", file=sys.stderr)
    return int(bool(wrong))


def _check_sizes(args: argparse.Namespace, shape: Any, *fields: str) -> None:
    """Raises ConfigError unless the fields are at least 1, and the model has positions for ``seq`` tokens."""
    for field in fields:
        if getattr(args, field) < 1:
            raise ConfigError(f"{field} is {getattr(args, field)}, but must be at least 1")
    if "seq" in fields and args.seq > shape.max_seq:
        raise ConfigError(
            f"seq is {args.seq}, but this model has positions for at most max_seq={shape.max_seq} tokens"
        )


def _device_of_ranks(ranks: int) -> str:
    from playbook import launch

    return "cuda" if launch.backend(ranks) == "nccl" else "cpu"


def _number(label: str, text: str) -> int:
    """A number such as 512, 4K or 64M, in powers of 1024."""
    digits, power = text.strip().upper(), 0
    if digits.endswith(tuple("KMG")):
        power, digits = "KMG".index(digits[-1]) + 1, digits[:-1]
    if not digits.isdecimal():
        raise ConfigError(
            f"{label} must be numbers such as 512, 4K or 64M, separated by commas, got {text!r}"
        )
    return int(digits) << (10 * power)
