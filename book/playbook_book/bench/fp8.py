"""``playbook bench fp8``: FP8 products and quantisation beside PyTorch's and DeepGEMM's, and whole steps of training.

Products and what quantises are measured as `playbook bench kernels` measures: the same numbers for all, results held to
fp32, times in turns. ``emulated`` are products whose numbers were quantised and dequantised, which is how FP8 is trained
on a CPU, beside products in fp32.

``steps`` are steps of the book's trainer, and of torchao's linear layers, beside the same steps without FP8: ratios are
to the run that takes turns with it, in bf16 on a GPU and in fp32 on a CPU, ours to ours and theirs to theirs. On a CPU
codes are multiplied by their scales again before they are multiplied, which can only be slower.
"""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from playbook.model.transformer import Transformer
from playbook.precision.products import product_torch
from playbook.precision.recipes import load_fp8
from playbook.precision.scaling import quantize_torch
from playbook.shapes import ModelShape, load
from playbook.training.config import TrainConfig
from playbook.training.data import TokenBatches, load_corpus
from playbook.training.trainer import make_trainer
from playbook_book.bench import chosen
from playbook_book.bench.contenders import said
from playbook_book.bench.fp8_cases import RECIPES, fp8_cases
from playbook_book.bench.kernels import cases_of, forget, measure_cases, new_record, report_kernels
from playbook_book.bench.train import is_llama, llama_loss, transformers_llama
from playbook_book.instruments.measured import compare_times, seconds_in_turns

#: What is measured, in this order: products by recipe, kernels that quantise, emulated products, whole steps.
FP8 = (*RECIPES, "quantize", "emulated", "steps")
#: Tokens, inputs and outputs of emulated products.
EMULATED = (512, 512, 1024)


def bench_fp8(
    device: str, only: Sequence[str] | None = None, large: bool | None = None, repeats: int = 50
) -> Iterator[dict[str, Any]]:
    """The record so far, again whenever something has been measured.

    ``only`` chooses among `FP8`; sizes are ``large`` on a GPU unless told; ``repeats`` is how many turns there are at
    most. Raises ConfigError for what is not there to be measured, at once.
    """
    return _bench(device, chosen("case", only, FP8), large, repeats)


def _bench(device: str, names: Sequence[str], large: bool | None, repeats: int) -> Iterator[dict[str, Any]]:
    result = new_record(device) | {"emulated": [], "steps": []}
    yield from measure_cases(result, cases_of(fp8_cases, device, large, names, FP8), device, repeats)
    if "emulated" in names:
        result["emulated"] = emulated(device, repeats)
        yield result
    for row in step_rows(device) if "steps" in names else ():
        result["steps"].append(row)
        yield result


def emulated(device: str, repeats: int) -> list[dict[str, Any]]:
    """y = x·Wᵀ in fp32 of numbers that were quantised and dequantised, both by PyTorch's operators, and in fp32 alone, in
    turns. So it is on a GPU, too, which would take its FP8 tensor cores otherwise."""
    tokens, inputs, outputs = EMULATED
    generator = torch.Generator(device).manual_seed(0)
    x, w = (torch.randn(rows, inputs, generator=generator, device=device) for rows in (tokens, outputs))

    def quantised(recipe: str) -> torch.Tensor:
        asked = load_fp8(recipe)
        return product_torch(
            quantize_torch(x, asked.forward, asked.groups),
            quantize_torch(w, asked.forward, asked.weights),
            x.dtype,
        )

    runs = {name: lambda name=name: quantised(name) for name in RECIPES}
    times = compare_times({"fp32": lambda: x @ w.t(), **runs}, repeats=repeats, device=device)
    exact = x @ w.t()
    return [
        {
            "recipe": name,
            "size": f"{tokens:,} × {inputs:,} × {outputs:,}",
            "seconds": times[name],
            "fp32_seconds": times["fp32"],
            "ratio": times[name] / times["fp32"],
            "error": float((quantised(name) - exact).norm() / exact.norm()),
        }
        for name in RECIPES
    ]


# ---- whole steps

#: torchao's recipes of the same names as ours.
THEIRS = ("tensorwise", "rowwise")
#: A step gives its loss.
Step = Callable[[], float]


@dataclass(frozen=True)
class Work:
    """What is trained, in steps of one micro-batch, of which the first ``warm_up`` do not count; 0 ``layers``: all."""

    model: str
    micro_batch: int
    seq: int
    steps: int
    dtype: str
    warm_up: int = 2
    layers: int = 0
    kernels: str = "torch"

    @property
    def shape(self) -> ModelShape:
        whole = load(self.model)
        return whole.replace(layers=self.layers) if self.layers else whole


#: By device. A whole small model, whose products are short, and as much of a wider one as a GPU holds twice.
WORK = {
    "cuda": (
        Work("llama2-7b", 2, 4096, 8, "bfloat16", layers=8, kernels="fused"),
        Work("llama3.2-1b", 2, 4096, 8, "bfloat16"),
    ),
    "cpu": (Work("tiny", 2, 128, 3, "float32", warm_up=1),),
}


