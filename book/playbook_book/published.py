"""Measured step times of published runs, typed in, with their sources: what the simulator is held to.

Each row is a job as ``playbook simulate --jobs`` reads it, with what was measured. Standard library only.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pkgutil import get_data
from typing import Any

from playbook.block import Kind
from playbook.planning.simulator import Run

#: Rows that are many, as their authors print them.
RATES = tomllib.loads((get_data(__package__, "published_rates.toml") or b"").decode())


@dataclass(frozen=True)
class Measured:
    """A row of a table: what ran, by the keys of a job, and how many seconds it took.

    ``of`` says what was measured: a whole step; or passes of one block or of a middle stage, for one micro-batch.
    """

    table: str
    name: str
    job: dict[str, Any]
    seconds: float
    of: str = "step"


def gpt(layers: int, hidden: int, heads: int, vocab: int = 51_200, seq: int = 2048) -> dict[str, Any]:
    """A GPT of Megatron-LM's papers: LayerNorm, GELU, dropout, learned positions, a tied head."""
    return {
        "layers": layers, "hidden": hidden, "heads": heads, "vocab": vocab, "max_seq": seq, "dropout": 0.1,
    }  # fmt: skip


#: What blocks of Llama have that those of GPT have not.
LLAMA = {"gated": True, "activation": "silu", "norm": "rmsnorm", "bias": False}
#: fp16 products, gradients added up in fp32 beside 16-bit weights: Megatron-LM's.
MEGATRON = {"cluster": "a100-8", "seq": 2048, "precision": "bf16-mixed-main-grads", "attention": "reference"}

