"""The engines on CUDA with NCCL, on as many GPUs as there are."""

from __future__ import annotations

import pytest
import torch
from helpers import BLOCKS
from parallel_runs import Case, train

from playbook import launch
from playbook.layout import Layout
from playbook.model.transformer import Transformer
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.training.engine import OneDevice
from playbook.training.optimizer import is_matrix

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
        layout = Layout.parse(text)
        engine = parallelize(case.model(), Mesh(layout), case.make(), **options)
        found = train(case, engine, world.rank, world.size, layout.grad_acc)
        devices = {kind: {t.device.type for t in ts} for kind, ts in engine.tensors().items()}
        return found.losses.cpu(), found.norms.cpu(), found.last.cpu(), devices


def alone(case: Case):
    model = case.model()
    return train(case, OneDevice(model, case.make()([(p, is_matrix(p)) for p in model.parameters()])))


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


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_offloaded_states_are_in_cpu_memory(zero):
    case = OnCuda(BLOCKS["llama"], dtype=torch.bfloat16, offload=True, steps=3)
    for *_, devices in launch.run(run, case, f"dp=1,zero={zero}", {}, ranks=1, timeout=120).values:
        assert devices == {"parameters": {"cuda"}, "gradients": {"cuda"}, "optimizer": {"cpu"}}