def step_rows(device: str) -> Iterator[dict[str, Any]]:
    """A row for each recipe, ours and then torchao's, whose compilation takes minutes: median seconds, losses, and the
    ratio to the run without FP8."""
    kind = torch.device(device).type
    theirs = partial(_torchao, device=device, compiled=kind == "cuda")
    trainers = ("ours", RECIPES, partial(_ours, device=device)), ("torchao", THEIRS, theirs)
    for trainer, recipes, make in trainers:
        for work in WORK[kind]:
            for recipe in recipes:
                yield _row(trainer, recipe, work, device, partial(make, work))


def _row(trainer: str, recipe: str, work: Work, device: str, make: Callable[[str], Step]) -> dict[str, Any]:
    about = {"trainer": trainer, "recipe": recipe, "model": work.model, "layers": work.shape.layers,
             "kernels": work.kernels, "micro_batch": work.micro_batch, "seq": work.seq, "dtype": work.dtype}  # fmt: skip
    try:
        (base_s, base_loss), (fp8_s, fp8_loss) = _in_turns([make(""), make(recipe)], work, device)
    except Exception as error:  # memory, a version of torchao, a compiler: loses no other row
        return about | {"missing": said(error)}
    finally:
        forget(device)
    tokens = work.micro_batch * work.seq
    return about | {
        "seconds": fp8_s, "base_seconds": base_s, "ratio": fp8_s / base_s,
        "tokens_per_s": tokens / fp8_s, "base_tokens_per_s": tokens / base_s,
        "last_loss": fp8_loss, "base_last_loss": base_loss,
    }  # fmt: skip


def _in_turns(runs: list[Step], work: Work, device: str) -> list[tuple[float, float]]:
    """Median seconds and the last loss of each; every turn goes in the opposite order of the one before."""
    losses = [0.0] * len(runs)

    def step(i: int) -> None:
        losses[i] = runs[i]()

    steps = {str(i): partial(step, i) for i in range(len(runs))}
    times = seconds_in_turns(steps, work.steps, device, work.warm_up, reverse=True)
    return [(statistics.median(seconds), loss) for seconds, loss in zip(times.values(), losses, strict=True)]


def config_of(work: Work, device: str, recipe: str = "") -> TrainConfig:
    return TrainConfig(
        steps=work.warm_up + work.steps, global_batch=work.micro_batch, seq=work.seq, lr=1e-4, dtype=work.dtype,
        weights=work.dtype, device=device, fp8=recipe, kernels=work.kernels,
    )  # fmt: skip


def _ours(work: Work, recipe: str, device: str) -> Step:
    trainer = make_trainer(work.shape, load_corpus(), config_of(work, device, recipe))
    return lambda: trainer.step().loss


def _torchao(work: Work, recipe: str, device: str, compiled: bool) -> Step:
    """transformers' Llama of the same shape, its linear layers but for the head torchao's, compiled on a GPU."""
    theirs = importlib.import_module("torchao.float8")
    model = _llama(work.shape, work, device)
    if recipe:
        theirs.convert_to_float8_training(
            model,
            config=theirs.Float8LinearConfig.from_recipe_name(recipe),
            module_filter_fn=lambda _, name: name != "lm_head",
        )
    config = config_of(work, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, fused=device != "cpu")
    batches = TokenBatches(load_corpus(), work.micro_batch, work.seq, config.seed)
    for block in model.model.layers if compiled else ():
        block.compile()  # one for all of them, as torchtitan does
    count = iter(range(config.steps))

    def step() -> float:
        x, y = (tokens.to(device) for tokens in batches.batch(next(count)))
        optimizer.zero_grad()
        loss = llama_loss(model, x, y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def _llama(shape: ModelShape, work: Work, device: str) -> Any:
    ours = Transformer(shape, dtype=getattr(torch, work.dtype), device=device)
    with torch.random.fork_rng():  # the same weights with FP8 and without
        torch.manual_seed(0)
        model = transformers_llama(ours) if is_llama(shape) else None
    if model is None:
        raise ModuleNotFoundError("transformers, whose Llama torchao's layers are put into, is not installed")
    return model


# ---- tables for people


def report_fp8(result: dict[str, Any]) -> str:
    """The result of ``bench_fp8`` as tables for people."""
    lines = [report_kernels(result)]
    if result["emulated"]:
        lines += ["", f"quantised and dequantised, then multiplied in fp32, {result['emulated'][0]['size']}"]
    lines += [
        f"  {row['recipe']:12} {row['seconds'] * 1e3:8.2f} ms, {row['ratio']:6.2f} of fp32, error {row['error']:.1e}"
        for row in result["emulated"]
    ]
    if result["steps"]:
        lines += ["", "whole steps; ratios to the same run without FP8"]
    lines += [_step(row) for row in result["steps"]]
    return "\n".join(lines)


def _step(row: dict[str, Any]) -> str:
    name = f"  {row['trainer']:9} {row['recipe']:12} {row['model']:12}"
    if "missing" in row:
        return f"{name} left out: {row['missing'].splitlines()[0][:80]}"
    return (
        f"{name} {row['seconds'] * 1e3:9.1f} ms beside {row['base_seconds'] * 1e3:9.1f} ms, ratio {row['ratio']:.3f}, "
        f"loss {row['last_loss']:.4f} beside {row['base_last_loss']:.4f}"
    )
