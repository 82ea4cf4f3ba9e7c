"""``playbook bench``: ours beside the best public peer, and predictions beside measurements.

The flags of a benchmark are the parameters of its function here: their defaults, and what their types say of them.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal

from playbook._checks import check_int
from playbook._json import to_json
from playbook.errors import ConfigError

#: The benchmarks by name: what each compares, and its function, which gives a result and a report of it.
BENCHES: dict[str, tuple[str, Callable[..., Any]]] = {}


class Flag(typing.NamedTuple):
    """What a flag's --help says, how it calls the value, and the least value of a number."""

    words: str
    metavar: str | None = None
    least: int = 1


Model = Annotated[str, Flag("preset, TOML, config.json or inline JSON", "M")]
Samples = Annotated[int, Flag("samples")]
Tokens = Annotated[int, Flag("tokens per sample")]
Turns = Annotated[int, Flag("turns; the median counts")]
Launches = Annotated[int, Flag("times that the ranks are started anew")]
Sizes = Annotated[
    Literal["small", "large"] | None, Flag("of the tensors (default: large on a GPU, small without)")
]
Names = tuple[str, ...] | None


@dataclass(frozen=True)
class Asked:
    """What all benchmarks are asked: the device, what is printed, and where it is recorded."""

    device: str | None
    json: bool
    record: Path | None

    def keep(self, result: dict[str, Any]) -> None:
        """Write the result down, if that was asked for: what ends a long run loses nothing that it has measured."""
        if self.record:
            self.record.parent.mkdir(parents=True, exist_ok=True)
            self.record.write_text(to_json(result, indent=1) + "\n", encoding="utf-8")

    def on(self, shape: Any = None, ranks: int | None = None) -> str:
        """The device; of so many ranks the one that they have. Raises ConfigError where ``shape`` has no room."""
        from playbook import launch
        from playbook.training.checks import check_device
        from playbook.training.trainer import default_device

        on_ranks = ranks is not None and launch.backend(ranks) == "nccl"
        device = self.device or (default_device() if ranks is None else "cuda" if on_ranks else "cpu")
        if shape is not None:
            check_device(shape, device, ranks or 1)
        return device


