"""What ``on_gpu.py`` measures beside ``playbook bench``: one of its steps, ``python benchmarks/gpu_steps.py NAME``.

Each function yields its result whenever there is more of it, and it is written down at once. On a CPU it goes through the
same in small sizes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_attention import Result, attention, forget, machine, tried
from on_gpu import write
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from playbook import launch
from playbook.bench import provenance
from playbook.instruments.step_costs import StepCosts
from playbook.layout import Layout
from playbook.parallel.mesh import Mesh
from playbook.shapes import load
from playbook.training.config import TrainConfig
from playbook.training.data import load_corpus
from playbook.training.trainer import Trainer, make_trainer
from playbook_book.bench.memory import CASES, Case, measure

#: Spans that the profiler lists beside kernels.
SPANS = ("data", "forward", "backward", "optimizer")


def states(device: str) -> Iterator[Result]:
    """Train, save, go on; take the saved state up in a new trainer and go on there: the same losses?"""
    found: Result = {}
    cases = [(zero, "bfloat16") for zero in (None, 1, 2, 3, 0)] + [(None, "float32"), (1, "float32")]
    with launch.process_group():
        for zero, weights in cases:
            for kept in ("in memory", "in a file"):
                name = f"{weights}, {'one device' if zero is None else f'zero={zero}'}, {kept}"
                found[name] = tried(partial(_resumed, zero, weights, kept, device))
                yield found


def _resumed(zero: int | None, weights: str, kept: str, device: str) -> Result:
    layout = Layout(zero=zero or 0)
    config = TrainConfig(
        steps=4, global_batch=2, seq=64, weights=weights, dtype=weights, layout=layout, device=device
    )
    shape = load("tiny").replace(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=128)
    mesh = None if zero is None else Mesh(layout)
    first, second = (make_trainer(shape, load_corpus(), config, mesh) for _ in range(2))
    steps = iter(first)
    next(steps), next(steps)
    state = deepcopy(first.engine.state_dict())  # what it holds may be the live tensors
    if kept == "in a file":
        with tempfile.TemporaryFile() as file:
            torch.save(state, file)
            file.seek(0)
            state = torch.load(file, map_location="cpu", weights_only=True)
    expected = [r.loss for r in steps]
    second.engine.load_state_dict(state)
    second.step_count = 2
    losses = [r.loss for r in second]
    apart = max(abs(a - b) for a, b in zip(expected, losses, strict=True))
    return {"expected": expected, "resumed": losses, "apart": apart}


def memory(device: str) -> Iterator[Result]:
    """The cases of ``playbook bench memory``, each on its own, the larger ones last; then some again under cuDNN."""
    rows: list[Result] = []
    cases = sorted(CASES[device], key=lambda case: case.predicted(device).total)
    again = [case for case in cases if case.attention == "sdpa" and case.precision != "fp32"][:4]
    trials = [(case, None) for case in cases]
    if device == "cuda":
        trials[6:6] = [(case, SDPBackend.CUDNN_ATTENTION) for case in again]
    result: Result = {"cases": rows, "cudnn": [], "failed": []}
    for case, backend in trials:
        row = tried(partial(_case, case, backend, device))
        kind = "failed" if "failed" in row else "cudnn" if backend else "cases"
        result[kind].append(asdict(case) | row)
        errors = [abs(row["error"]) for row in rows] or [0.0]
        yield result | {"median_error": statistics.median(errors), "worst_error": max(errors)}


def _case(case: Case, backend: SDPBackend | None, device: str) -> Result:
    predicted = case.predicted(device)
    with sdpa_kernel(backend) if backend else nullcontext():
        measured = measure(case, device)
    sizes = {
        "predicted_bytes": predicted.total,
        "measured_bytes": measured,
        "error": predicted.total / measured - 1,
    }
    return {"parameters": load(case.model).num_parameters, "moment": predicted.moment.name, **sizes}


def _trainer(device: str, steps: int, **options: Any) -> Trainer:
    model, seq = ("llama3.2-1b", 4096) if device == "cuda" else ("tiny", 64)
    kind = "bfloat16" if device == "cuda" or options.get("offload") else "float32"
    config = TrainConfig(steps=steps, global_batch=4, micro_batch=2, seq=seq, lr=1e-4, dtype=kind, weights=kind,
                         device=device, **options)  # fmt: skip
    return make_trainer(model, load_corpus(), config)


def profiled(device: str) -> Iterator[Result]:
    """Steps of what `playbook bench fp8` trains, in bf16 and FP8: seconds, kernels, and where the host waits."""
    from playbook_book.bench.fp8 import RECIPES, WORK  # with it come Triton's kernels, which need NumPy

    found: Result = {"steps": []}
    for work in WORK[device]:
        for recipe in ("", *RECIPES):
            row = tried(partial(_profiled, work, recipe, device))
            found["steps"].append(asdict(work) | {"layers": work.shape.layers, "recipe": recipe} | row)
            yield found


def _profiled(work: Any, recipe: str, device: str) -> Result:
    from playbook_book.bench.fp8 import config_of

    trainer = make_trainer(work.shape, load_corpus(), config_of(work, device, recipe))
    for _ in range(4):
        trainer.step()
    result: Result = {"seconds": statistics.median(trainer.step().seconds for _ in range(4))}
    if device == "cuda":
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            trainer.step()
            torch.cuda.set_sync_debug_mode("default")
        places = Counter(f"{w.filename}:{w.lineno}" for w in seen if "synchroniz" in str(w.message))
        result["syncs"] = dict(places.most_common())
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with profile(activities=kinds) as trace:
        trainer.step()
    rows = [r for r in trace.key_averages() if not r.key.lower().startswith(SPANS)]
    kernels = [r for r in rows if r.device_type != torch.autograd.DeviceType.CPU]
    longest = sorted(kernels or rows, key=lambda r: -(r.self_device_time_total or r.self_cpu_time_total))[:30]
    return result | {
        "launches": sum(r.count for r in kernels),
        "kernel_seconds": sum(r.self_device_time_total for r in kernels) / 1e6,
        "longest": [
            [r.key[:120], r.count, (r.self_device_time_total or r.self_cpu_time_total) / 1e6] for r in longest
        ],
    }


def offload(device: str) -> Iterator[Result]:
    """Optimizer states in CPU memory, and not: seconds of a step, and the peak."""
    found: Result = {}
    for name, moved in (("on the device", False), ("offloaded", True)):
        trainer = _trainer(device, 4, offload=moved) if moved else _trainer(device, 4)
        costs = StepCosts(trainer)
        results = trainer.run()
        found[name] = {"seconds": [r.seconds for r in results], "peak_bytes": costs.peak_bytes,
                       "losses": [r.loss for r in results]}  # fmt: skip
        yield found
        del trainer, costs  # which holds it, too
        forget(device)


def counters(device: str) -> Iterator[Result]:
    """What kernels move, by the GPU's own counters."""
    from gpu_counters import counters  # with it comes Triton's interpreter, which needs NumPy

    yield from counters(device)


def smoke(device: str) -> Iterator[Result]:
    """Whether each kernel is right, and the same each time."""
    from gpu_smoke import smoke

    yield from smoke(device)


def sweep(device: str) -> Iterator[Result]:
    """Which tiles are fastest."""
    from gpu_sweep import sweep

    yield from sweep(device)


STEPS: dict[str, Callable[[str], Iterator[Result]]] = {
    "machine": machine,
    "smoke": smoke,
    "sweep": sweep,
    "attention": attention,
    "counters": counters,
    "states": states,
    "memory": memory,
    "profile": profiled,
    "offload": offload,
}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("step", choices=STEPS)
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--out", type=Path, required=True, metavar="FILE")
    args = p.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    about = provenance(args.device) | {
        "command": f"python benchmarks/gpu_steps.py {args.step} --device {args.device}"
    }
    for result in STEPS[args.step](args.device):
        write(args.out, {"provenance": about, **result})
    print(args.out.read_text(encoding="utf-8")[-3000:])


if __name__ == "__main__":
    main()