#: Narayanan et al. 2021, arXiv 2104.04473, table 1: heads, hidden, layers, tensor, pipeline, GPUs, batch, micro-batch,
#: model chunks, TFLOP/s per GPU, in which a second forward pass (full recomputation) is counted.
NARAYANAN = (
    ("1.7B", 24, 2304, 24, 1, 1, 32, 512, 16, 1, 137),
    ("3.6B", 32, 3072, 30, 2, 1, 64, 512, 16, 1, 138),
    ("7.5B", 32, 4096, 36, 4, 1, 128, 512, 16, 1, 142),
    ("18.4B", 48, 6144, 40, 8, 1, 256, 1024, 8, 1, 135),
    ("39.1B", 64, 8192, 48, 8, 2, 512, 1536, 4, 1, 138),
    ("76.1B", 80, 10240, 60, 8, 4, 1024, 1792, 2, 3, 140),
    ("145.6B", 96, 12288, 80, 8, 8, 1536, 2304, 2, 2, 148),
    ("310.1B", 128, 16384, 96, 8, 16, 1920, 2160, 1, 2, 155),
    ("529.6B", 128, 20480, 105, 8, 35, 2520, 2520, 1, 3, 163),
    ("1008B", 160, 25600, 128, 8, 64, 3072, 3072, 1, 1, 163),
)
#: Korthikanti et al. 2022, arXiv 2205.05198, table 3 and 5: heads, hidden, layers, tensor, pipeline, chunks, GPUs, batch,
#: micro-batch, seconds with full recomputation, seconds with sequence parallelism and selective recomputation.
KORTHIKANTI = (
    ("22B", 64, 6144, 48, 8, 1, 1, 8, 4, 4, 1.42, 1.10),
    ("175B", 96, 12288, 96, 8, 8, 3, 64, 64, 1, 18.13, 13.75),
    ("530B", 128, 20480, 105, 8, 35, 3, 280, 280, 1, 49.05, 37.83),
    ("1T", 160, 25600, 128, 8, 64, 1, 512, 512, 1, 94.42, 71.49),
    ("530B, dp=8", 128, 20480, 105, 8, 35, 3, 2240, 2240, 1, None, 39.15),
)
#: The same, table 4: one block of the 22B model: forward, then backward with what is recomputed, milliseconds.
KORTHIKANTI_BLOCK = (
    ("no recomputation", "", 7.7, 11.9),
    ("sequence parallelism", "sp", 7.2, 11.8),
    ("full recomputation", "recompute=full", 7.7, 19.5),
    ("selective recomputation", "recompute=selective", 7.7, 13.2),
    ("selective, sequence parallelism", "sp,recompute=selective", 7.2, 13.1),
)
#: Qi et al. 2023, arXiv 2401.10241, tables 3 and 9: layers, heads, hidden, stages, micro-batch, milliseconds of F, B, W
#: of a stage for the fewest micro-batches. Embedding and head count as a layer each: stages in the middle have
#: (layers + 2)/stages.
QI = (
    ("1.5B", 22, 24, 2304, 8, 6, 18.522, 18.086, 9.337),
    ("6.2B", 30, 32, 4096, 8, 3, 29.718, 29.444, 19.927),
    ("14.6B", 46, 40, 5120, 16, 1, 11.347, 11.248, 8.132),
    ("28.3B", 62, 48, 6144, 32, 1, 10.419, 10.207, 7.715),
)
#: Liang et al. 2024, arXiv 2410.06511 (TorchTitan), tables 1 to 6, on H100 with 96 GB, 2.4 TB/s and 500 W: model, GPUs,
#: fsdp, tp, cp, pp, sequence, batch of a replica, recomputation, schedule, compiled, float8, asynchronous tp, tokens/s of
#: a GPU.
#: Pipelines take eight micro-batches, as many as they have ranks: the library's default.
TORCHTITAN = (
    ("8b", 8, 8, 1, 1, 1, 8192, 2, "selective", "", False, False, False, 5762),
    ("8b", 8, 8, 1, 1, 1, 8192, 2, "selective", "", True, False, False, 6667),
    ("8b", 8, 8, 1, 1, 1, 8192, 2, "selective", "", True, True, False, 8532),
    ("8b", 8, 8, 1, 1, 1, 32768, 1, "full", "", True, True, False, 3890),
    ("8b", 8, 4, 1, 2, 1, 65536, 1, "full", "", True, True, False, 2540),
    ("8b", 8, 2, 1, 4, 1, 131072, 1, "full", "", True, True, False, 1071),
    ("8b", 8, 1, 1, 8, 1, 262144, 1, "full", "", True, True, False, 548),
    ("8b", 128, 128, 1, 1, 1, 8192, 2, "selective", "", False, False, False, 5605),
    ("8b", 128, 128, 1, 1, 1, 8192, 2, "selective", "", True, False, False, 6514),
    ("8b", 128, 128, 1, 1, 1, 8192, 2, "selective", "", True, True, False, 8380),
    ("70b", 256, 32, 8, 1, 1, 8192, 16, "full", "", True, True, False, 829),
    ("70b", 256, 32, 8, 1, 1, 8192, 16, "full", "", True, True, True, 876),
    ("405b", 512, 8, 8, 1, 8, 8192, 32, "full", "1f1b", True, True, True, 100),
    ("405b", 512, 8, 8, 1, 8, 8192, 32, "full", "interleaved", True, True, True, 128),
    ("405b", 512, 8, 8, 1, 8, 32768, 8, "full", "1f1b", True, True, True, 76),
    ("405b", 512, 4, 8, 2, 8, 65536, 8, "full", "1f1b", True, True, True, 47),
    ("405b", 512, 2, 8, 4, 8, 131072, 8, "full", "1f1b", True, True, True, 31),
    ("405b", 512, 1, 8, 8, 8, 262144, 8, "full", "1f1b", True, True, True, 16),
)


def narayanan() -> Iterator[Measured]:
    """Table 1 of Narayanan et al. 2021, as seconds of a step."""
    for name, heads, h, layers, tp, pp, gpus, batch, micro, vpp, teraflops in NARAYANAN:
        s, vocab, dp = 2048, 51_200, gpus // tp // pp
        flops = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h))
        schedule = f",vpp={vpp},schedule=interleaved" if vpp > 1 else ""
        layout = f"dp={dp},tp={tp},pp={pp},recompute=full{schedule}"
        sizes = {"micro_batch": micro, "global_batch": batch}
        job = {**MEGATRON, "model": gpt(layers, h, heads), "layout": layout, **sizes}
        yield Measured("narayanan", name, job | {"gpus": gpus}, flops / (gpus * teraflops * 1e12))


def korthikanti() -> Iterator[Measured]:
    """Iteration times of table 5 of Korthikanti et al. 2022."""
    for name, heads, h, layers, tp, pp, vpp, gpus, batch, micro, full, selective in KORTHIKANTI:
        schedule = f",vpp={vpp},schedule=interleaved" if vpp > 1 else ""
        shared = f"dp={gpus // tp // pp},tp={tp},pp={pp}{schedule}"
        for what, more, seconds in (
            ("full", ",recompute=full", full),
            ("selective", ",sp,recompute=selective", selective),
        ):
            if seconds:
                job = {**MEGATRON, "model": gpt(layers, h, heads), "layout": shared + more}
                job |= {"micro_batch": micro, "global_batch": batch, "gpus": gpus}
                yield Measured("korthikanti", f"{name} {what}", job, seconds)


