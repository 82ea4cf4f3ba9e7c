"""``playbook bench memory``: the predicted peak of a training step beside the one that is measured.

On a GPU the measure is ``torch.cuda.max_memory_allocated`` and the shapes are those that people train; on a CPU it is the
recorded timeline of allocations, over small ones. Each case runs two steps, because the first has no optimizer state.
"""

from __future__ import annotations

import gc
import statistics
from dataclasses import asdict, dataclass
from typing import Any

import torch

from playbook.bench import provenance
from playbook.instruments.memory_timeline import peak_bytes
from playbook.layout import Layout
from playbook.model.ops import Ops
from playbook.model.transformer import Transformer
from playbook.parallel.engine import accumulate_gradients
from playbook.planning.memory import StageMemory, predict
from playbook.planning.recipes import load_recipe
from playbook.shapes import ModelShape, load
from playbook.training.optimizer import make_optimizer, state_formats


@dataclass(frozen=True)
class Case:
    """One training run: a model (anything that ``shapes.load`` takes), what a step holds, and how it computes."""

    model: str | ModelShape
    micro_batch: int
    seq: int
    grad_acc: int = 1
    recompute: str = "none"
    attention: str = "sdpa"
    precision: str = "bf16-mixed"
    kernels: str = "torch"
    moments: str = "fp32"

    def predicted(self, device: str) -> StageMemory:
        """What ``playbook memory`` says of it."""
        layout = Layout(micro_batch=self.micro_batch, grad_acc=self.grad_acc, recompute=self.recompute)
        report = predict(
            load(self.model),
            layout,
            seq=self.seq,
            recipe=load_recipe(self.precision).with_moments(self.moments),
            attention=self.attention,
            device=device,
            fused=self.kernels == "fused",
        )
        return report.stages[0]


_SMALL = (
    '{"layers":6,"hidden":128,"heads":8,"kv_heads":2,"ffn":512,"vocab":2000,"gated":true,"activation":"silu",'
)
_SMALL += '"norm":"rmsnorm","positions":"rotary","bias":false,"tied":false,"max_seq":256}'
_SMALL_GPT = '{"layers":6,"hidden":128,"heads":8,"vocab":2000,"max_seq":256,"dropout":0.1}'

#: What is run on each kind of device: every precision, recomputation mode and attention, both blocks, 0.1 to 3.2 billion
#: parameters on a GPU of 80 GB.
CASES = {
    "cpu": (
        Case(_SMALL, 4, 128, precision="fp32"),
        Case(_SMALL, 4, 128, grad_acc=2, precision="fp32"),
        Case(_SMALL, 4, 256, recompute="full", precision="fp32"),
        Case(_SMALL, 2, 256, attention="reference", precision="autocast"),
        Case(_SMALL, 4, 128, grad_acc=2),
        Case(_SMALL_GPT, 4, 128, precision="fp32"),
        Case(_SMALL_GPT, 4, 128, attention="reference", recompute="selective"),
        Case(_SMALL_GPT, 8, 64, recompute="full", precision="autocast"),
    ),
    "cuda": (
        Case("smollm-135m", 8, 2048),
        Case("smollm-360m", 4, 2048, grad_acc=2),
        Case("smollm-360m", 8, 2048, recompute="full", precision="autocast"),
        Case("gpt2-medium", 8, 1024, precision="autocast"),
        Case("gpt2-xl", 2, 1024, grad_acc=2),
        Case("qwen3-0.6b", 2, 4096),
        Case("llama3.2-1b", 2, 4096),
        Case("llama3.2-1b", 4, 4096, grad_acc=2, recompute="full"),
        Case("llama3.2-1b", 1, 2048, precision="fp32"),
        Case("llama3.2-1b", 1, 2048, attention="reference", recompute="selective"),
        Case("smollm2-1.7b", 2, 4096, grad_acc=2),
        Case("llama3.2-3b", 1, 4096, recompute="full"),
        Case("llama3.2-1b", 1, 8192, kernels="fused"),
        Case("llama3.2-3b", 2, 4096, recompute="full", kernels="fused"),
    ),
}

#: How the trainer runs each precision: the dtype of the parameters, and what it computes in.
RUNS = {
    "fp32": (torch.float32, torch.float32),
    "bf16-mixed": (torch.bfloat16, torch.float32),  # the parameters' own dtype: nothing to cast
    "autocast": (torch.float32, torch.bfloat16),
}


def measure(case: Case, device: str) -> int:
    """Bytes at the peak of the second step of a real run."""
    shape = load(case.model)
    stored, computed = RUNS[case.precision]
    model = Transformer(
        shape,
        attention=case.attention,
        recompute=case.recompute,
        ops=Ops.named(case.kernels),
        dtype=stored,
        device=device,
    )
    adam = {"lr": 1e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}
    optimizer = make_optimizer(model, **adam, formats=state_formats(case.moments))
    size = (2, case.micro_batch * case.grad_acc, case.seq)
    x, y = torch.randint(shape.vocab, size, generator=torch.Generator().manual_seed(0)).to(device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        accumulate_gradients(model, x, y, case.micro_batch, dtype=computed)
        optimizer.step()

    step()
    with peak_bytes(model, optimizer) as peak:
        step()
    return peak.bytes


def bench_memory(device: str) -> dict[str, Any]:
    """Every case of the device: predicted, measured, and the relative error (above 0: predicted too much)."""
    rows = []
    for case in CASES[torch.device(device).type]:
        predicted = case.predicted(torch.device(device).type)
        measured = measure(case, device)
        gc.collect()
        if torch.device(device).type == "cuda":
            torch.cuda.empty_cache()
        rows.append(
            {
                **asdict(case),
                "parameters": load(case.model).num_parameters,
                "moment": predicted.moment.name,
                "predicted_bytes": predicted.total,
                "measured_bytes": measured,
                "error": predicted.total / measured - 1,
            }
        )
    errors = [abs(row["error"]) for row in rows]
    summary = {"median_error": statistics.median(errors), "worst_error": max(errors)}
    return {"provenance": provenance(device), "cases": rows, **summary}


def report_memory(result: dict[str, Any]) -> str:
    """The result of ``bench_memory`` as a table for people."""
    head = f"{'model':14} {'batch':>12} {'acc':>3} {'precision':11} {'recompute':10} {'attention':10}"
    lines = [f"{head} {'predicted GB':>13} {'measured GB':>12} {'error':>7}  fullest moment"]
    for row in result["cases"]:
        name = row["model"] if len(row["model"]) < 15 else f"{row['parameters'] / 1e6:.1f}M"
        batch = f"{row['micro_batch']} × {row['seq']}"
        kind = f"{name:14} {batch:>12} {row['grad_acc']:3} {row['precision']:11} {row['recompute']:10}"
        sizes = f"{row['predicted_bytes'] / 1e9:13.4f} {row['measured_bytes'] / 1e9:12.4f}"
        lines.append(f"{kind} {row['attention']:10} {sizes} {row['error']:+7.2%}  {row['moment']}")
    lines.append(f"median |error| {result['median_error']:.2%}, worst {result['worst_error']:.2%}")
    return "\n".join(lines)
