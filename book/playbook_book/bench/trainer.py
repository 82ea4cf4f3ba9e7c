"""``playbook bench trainer``: what the trainer makes of one device, and whether its memory is as predicted."""

from __future__ import annotations

import gc
import statistics
from typing import Any

import torch

from playbook.bench import provenance
from playbook.hardware import ACCELERATORS, Accelerator
from playbook.instruments.step_costs import StepCosts
from playbook.planning.flops import step_flops
from playbook.planning.jobs import job_of_run
from playbook.planning.memory import predict_job
from playbook.shapes import ModelShape
from playbook.training.config import TrainConfig
from playbook.training.data import load_corpus
from playbook.training.trainer import make_trainer
from playbook_book.training_time import hfu, mfu

#: What is tried: recomputation, and blocks compiled or not.
VARIANTS = (("none", False), ("selective", False), ("selective", True), ("full", False))
#: Steps that do not count: allocators and compilers are still at work.
WARM_UP = 3


def bench_trainer(
    shape: ModelShape,
    micro_batch: int,
    seq: int,
    grad_acc: int,
    steps: int,
    device: str,
    kernels: str = "torch",
) -> dict[str, Any]:
    """Train ``shape`` in bf16 (fp32 on a CPU) for ``steps`` timed steps in each of VARIANTS, on real text.

    With ``kernels`` "fused" nothing is compiled: what that would fuse is fused already.

    Gives tokens per second from the median step, model and hardware FLOPs utilisation where the accelerator is known, the
    peak in bytes measured and predicted (``error`` above 0: predicted too much), and the last loss.
    """
    sixteen = torch.device(device).type == "cuda"
    dtype = "bfloat16" if sixteen else "float32"
    rows = []
    for recompute, compiled in VARIANTS:
        if compiled and kernels == "fused":
            continue
        config = TrainConfig(
            steps=WARM_UP + steps, global_batch=micro_batch * grad_acc, micro_batch=micro_batch, seq=seq, lr=1e-4,
            dtype=dtype, weights=dtype, recompute=recompute, compile=compiled, device=device,
            kernels=kernels,
        )  # fmt: skip
        rows.append(_measure(shape, config, device))
        gc.collect()
        if sixteen:
            torch.cuda.empty_cache()
    found = {"provenance": provenance(device), "model": shape.name, "runs": rows}
    return found | {"parameters": shape.num_parameters}


def _measure(shape: ModelShape, config: TrainConfig, device: str) -> dict[str, Any]:
    trainer = make_trainer(shape, load_corpus(), config)
    costs = StepCosts(trainer)
    results = trainer.run()
    seconds = statistics.median(r.seconds for r in results[WARM_UP:])
    predicted = predict_job(job_of_run(shape, config, torch.device(device).type)).peak
    return {
        "recompute": config.recompute,
        "compile": config.compile,
        "kernels": config.kernels,
        "dtype": config.dtype,
        "micro_batch": config.micro,
        "grad_acc": config.grad_acc,
        "seq": config.seq,
        "step_s": seconds,
        "tokens_per_s": results[0].tokens / seconds,
        **_utilisation(shape, config, seconds, device),
        "peak_bytes": costs.peak_bytes,
        "predicted_bytes": predicted,
        "error": predicted / costs.peak_bytes - 1,
        "first_loss": results[0].loss,
        "last_loss": results[-1].loss,
    }


def _utilisation(
    shape: ModelShape, config: TrainConfig, seconds: float, device: str
) -> dict[str, float | None]:
    accelerator = this_accelerator(device)
    if accelerator is None:
        return {"mfu": None, "hfu": None}
    flops = step_flops(shape, config.global_batch, config.seq, config.layout.recompute)
    peak = accelerator.peak("bf16")
    return {"mfu": mfu(flops, seconds, peak), "hfu": hfu(flops, seconds, peak)}


def this_accelerator(device: str) -> Accelerator | None:
    """The preset of the GPU that is here, by its name and memory; None for a CPU or one without a preset."""
    if torch.device(device).type != "cuda":
        return None
    words = set(torch.cuda.get_device_name(device).lower().replace("rtx ", "rtx").replace("-", " ").split())
    memory = torch.cuda.get_device_properties(device).total_memory
    parts = {gpu: gpu.name.split("-") for gpu in ACCELERATORS.values()}
    fitting = [gpu for gpu, (model, *_) in parts.items() if model in words]
    # A name may say of which kind: H100 PCIe, H100 NVL.
    return min(
        fitting, key=lambda gpu: (-len(words & set(parts[gpu])), abs(gpu.memory_bytes - memory)), default=None
    )


def report_trainer(result: dict[str, Any]) -> str:
    """The result of ``bench_trainer`` as a table for people."""
    first = result["runs"][0]
    size = f"{first['grad_acc']} × {first['micro_batch']} × {first['seq']} tokens per step, {first['dtype']}"
    size += f", kernels: {first['kernels']}"
    lines = [f"{result['model'] or 'model'}, {result['parameters']:,} parameters, {size}"]
    lines.append(
        f"{'recompute':10} {'compiled':8} {'step ms':>9} {'tokens/s':>9} {'MFU':>6} {'HFU':>6} "
        f"{'peak GB':>8} {'predicted':>9} {'error':>7} {'loss':>15}"
    )
    for run in result["runs"]:
        used = [f"{run[kind]:6.1%}" if run[kind] is not None else f"{'–':>6}" for kind in ("mfu", "hfu")]
        lines.append(
            f"{run['recompute']:10} {'yes' if run['compile'] else 'no':8} {run['step_s'] * 1e3:9.1f} "
            f"{run['tokens_per_s']:9,.0f} {used[0]} {used[1]} {run['peak_bytes'] / 1e9:8.3f} "
            f"{run['predicted_bytes'] / 1e9:9.3f} {run['error']:+7.1%} {run['first_loss']:6.3f} → {run['last_loss']:6.3f}"
        )
    return "\n".join(lines)