def korthikanti_block() -> Iterator[Measured]:
    """Passes of one block, table 4 of Korthikanti et al. 2022."""
    for name, more, forward, backward in KORTHIKANTI_BLOCK:
        layout = ",".join(filter(None, ("tp=8", more)))
        sizes = {"micro_batch": 4, "global_batch": 4, "gpus": 8}
        job = {**MEGATRON, "model": gpt(48, 6144, 64), "layout": layout, **sizes}
        yield Measured("korthikanti block", f"{name}, forward", job, forward / 1e3, "block forward")
        yield Measured("korthikanti block", f"{name}, backward", job, backward / 1e3, "block backward")


def qi() -> Iterator[Measured]:
    """F, B and W of a stage in the middle, table 9 of Qi et al. 2023."""
    for name, layers, heads, h, stages, micro, *times in QI:
        sizes = [(layers + 2) // stages] * stages
        sizes[0], sizes[-1] = sizes[0] - 1, sizes[-1] - 1
        job = {
            **MEGATRON, "seq": 1024, "model": gpt(layers, h, heads, seq=1024), "layout": f"pp={stages},schedule=zb-h1",
            "micro_batch": micro, "global_batch": micro * 3 * stages, "gpus": stages, "stage_layers": tuple(sizes),
        }  # fmt: skip
        for direction, milliseconds in zip("FBW", times, strict=True):
            yield Measured("qi", f"{name} {direction}", job, milliseconds / 1e3, f"stage {direction}")


def torchtitan() -> Iterator[Measured]:
    """Tables 1 to 6 of Liang et al. 2024."""
    gpu = {"base": "h100-8", "memory_bytes": 95 * 2**30, "memory_bandwidth": 2.4e12}
    for model, gpus, fsdp, tp, cp, pp, seq, batch, again, schedule, compiled, fp8, hidden, rate in TORCHTITAN:
        micro = batch if pp == 1 else batch // 8
        layout = f"dp={fsdp},tp={tp},cp={cp},pp={pp},zero=3,recompute={again}" + ",sp" * (tp > 1)
        if schedule == "interleaved":
            layout += ",schedule=interleaved,vpp=2"
        job = {
            "model": f"llama3.1-{model}", "cluster": gpu, "layout": layout, "gpus": gpus, "seq": seq,
            "micro_batch": micro,
            "global_batch": fsdp * batch, "precision": "fp8" if fp8 else "bf16", "fused": compiled,
            "overlap": {"tp": hidden},
        }  # fmt: skip
        name = (
            f"{model} {gpus} GPUs, {seq}" + ", compiled" * compiled + ", float8" * fp8 + ", async tp" * hidden
        )
        yield Measured("torchtitan", f"{name} {schedule}".strip(), job, fsdp * batch * seq / gpus / rate)


def fsdp(table: str, rows: Sequence[Sequence[Any]], cluster: Any, precision: str) -> Iterator[Measured]:
    """Rows of MosaicML's LLM Foundry: GPTs without biases and dropout, weights sharded over all GPUs."""
    for size, seq, gpus, again, micro, count, rate in rows:
        layers, hidden, heads = RATES["mpt"][size]
        model = gpt(layers, hidden, heads, 50_368, seq) | {"dropout": 0.0, "bias": False}
        job = {
            "model": model, "cluster": cluster, "gpus": gpus, "seq": seq, "micro_batch": micro, "fused": False,
            "global_batch": gpus * micro * count, "precision": precision,
            "layout": f"dp={gpus},zero=3" + ",recompute=full" * again,
        }  # fmt: skip
        yield Measured(table, f"{size} {gpus} GPUs, {seq}, {precision}", job, micro * count * seq / rate)


def fsdp_h100() -> Iterator[Measured]:
    """LLM Foundry on H100, in bf16 and in FP8."""
    yield from fsdp("fsdp h100", RATES["fsdp_h100"], "h100-8", "bf16")
    yield from fsdp("fsdp h100", RATES["fsdp_h100_fp8"], "h100-8", "fp8")


def fsdp_a100() -> Iterator[Measured]:
    """LLM Foundry on A100."""
    yield from fsdp("fsdp a100", RATES["fsdp_a100"], {"base": "a100-8", "inter_bandwidth": 25e9}, "bf16")


def nemo() -> Iterator[Measured]:
    """NeMo's summary of pre-training in FP8, on H100."""
    sizes = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "gated")
    for name, *given, gpus, batch, micro, seq, tp, pp, cp, vpp, rate in RATES["nemo"]:
        model = dict(zip(sizes, given, strict=True)) | {"positions": "rotary", "tied": False, "max_seq": seq}
        model |= LLAMA if model["gated"] else {}
        layout = f"tp={tp},cp={cp},pp={pp},zero=1" + ",sp" * (tp > 1)
        layout += f",vpp={vpp},schedule=interleaved" * (vpp > 1)
        job = {
            "model": model, "cluster": "h100-8", "gpus": gpus, "layout": layout, "micro_batch": micro,
            "global_batch": batch, "seq": seq, "precision": "fp8", "fused": True,
        }  # fmt: skip
        yield Measured("nemo", f"{name}, {gpus} GPUs", job, batch * seq / gpus / rate)


