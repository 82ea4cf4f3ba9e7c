"""``playbook bench train``: the model, and recomputation, beside the best public peer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from playbook.bench import provenance
from playbook.instruments.memory_timeline import peak_bytes
from playbook.model.transformer import Transformer
from playbook.shapes import ModelShape
from playbook_book.instruments.measured import compare_times


def bench_train(
    shape: ModelShape,
    micro_batch: int,
    seq: int,
    repeats: int,
    device: str,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Any]:
    """Forward and backward of one micro-batch, all weights in ``dtype``: the model against transformers' Llama (where
    that is installed), and our recomputation against ``torch.utils.checkpoint``.

    Returns, per comparison, median seconds of both and their ratio (below 1: ours is faster); and the peak bytes of
    the three ways to keep activations.
    """
    tokens = torch.randint(shape.vocab, (2, micro_batch, seq), generator=torch.Generator().manual_seed(0))
    x, y = tokens.to(device)
    of: dict[str, Any] = {"dtype": dtype, "device": device}
    models = {
        "none": Transformer(shape, **of),
        "full": Transformer(shape, recompute="full", **of),
        "torch.utils.checkpoint": _TorchCheckpointed(shape, **of),
    }
    steps: dict[str, Callable[[], None]] = {
        name: partial(_step, model, x, y) for name, model in models.items()
    }
    if (peer := transformers_llama(models["none"]) if is_llama(shape) else None) is not None:
        steps["transformers"] = partial(_peer_step, peer, x, y)
    pairs = {
        "model / transformers": ("none", "transformers"),
        "full recomputation / torch.utils.checkpoint": ("full", "torch.utils.checkpoint"),
        "full recomputation / none": ("full", "none"),
    }
    results = {
        name: _compare(steps[ours], steps[other], repeats, device)
        for name, (ours, other) in pairs.items()
        if other in steps
    }
    return {
        "provenance": provenance(device),
        "model": shape.name,
        "micro_batch": micro_batch,
        "seq": seq,
        "dtype": str(dtype).removeprefix("torch."),
        "repeats": repeats,
        "comparisons": results,
        "peak_bytes": {name: _peak(model, x, y) for name, model in models.items()},
    }


def report_train(result: dict[str, Any]) -> str:
    """The result of ``bench_train`` as a table for people."""
    size = f"{result['micro_batch']} × {result['seq']} tokens, {result['dtype']}"
    lines = [f"{result['model']}, micro-batch {size}, forward and backward"]
    lines.append(f"  {'ours / peer':46} {'ours ms':>9} {'peer ms':>9} {'ratio':>7}")
    for name, c in result["comparisons"].items():
        lines.append(f"  {name:46} {c['ours_s'] * 1e3:9.1f} {c['peer_s'] * 1e3:9.1f} {c['ratio']:7.3f}")
    peaks = ", ".join(f"{name} {value / 2**20:.1f}" for name, value in result["peak_bytes"].items())
    return "\n".join([*lines, f"  peak MiB: {peaks}"])


class _TorchCheckpointed(Transformer):
    """The same model with PyTorch's own checkpointing around each block."""

    def run_block(self, block: torch.nn.Module, x: Tensor, *rotary: Tensor) -> Tensor:
        return torch_checkpoint(block, x, *rotary, use_reentrant=False, preserve_rng_state=self.p > 0)


def _compare(
    ours: Callable[[], None], peer: Callable[[], None], repeats: int, device: str
) -> dict[str, float]:
    times = compare_times({"ours": ours, "peer": peer}, repeats=repeats, device=device)
    return {"ours_s": times["ours"], "peer_s": times["peer"], "ratio": times["ours"] / times["peer"]}


def _step(model: Transformer, x: Tensor, y: Tensor) -> None:
    model.zero_grad(set_to_none=True)
    total, count = model.loss(x, y)
    (total / count).backward()


def _peer_step(model: Any, x: Tensor, y: Tensor) -> None:
    model.zero_grad(set_to_none=True)
    llama_loss(model, x, y).backward()


def _peak(model: Transformer, x: Tensor, y: Tensor) -> int:
    model.zero_grad(set_to_none=True)
    with peak_bytes(model) as peak:
        _step(model, x, y)
    return peak.bytes


def is_llama(shape: ModelShape) -> bool:
    return shape.gated and shape.norm == "rmsnorm" and shape.positions == "rotary" and not shape.bias


def transformers_llama(ours: Transformer) -> Any:
    """transformers' Llama of the same shape on the same device, or None where it is not installed."""
    try:
        import transformers
    except ImportError:
        return None
    shape = ours.shape
    config: Any = transformers.LlamaConfig(
        vocab_size=shape.vocab, hidden_size=shape.hidden, intermediate_size=shape.ffn_dim,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.n_kv_heads,
        head_dim=shape.qk_dim, rms_norm_eps=shape.norm_eps, max_position_embeddings=shape.max_seq,
        tie_word_embeddings=shape.tied, attn_implementation="sdpa",
    )  # fmt: skip
    model: Any = transformers.LlamaForCausalLM(config)
    return model.to(ours.embedding.weight)


def llama_loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
    """The mean loss of such a model; x and y are (micro_batch, seq)."""
    logits = model(x, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), y.flatten())
