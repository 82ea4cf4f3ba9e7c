"""What the engine of a pipeline does besides giving the right numbers: when messages leave, where gradients lie."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from helpers import BLOCKS
from parallel_runs import OPTIMIZER, Case

from playbook import launch
from playbook.layout import Layout
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.training.optimizer import adamw
from playbook.training.trainer import accumulate_gradients

CASE = Case(BLOCKS["llama"].replace(layers=4, hidden=16, heads=4, kv_heads=2, ffn=24), samples=4)
LINEARS = 7  # of a block: q, k, v, o, gate, up, down


def watched(text: str) -> dict[str, Any]:
    """Of a step: how many weights of the stage had no gradient yet when each B or BW sent its message; where they lie."""
    found: dict[str, Any] = {"missing": {}}
    with launch.process_group():
        mesh = Mesh(Layout.parse(text))
        engine: Any = parallelize(CASE.model(), mesh, partial(adamw, **OPTIMIZER))
        pipeline = engine.pipeline
        for channel in pipeline.channels.values():
            send = channel.send

            def look(what, tensor, send=send):
                stage = pipeline.stages[what.stage]
                linear = [p for name, p in stage.parameters().items() if p.dim() == 2 and "blocks" in name]
                if what.op == "B" and what.microbatch == 0:
                    found["missing"][what.stage] = sum(p.grad is None for p in linear)
                send(what, tensor)

            channel.send = look
        accumulate_gradients(engine.model, *CASE.batch(0), 1, engine=engine)
        (vector,) = engine.tensors()["gradients"][:1]
        homes = pipeline.later.homes
        found["at home"] = [p.grad.data_ptr() == homes[p].data_ptr() for p in engine.model.parameters()]
        assert all(
            home.untyped_storage().data_ptr() == vector.untyped_storage().data_ptr()
            for home in homes.values()
        )
        try:
            engine.model(CASE.batch(0)[0])
        except RuntimeError as error:
            found["refusal"] = str(error)
    return found


def test_a_gradient_leaves_before_the_first_block_has_its_own(ranks):
    """Two blocks on each of two stages: when BW of stage 1 sends, the weights of its first block are still to come."""
    first, last = ranks(watched, "pp=2,grad_acc=4", ranks=2).values
    assert first["missing"] == {}
    assert last["missing"] == {1: LINEARS}


def test_b_computes_no_gradient_of_a_linear_layer(ranks):
    _, last = ranks(watched, "pp=2,grad_acc=4,schedule=zb-h1", ranks=2).values
    assert last["missing"] == {1: 2 * LINEARS}


def test_gradients_lie_in_the_vector_and_the_model_is_refused(ranks):
    for found in ranks(watched, "pp=2,grad_acc=4", ranks=2).values:
        assert all(found["at home"])
        assert found["at home"]
        assert "run stages, or an engine's accumulate, not the model" in found["refusal"]


def linear_and_home(in_place: bool) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    from playbook.parallel.weight_gradients import WeightGradients, linear

    later = WeightGradients(in_place)
    weight, home = torch.nn.Parameter(torch.randn(3, 4)), torch.full((3, 4), 7.0)
    later.homes = {weight: home}
    x = torch.randn(5, 4)
    for _ in range(2):
        linear(x, weight, None, later).sum().backward()
    return 2 * x.sum(0).expand(3, 4), weight.grad, home


def test_the_first_product_is_written_where_the_gradient_is_to_lie():
    expected, gradient, home = linear_and_home(in_place=True)
    torch.testing.assert_close(gradient, expected)
    assert gradient is not None
    assert gradient.data_ptr() == home.data_ptr()
    expected, gradient, home = linear_and_home(in_place=False)
    torch.testing.assert_close(gradient, expected)
    assert bool((home == 7).all())