def simumax() -> Iterator[Measured]:
    """SimuMax's runs of Megatron-LM on B200: Llama 3 of few layers."""
    sizes = {"70b": (8192, 64, 8, 28_672), "405b": (16_384, 128, 16, 53_248)}
    for size, layers, tp, pp, cp, seq, _, times in RATES["simumax"]:
        shape: dict[str, Any] = dict(zip(("hidden", "heads", "kv_heads", "ffn"), sizes[size], strict=True))
        shape |= {"layers": layers, "vocab": 128_256, "max_seq": seq, "positions": "rotary", "tied": False}
        layout, dp = f"tp={tp},pp={pp},cp={cp},zero=1" + ",sp" * (tp > 1), 8 // (tp * pp * cp)
        for count, milliseconds in zip((4, 8, 32), times, strict=False):
            job = {
                "model": shape | LLAMA, "cluster": "b200-8", "gpus": 8, "layout": layout, "context": "ulysses",
                "micro_batch": 1, "global_batch": dp * count, "seq": seq, "precision": "bf16-mixed-main-grads",
                "fused": True, "overlap": dict.fromkeys(("dp", "tp", "cp", "pp"), False),
            }  # fmt: skip
            yield Measured(
                "simumax", f"{size}, {layout}, {seq}, {count} micro-batches", job, milliseconds / 1e3
            )


def deepseek() -> Iterator[Measured]:
    """DeepSeek-V3's pre-training: 2.664 M GPU-hours for 14.8 T tokens (DeepSeek-AI 2024, arXiv 2412.19437, table 1)."""
    job = {
        "model": "deepseek-v3", "cluster": "h800-8", "gpus": 2048, "seq": 4096, "precision": "fp8:blockwise",
        "layout": "pp=16,ep=64,zero=1,schedule=dualpipe", "micro_batch": 1, "global_batch": 15_360,
    }  # fmt: skip
    yield Measured("deepseek", "DeepSeek-V3, 2048 GPUs", job, 15_360 * 4096 / 2048 * 2.664e6 * 3600 / 14.8e12)


#: Qwen3-8B on one sample of 1,048,576 tokens, on 8 H100: TRL 1.13's guide Training Beyond 1M Tokens and its example,
#: sft_qwen3_8b_1m_context (2026): FSDP2 over a ring of 8, weights in fp32, the loss in chunks, checkpoints in CPU memory.
#: GB of a GPU, of which it does not say whether they are GiB, and what is asked of `planning.job.Job`.
MILLION = 56.2, {
    "layout": "cp=8,zero=3,recompute=full+offload", "seq": 1_048_576, "recipe": "autocast",
    "fused": "linear-cross-entropy",
}  # fmt: skip
#: Every table by its name.
TABLES = {
    "narayanan": narayanan, "korthikanti": korthikanti, "korthikanti block": korthikanti_block, "qi": qi,
    "torchtitan": torchtitan, "fsdp a100": fsdp_a100, "fsdp h100": fsdp_h100, "nemo": nemo,
    "simumax": simumax, "deepseek": deepseek,
}  # fmt: skip


def seconds_of(row: Measured, run: Run) -> float:
    """The seconds that a simulated run has for what a row measured."""
    if row.of == "step":
        return run.seconds
    one = run.times.blocks[Kind()] if row.of.startswith("block") else run.stages[1]
    parts = {
        "block forward": one.forward.seconds, "block backward": one.inputs.seconds + one.weights.seconds,
        "stage F": one.forward.seconds, "stage B": one.inputs.seconds, "stage W": one.weights.seconds,
    }  # fmt: skip
    return parts[row.of]
