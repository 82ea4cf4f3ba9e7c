"""What quantising costs is counted, and is nothing to the run that is watched."""

from __future__ import annotations

import pytest
import torch
from helpers import LLAMA

from playbook.errors import ConfigError
from playbook.model.fp8 import use_fp8
from playbook.model.transformer import Transformer
from playbook.precision.scaling import quantize
from playbook_book.instruments.fp8_watch import FP8Watch, Seen


def backward(model: Transformer, seed: int = 0) -> torch.Tensor:
    given = torch.Generator().manual_seed(seed)
    tokens = torch.randint(model.shape.vocab, (2, 9), generator=given)
    loss, count = model.loss(tokens[:, :-1], tokens[:, 1:])
    (loss / count).backward()
    return loss.detach()


def test_zeros_cuts_and_errors_are_counted():
    """Of 0, 2^−12, 3 and 900 in E4M3 with scale 1, the second becomes 0 and the last is cut to 448."""
    x = torch.tensor([[0.0, 2.0**-12, 3.0, 900.0]])
    seen = Seen()
    seen.note(x, quantize(x, "e4m3", scales=torch.ones(1, 1)), 448.0)
    assert (seen.amax, seen.underflow, seen.saturated) == (900.0, 1 / 3, 1 / 4)
    assert seen.error == pytest.approx(452 / 900, rel=1e-4)
    # In E5M2 all fit: 2^−12 is one of its numbers, and 900 becomes 896.
    seen = Seen()
    seen.note(x, quantize(x, "e5m2", scales=torch.ones(1, 1)), 57344.0)
    assert (seen.underflow, seen.saturated) == (0, 0)
    assert seen.error == pytest.approx(4 / 900, rel=1e-4)


@pytest.mark.parametrize("recipe", ["delayed", "tensorwise", "rowwise", "blockwise", "mxfp8"])
def test_a_model_that_is_watched_computes_the_same(recipe):
    models = [Transformer(LLAMA, seed=0) for _ in range(2)]
    for model in models:
        use_fp8(model, recipe)
    watch = FP8Watch(models[1])
    plain = backward(models[0])
    with watch:
        assert torch.equal(backward(models[1]), plain)
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one.grad, other.grad)
    layers = [
        f"blocks.{i}.{name}"
        for i in range(LLAMA.layers)
        for name in (
            "attention.q",
            "attention.k",
            "attention.v",
            "attention.out",
            "mlp.up",
            "mlp.gate",
            "mlp.down",
        )
    ]
    (seen,) = watch.steps
    shared = {"attention.k", "attention.v", "mlp.up"}  # read what another has quantised
    assert {name for name, what in seen if what == "x"} == {
        name for name in layers if name.partition(".")[2].partition(".")[2] not in shared
    }
    for what in ("dy", "weight"):
        assert {name for name, tensor in seen if tensor == what} == set(layers)
    assert all(0 < one.error < 0.2 for one in seen.values())
    for name, norm in watch.gradient_norms[0].items():
        assert norm == pytest.approx(float(models[0].get_submodule(name).weight.grad.norm()))
    assert set(layers) <= set(watch.gradient_norms[0])
    assert len(watch.share("dy")) == 1


def test_only_what_is_inside_is_seen():
    model = Transformer(LLAMA, seed=0)
    use_fp8(model, "tensorwise")
    watch = FP8Watch(model, ["blocks.0.mlp.down"])
    with watch:
        backward(model)
    backward(model)
    with watch:
        pass
    assert [{name for name, _ in step} for step in watch.steps] == [{"blocks.0.mlp.down"}, set()]
    assert watch.share("x", "error")[1] == 0


def test_a_model_without_fp8_is_named():
    with pytest.raises(ConfigError, match=r"no layer of the model multiplies in FP8: call use_fp8"):
        FP8Watch(Transformer(LLAMA, seed=0))
