"""The engines on CUDA with NCCL, on as many GPUs as there are."""

from __future__ import annotations

import pytest
import torch
from helpers import BLOCKS
from parallel_runs import Case, train

from playbook import launch
from playbook.layout import Layout
from playbook.layout.tokens import MaskBlock
from playbook.model.attend import attend, attend_backward, flash, flash_backward, has_kernel
from playbook.model.ops import sdpa_attention
from playbook.model.transformer import Transformer
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize

GPUS = torch.cuda.device_count()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="needs a CUDA device")]


class OnCuda(Case):
    """The same cases on this rank's GPU."""

    def model(self) -> Transformer:
        return Transformer(self.shape, recompute=self.recompute, seed=1, dtype=self.dtype, device="cuda")

    def batch(self, step: int):
        return tuple(t.cuda() for t in super().batch(step))


def run(case: Case, text: str, options: dict) -> tuple:
    with launch.process_group() as world:
        assert world.backend == "nccl"
        mesh = Mesh(Layout.parse(text).replace(**options))
        engine = parallelize(case.model(), mesh, case.make())
        found = train(case, engine, grad_acc=mesh.layout.grad_acc, mesh=mesh)
        devices = {kind: {t.device.type for t in ts} for kind, ts in engine.tensors().items()}
        return found.losses.cpu(), found.norms.cpu(), found.last.cpu(), devices


def alone(case: Case):
    return train(case, case.engine())


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("zero", range(4))
def test_every_stage_is_one_device(zero, recompute):
    case = OnCuda(BLOCKS["llama"], recompute, steps=4)
    reference = alone(case)
    options = {} if zero == 3 else {"bucket": 20_000, "first_bucket": 3_000}
    ranks = next(n for n in (4, 3, 2, 1) if n <= GPUS)
    for found in launch.run(
        run, case, f"dp={ranks},zero={zero},grad_acc=2", options, ranks=ranks, timeout=120
    ).values:
        losses, norms, last, devices = found
        assert (losses / reference.losses.cpu() - 1).abs().max() < 1e-5
        assert (norms / reference.norms.cpu() - 1).abs().max() < 1e-4
        assert (last - reference.last.cpu()).norm() / reference.last.cpu().norm() < 1e-4
        assert devices["optimizer"] == {"cuda"}


@pytest.mark.parametrize("moments", ["bf16", "fp8"])
@pytest.mark.parametrize("zero", [0, 2, 3])
def test_moments_in_few_bits(zero, moments):
    case = OnCuda(BLOCKS["llama"], dtype=torch.bfloat16, moments=moments, steps=3)
    for losses, _, _, devices in launch.run(run, case, f"dp=1,zero={zero}", {}, ranks=1, timeout=120).values:
        assert (losses / alone(case).losses.cpu() - 1).abs().max() < 1e-2
        assert devices["optimizer"] == {"cuda"}


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_offloaded_states_are_in_cpu_memory(zero):
    case = OnCuda(BLOCKS["llama"], dtype=torch.bfloat16, offload=True, steps=3)
    for *_, devices in launch.run(run, case, f"dp=1,zero={zero}", {}, ranks=1, timeout=120).values:
        assert devices == {"parameters": {"cuda"}, "gradients": {"cuda"}, "optimizer": {"cpu"}}


@pytest.mark.skipif(GPUS < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize(
    ("layout", "options"),
    [
        ("tp=2", {}),
        ("tp=2,sp", {}),
        ("tp=2,sp", {"tensor_overlap": "chunked"}),
        ("cp=2", {}),
        ("cp=2", {"context": "gather"}),
        ("cp=2", {"context": "ulysses"}),
        ("pp=2,grad_acc=4", {}),
        ("pp=2,grad_acc=4,schedule=zb-h1", {}),
        ("pp=2,grad_acc=4,schedule=dualpipe", {}),
    ],
)
def test_layers_and_samples_cut_in_pieces_are_one_device(layout, options):
    case = OnCuda(BLOCKS["llama"].replace(heads=4, kv_heads=2, ffn=52), steps=4)
    reference = alone(case)
    for losses, norms, last, _ in launch.run(run, case, layout, options, ranks=2, timeout=120).values:
        assert (losses / reference.losses.cpu() - 1).abs().max() < 1e-5
        assert (norms / reference.norms.cpu() - 1).abs().max() < 1e-4
        assert (last - reference.last.cpu()).norm() / reference.last.cpu().norm() < 1e-4


@pytest.mark.parametrize("heads", [4, 8])
def test_flash_kernels_give_what_the_formulas_do(heads):
    """Blocks of attention in 16 bits: output, log-sum-exp, and gradients from those of all keys."""
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v, gradient = (
        torch.randn(2, n, 64, 32, generator=generator, device="cuda", dtype=torch.bfloat16)
        for n in (heads, 4, 4, heads)
    )
    assert has_kernel(q)
    for block in (MaskBlock(0, 64, 0, 64, causal=True), MaskBlock(32, 64, 0, 48)):
        found, expected = flash(block, q, k, v), attend(block, q, k, v)
        torch.testing.assert_close(found[0].float(), expected[0], atol=2e-2, rtol=2e-2)
        torch.testing.assert_close(found[1], expected[1], atol=2e-2, rtol=2e-2)
        out, lse = torch.zeros_like(q), torch.zeros(q.shape[:3], device="cuda")
        block.queries(out).copy_(expected[0])
        block.queries(lse).copy_(expected[1])
        for a, b in zip(
            flash_backward(block, gradient, q, k, v, out, lse),
            attend_backward(block, gradient, q, k, v, out, lse),
            strict=True,
        ):
            torch.testing.assert_close(a.float(), b, atol=5e-2, rtol=5e-2)


@pytest.mark.parametrize(("dtype", "kv_heads"), [("bfloat16", 2), ("float32", 4), ("float32", 2)])
def test_attention_writes_no_scores_down(dtype, kv_heads):
    """16 bits or 32, grouped or not: 4 096 tokens have 16 M pairs, which the formula would keep for each of 4 heads."""
    shape = BLOCKS["llama"].replace(heads=4, kv_heads=kv_heads, hidden=64, max_seq=4096)
    model = Transformer(shape, dtype=getattr(torch, dtype), device="cuda")
    x, y = torch.randint(shape.vocab, (2, 1, 4096), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model.loss(x, y)[0].backward()
    assert torch.cuda.max_memory_allocated() - before < 2 * 4 * 4096**2


def test_with_normed_queries_autocast_keeps_flash_attention():
    """Queries and keys that came back in fp32 would have a ring compute with formulas."""
    shape, seen = BLOCKS["llama"].replace(hidden=64, heads=2, kv_heads=1, qk_norm=True), []
    model = Transformer(shape, device="cuda")

    def core(q, k, v, *rest):
        seen.append((q.dtype, k.dtype, v.dtype, has_kernel(q)))
        return sdpa_attention(q, k, v)

    for block in model.blocks:
        block.attention.core = core
    with torch.autocast("cuda", torch.bfloat16):
        model.loss(*torch.randint(shape.vocab, (2, 2, 16), device="cuda"))
    assert set(seen) == {(torch.bfloat16, torch.bfloat16, torch.bfloat16, True)}