def bench(name: str, words: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a function a benchmark."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        BENCHES[name] = words, function
        return function

    return register


def add(commands: Any) -> None:
    p = commands.add_parser(
        "bench",
        help="measure ours against the best public peer, side by side",
        description="Alternate ours and a peer in one run and print the ratio of medians (below 1: ours is faster).",
    )
    kinds = p.add_subparsers(dest="what", required=True, metavar="WHAT")
    for name, (words, function) in BENCHES.items():
        p = kinds.add_parser(name, help=words, description=words)
        for field, (kind, flag, default) in _flags(function).items():
            _add_flag(p, field, kind, flag, default)
        p.add_argument("--device", help="cpu or cuda (default: cuda when there is one)")
        p.add_argument("--json", action="store_true", help="print one JSON object on stdout")
        p.add_argument("--record", type=Path, metavar="FILE", help="write the JSON to a file as well")
        p.set_defaults(run=partial(_run, function))


def _flags(function: Callable[..., Any]) -> dict[str, tuple[Any, Flag, Any]]:
    """Of each parameter but the first its type, what it says, and its default."""
    hints, found = typing.get_type_hints(function, include_extras=True), {}
    for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
        kind, flag = typing.get_args(hints[name])
        kinds = [one for one in typing.get_args(kind) if one is not NoneType]
        optional = NoneType in typing.get_args(kind)
        found[name] = kinds[0] if optional else kind, flag, parameter.default
    return found


def _add_flag(p: argparse.ArgumentParser, field: str, kind: Any, flag: Flag, default: Any) -> None:
    metavar = flag.metavar or ("N" if kind is int else None)
    options: dict[str, Any] = {"metavar": metavar} if metavar else {}
    if typing.get_origin(kind) is Literal:
        options["choices"] = typing.get_args(kind)
    elif kind in (int, float):
        options["type"] = kind
    elif kind == list[str]:
        options["action"] = "append"
    elif isinstance(default, tuple):
        default = ",".join(map(str, default))
    p.add_argument("--" + field.replace("_", "-"), default=default, help=flag.words, **options)


def _run(function: Callable[..., Any], args: argparse.Namespace) -> int:
    """Check the numbers, measure, print what was asked for, and record it. 1 where a result is wrong."""
    given = {}
    for field, (kind, flag, _) in _flags(function).items():
        value = getattr(args, field)
        if kind is int and value is not None:
            check_int(field, value, ConfigError, least=flag.least)
        elif kind == tuple[int, ...] and value is not None:
            value = [_number(field, text) for text in value.split(",")]
        elif kind == tuple[str, ...]:
            value = tuple(value.split(",")) if value else None
        given[field] = value
    asked = Asked(args.device, args.json, args.record)
    result, report, *wrong = function(asked, **given)
    asked.keep(result)
    print(to_json(result) if args.json else report(result))
    if any(wrong):
        print(f"these results are wrong: {'; '.join(*wrong)}", file=sys.stderr)
    return int(any(wrong))


def _shape(model: Any, seq: int | None = None) -> Any:
    """The model, which has positions for ``seq`` tokens."""
    from playbook.shapes import load

    shape = load(model)
    if seq is not None and seq > shape.max_seq:
        raise ConfigError(
            f"seq is {seq}, but this model has positions for at most max_seq={shape.max_seq} tokens"
        )
    return shape


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


# ---- the benchmarks


@bench("train", "one model's forward and backward, and recomputation")
def _train(
    asked: Asked,
    model: Model = "tiny",
    micro_batch: Samples = 4,
    seq: Tokens = 256,
    repeats: Turns = 9,
    dtype: Annotated[Literal["float32", "bfloat16"], Flag("of all weights")] = "float32",
) -> Any:
    shape = _shape(model, seq)
    import torch

    from playbook_book.bench.train import bench_train, report_train

    device = asked.on(shape)
    return bench_train(shape, micro_batch, seq, repeats, device, getattr(torch, dtype)), report_train


@bench("trainer", "tokens per second, MFU and memory of training on one device")
def _trainer(
    asked: Asked,
    model: Model = "tiny",
    micro_batch: Samples = 2,
    seq: Tokens = 256,
    grad_acc: Annotated[int, Flag("micro-batches per step")] = 1,
    steps: Annotated[int, Flag("timed steps; the median counts")] = 10,
    kernels: Annotated[Literal["torch", "fused"], Flag("between matrix products")] = "torch",
) -> Any:
    shape = _shape(model, seq)
    from playbook_book.bench.trainer import bench_trainer, report_trainer

    return bench_trainer(shape, micro_batch, seq, grad_acc, steps, asked.on(), kernels), report_trainer


@bench("memory", "predicted against measured peak of training steps")
def _memory(asked: Asked) -> Any:
    from playbook_book.bench.memory import CASES, bench_memory, report_memory

    device = asked.on()
    shapes = (_shape(case.model) for case in CASES[device if device in CASES else "cpu"])
    asked.on(max(shapes, key=lambda shape: shape.num_parameters))
    return bench_memory(device), report_memory


@bench("checkpoint", "saving and loading a training state, beside torch.save and PyTorch's checkpoint")
def _checkpoint(
    asked: Asked,
    model: Annotated[str, Flag("preset or JSON (default: a state of about 100 MB)", "M")] = "",
    folder: Annotated[str | None, Flag("where to write (default: where temporary files are)", "DIR")] = None,
    repeats: Turns = 9,
) -> Any:
    usual = {"layers": 8, "hidden": 288, "heads": 8, "ffn": 1152, "vocab": 256, "max_seq": 64}
    shape = _shape(model or usual)
    from playbook_book.bench.checkpoint import bench_checkpoint, report_checkpoint

    return bench_checkpoint(shape, repeats, asked.on(), folder), report_checkpoint


@bench("collectives", "collectives from send and receive against the backend's, and the cost of talking")
def _collectives(
    asked: Asked,
    ranks: Annotated[tuple[int, ...], Flag("numbers of ranks", "N,…")] = (2, 4, 8),
    sizes: Annotated[
        tuple[int, ...] | None, Flag("bytes of the all-reduced vector, as 1K,4M (default: 1K to 64M)", "B,…")
    ] = None,
    repeats: Turns = 7,
) -> Any:
    from playbook_book.bench.collectives import SIZES, bench_collectives, report_collectives

    return bench_collectives(ranks, sizes or SIZES, repeats, asked.on(None, max(ranks))), report_collectives


@bench("parallel", "training steps on many ranks against torch's DDP, ZeRO, FSDP2, DTensor and attention")
def _parallel(
    asked: Asked,
    ranks: Annotated[int, Flag("ranks (two around the ring)")] = 4,
    only: Annotated[
        Names,
        Flag("groups of contenders: data, hybrid, muon, tensor, context, ring (default: all of them)", "G,…"),
    ] = None,
    model: Model = "tiny",
    micro_batch: Samples = 1,
    seq: Annotated[int, Flag("tokens per sample; context: of one rank")] = 256,
    grad_acc: Annotated[int, Flag("micro-batches per step on each rank")] = 1,
    long_seq: Annotated[int, Flag("tokens of two ranks around a ring")] = 8192,
    steps: Annotated[int, Flag("timed steps of each; the median counts")] = 16,
) -> Any:
    shape = _shape(model, seq)
    from playbook_book.bench.contest import report_groups
    from playbook_book.bench.parallel import bench_parallel
    from playbook_book.bench.turns import Work

    device, work = asked.on(shape, ranks), Work(shape, micro_batch, seq, grad_acc)
    return bench_parallel(work, ranks, steps, device, only, long_seq), report_groups


@bench("pipeline", "pipeline schedules on many ranks against torch.distributed.pipelining")
def _pipeline(
    asked: Asked,
    ranks: Annotated[int, Flag("ranks")] = 4,
    only: Annotated[
        Names,
        Flag("schedules: afab, 1f1b, interleaved, zb-v, dualpipev, naive (default: all of them)", "S,…"),
    ] = None,
    model: Model = "tiny",
    layers: Annotated[
        int | None, Flag("layers, in place of the model's (default: 2 on each rank, at least)")
    ] = None,
    micro_batch: Samples = 1,
    seq: Tokens = 256,
    grad_acc: Annotated[int | None, Flag("micro-batches per step (default: 2 for each rank)")] = None,
    launches: Launches = 4,
    steps: Annotated[int, Flag("timed steps of each in a launch; the median counts")] = 8,
) -> Any:
    shape = _shape(model, seq)
    shape = shape.replace(layers=layers or max(shape.layers, 2 * ranks))
    from playbook_book.bench.pipeline import bench_pipeline, report_pipeline
    from playbook_book.bench.turns import Work

    device = asked.on(shape, ranks)
    work = Work(shape, micro_batch, seq, grad_acc or 2 * ranks, alike=True)
    return bench_pipeline(work, ranks, steps, device, only, launches), report_pipeline


@bench("experts", "a mixture of experts against transformers', and ways to spread experts over four ranks")
def _experts(
    asked: Asked,
    only: Annotated[Names, Flag("groups: layer, dispatch, layout (default: all of them)", "G,…")] = None,
    tokens: Annotated[tuple[int, ...], Flag("tokens of a layer on one process", "N,…")] = (512, 2048),
    model: Annotated[
        str, Flag("preset, TOML, config.json or inline JSON; layout: what is trained", "M")
    ] = "tiny-moe",
    seq: Annotated[int, Flag("tokens of each rank: one sample")] = 512,
    launches: Launches = 3,
    steps: Annotated[int, Flag("timed steps of each in a launch; the median counts")] = 12,
) -> Any:
    shape = _shape(model, seq)
    from playbook_book.bench.contest import report_groups
    from playbook_book.bench.experts import RANKS, bench_experts

    device = asked.on(shape, RANKS)
    return bench_experts(shape, tokens, seq, steps, device, only, launches), report_groups


@bench("communication", "PowerSGD and local steps against torch's hook of DDP and post-local SGD")
def _communication(
    asked: Asked,
    only: Annotated[Names, Flag("groups: powersgd, local (default: both)", "G,…")] = None,
    ranks: Annotated[tuple[int, ...], Flag("numbers of ranks", "N,…")] = (2, 4),
    model: Annotated[str, Flag("preset or JSON (default: two layers as wide as GPT-2's)", "M")] = "",
    micro_batch: Samples = 1,
    seq: Tokens = 32,
    rank: Annotated[int, Flag("columns of PowerSGD's factors", "R")] = 4,
    period: Annotated[int, Flag("local steps of a round", "H")] = 4,
    launches: Launches = 3,
    steps: Annotated[int, Flag("timed turns of each in a launch; the median counts")] = 12,
) -> Any:
    from playbook_book.bench.communication import MODEL, bench_communication, report_communication
    from playbook_book.bench.turns import Work

    shape = _shape(model or MODEL, seq)
    device, work = asked.on(shape, max(ranks)), Work(shape, micro_batch, seq)
    settings = (rank, period, steps, device, only, launches)
    return bench_communication(work, ranks, *settings), report_communication


@bench("final-losses", "where training ends that sends less, beside all-reduce, in loss and bytes")
def _final_losses(
    asked: Asked,
    method: Annotated[list[str] | None, Flag("as in --data-parallel; repeatable (default: six)", "M")] = None,
    ranks: Annotated[tuple[int, ...], Flag("numbers of replicas", "N,…")] = (4, 8),
    model: Model = "tiny",
    seq: Tokens = 64,
    global_batch: Annotated[int, Flag("samples of a step, of all replicas")] = 8,
    steps: Annotated[int, Flag("steps of a run")] = 400,
    start: Annotated[int, Flag("first steps, all with whole gradients")] = 300,
    lr: Annotated[float, Flag("highest learning rate")] = 1e-3,
) -> Any:
    from playbook.training.config import TrainConfig
    from playbook_book.bench.final_losses import METHODS, bench_final_losses, report_final_losses

    shape, device = _shape(model, seq), asked.device or "cpu"
    if device != "cpu":
        raise ConfigError(
            f"device is {device!r}, but final losses are compared on cpu, where every rank has its turn"
        )
    if start >= steps:
        raise ConfigError(f"start is {start}, but must be below steps={steps}: nothing would be compared")
    asked.on(shape, 1)
    config = TrainConfig(steps=steps, global_batch=global_batch, seq=seq, lr=lr, device=device)
    return bench_final_losses(shape, config, ranks, method or METHODS, start), report_final_losses


@bench("kernels", "the book's kernels against PyTorch's, torch.compile, Liger Kernel, cuBLAS and cuDNN")
def _kernels(
    asked: Asked,
    only: Annotated[Names, Flag("kernels, such as attention, rms_norm (default: all of them)", "K,…")] = None,
    sizes: Sizes = None,
    repeats: Annotated[int, Flag("turns at most; the median counts")] = 50,
) -> Any:
    from playbook_book.bench.kernels import bench_kernels, report_kernels

    result, wrong = _cases(asked, bench_kernels, only, sizes, repeats)
    return result, report_kernels, wrong


@bench("fp8", "FP8 products, quantisation and whole steps against PyTorch's, DeepGEMM's and torchao's")
def _fp8(
    asked: Asked,
    only: Annotated[
        Names,
        Flag("recipes and kernels, such as blockwise, quantize, and emulated, steps (default: all)", "K,…"),
    ] = None,
    sizes: Sizes = None,
    repeats: Annotated[int, Flag("turns at most; the median counts")] = 50,
) -> Any:
    from playbook_book.bench.fp8 import bench_fp8, report_fp8

    result, wrong = _cases(asked, bench_fp8, only, sizes, repeats)
    return result, report_fp8, wrong


def _cases(
    asked: Asked,
    measure: Callable[..., Iterator[dict[str, Any]]],
    only: Names,
    sizes: str | None,
    repeats: int,
) -> tuple[dict[str, Any], list[str]]:
    """What is measured case by case, and which of it is wrong."""
    from playbook_book.bench.kernels import wrong_results

    result: dict[str, Any] = {}
    for result in measure(asked.on(), only, None if sizes is None else sizes == "large", repeats):
        asked.keep(result)
    return result, wrong_results(result)
