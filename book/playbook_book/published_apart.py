"""Measured step times to which no calibration is fitted: what a prediction is worth where nobody has tuned it.

One number comes from them: ``host`` of Megatron-LM's calibrations, seconds in which a host launches an operation, from
the blocks of width 1,024 among `vtrain_one_node`. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from playbook_book.published import LLAMA, MEGATRON, RATES, Measured, gpt


def vtrain(size: str) -> Iterator[Measured]:
    """Layouts of one GPT on many nodes: what vTrain was held to. Activations are taken to be recomputed in full, as in
    Narayanan et al. 2021, whose models these are."""
    layers, h, heads, gpus, batch = RATES["vtrain"][size]["sizes"]
    for tp, dp, pp, micro, milliseconds in RATES["vtrain"][size]["rows"]:
        job = {
            **MEGATRON, "model": gpt(layers, h, heads), "layout": f"dp={dp},tp={tp},pp={pp},recompute=full",
            "micro_batch": micro, "global_batch": batch, "gpus": gpus,
        }  # fmt: skip
        yield Measured(
            f"vtrain {size}", f"tp={tp},dp={dp},pp={pp},micro_batch={micro}", job, milliseconds / 1e3
        )


def vtrain_one_node() -> Iterator[Measured]:
    """Small GPTs on one node, most of them so small that GPUs wait for the host. Nothing is recomputed."""
    for layers, h, batch, tp, dp, pp, micro, milliseconds in RATES["vtrain_one_node"]["rows"]:
        job = {
            **MEGATRON, "seq": 1024, "model": gpt(layers, h, 16, seq=1024), "layout": f"dp={dp},tp={tp},pp={pp}",
            "micro_batch": micro, "global_batch": batch, "gpus": dp * tp * pp,
        }  # fmt: skip
        name = f"{layers} layers of {h}, tp={tp},dp={dp},pp={pp},micro_batch={micro}"
        yield Measured("vtrain one node", name, job, milliseconds / 1e3)


def mt_nlg() -> Iterator[Measured]:
    """Megatron-Turing NLG 530B (Smith et al. 2022, arXiv 2201.11990, section 2.3): DeepSpeed's pipeline, which does not
    interleave stages, over Megatron-LM's tensor parallelism."""
    for dp, seconds in ((8, 60.1), (10, 50.2), (12, 44.4)):
        job = {
            **MEGATRON, "model": gpt(105, 20_480, 128), "layout": f"dp={dp},tp=8,pp=35,recompute=full",
            "micro_batch": 1, "global_batch": 1920, "gpus": 280 * dp,
        }  # fmt: skip
        yield Measured("mt-nlg", f"{35 * dp} nodes", job, seconds)


def maxtext() -> Iterator[Measured]:
    """MaxText on H100 in bf16: Llama 2 7B over Google's A3 (MaxText/configs/a3/llama_2_7b/README.md: TFLOP/s, from which
    seconds follow; products are kept, "minimal_flash"), and Llama 2 and 3 70B, all recomputed (NVIDIA's DGXC
    benchmarks 25.01 and 25.02: seconds)."""
    sizes = {
        "7B": {"layers": 32, "hidden": 4096, "heads": 32, "ffn": 11_008, "vocab": 32_000, "max_seq": 4096},
        "70B": {"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28_672, "vocab": 32_000},
    }
    each = (
        6 * (32 * (4 * 4096**2 + 3 * 4096 * 11_008) + 4096 * 32_000) + 12 * 32 * 4096 * 4096
    )  # FLOPs of a token
    rows = [
        ("7B", 4096, 8 * nodes, 4, f",replicate={nodes}" * (nodes > 1), 4 * 4096 * each / teraflops / 1e12)
        for nodes, teraflops in ((1, 492), (2, 422), (4, 407), (8, 409), (16, 375))
    ]
    rows += [("70B", 4096, 64, 2, ",recompute=full", 7.908), ("70B", 8192, 128, 2, ",recompute=full", 15.570)]
    for size, seq, gpus, micro, more, seconds in rows:
        network = {"base": "h100-8", "inter_bandwidth": 25e9} if size == "7B" else "h100-8"
        model = LLAMA | sizes[size] | {"positions": "rotary", "tied": False, "max_seq": seq}
        job = {
            "model": model | ({"vocab": 128_256} if seq == 8192 else {}), "cluster": network, "gpus": gpus, "seq": seq,
            "layout": f"dp={gpus},zero=3{more}", "micro_batch": micro, "global_batch": micro * gpus,
            "precision": "bf16", "fused": True,
        }  # fmt: skip
        yield Measured("maxtext", f"{size}, {gpus} GPUs, {seq}", job, seconds)


#: Tables to which nothing is fitted, by name.
APART = {f"vtrain {size}": partial(vtrain, size) for size in RATES["vtrain"]} | {
    "vtrain one node": vtrain_one_node, "mt-nlg": mt_nlg, "maxtext": maxtext,
}  # fmt: skip
