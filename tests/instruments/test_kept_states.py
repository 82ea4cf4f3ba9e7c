"""Published recipes as the trainer runs them: what is counted on a rank is what the planner says, kind by kind."""

from __future__ import annotations

import pytest
import torch

from playbook import launch
from playbook.layout import Layout
from playbook.model.linear import linear_layers
from playbook.parallel.mesh import Mesh
from playbook.planning.memory import predict
from playbook.planning.recipes import recipe_of_run
from playbook.shapes import load
from playbook.training.config import TrainConfig
from playbook.training.data import load_corpus
from playbook.training.trainer import make_trainer
from playbook_book.instruments.kept_states import kept_states
from playbook_book.recipe_table import PUBLISHED

SHAPE = load("tiny").replace(layers=2, hidden=128, heads=4, kv_heads=2, head_dim=32, ffn=256)
#: Bytes per parameter: weights, gradients, masters, moments.
EACH = {
    "BF16": (2, 2, 4, 4, 4),
    "Transformer Engine": (4, 4, 0, 4, 4),
    "FP8-LM O3": (2, 2, 2, 1, 2),
    "DeepSeek-V3": (4, 4, 0, 2, 2),
}


@pytest.mark.parametrize("name", [name for name, one in PUBLISHED.items() if one.run])
def test_a_run_keeps_what_is_predicted(name):
    run = PUBLISHED[name].run
    config = TrainConfig(steps=2, global_batch=4, micro_batch=2, seq=32, device="cpu", **run)
    trainer = make_trainer(SHAPE, load_corpus(), config)
    trainer.run()
    kept = kept_states(trainer.engine)
    n, recipe = SHAPE.num_parameters, recipe_of_run(**run)
    assert [size / n for size in list(kept.values())[:5]] == list(EACH[name])
    stage = predict(SHAPE, Layout(micro_batch=2, grad_acc=2), seq=32, recipe=recipe, device="cpu").stages[0]
    optimizer = kept["masters"] + kept["first moments"] + kept["second moments"]
    assert (stage.parameters, stage.gradients, stage.optimizer) == (
        kept["weights"], kept["gradients"], optimizer
    )  # fmt: skip
    copies = sum(part.value for part in stage.buffer_parts if "FP8" in part.name)
    scales = 4 * sum(name.endswith("_scale") for state in trainer.optimizer.state.values() for name in state)
    assert copies == kept["weights in FP8"] + kept["scales"] - scales
    linear = sum(layer.weight.numel() for b in trainer.model.blocks for layer in linear_layers(b))
    assert kept["weights in FP8"] == (linear if "fp8" in run else 0)


def on_rank(names: list[str], text: str) -> list[dict[str, int]]:
    torch.set_num_threads(1)
    found = []
    with launch.process_group():
        mesh = Mesh(Layout.parse(text))
        for name in names:
            config = TrainConfig(steps=2, global_batch=4, seq=32, layout=mesh.layout, **PUBLISHED[name].run)
            trainer = make_trainer(SHAPE, load_corpus(), config, mesh)
            trainer.run()
            found.append(kept_states(trainer.engine))
    return found


@pytest.mark.parametrize("text", ["dp=2,zero=1", "dp=2,zero=2"])
def test_sharded_states_are_those_of_the_fullest_rank(ranks, text):
    """ZeRO shards masters and moments, and from stage 2 on gradients; copies in FP8 are whole on every rank."""
    names = [name for name, one in PUBLISHED.items() if one.run]
    every = ranks(on_rank, names, text, ranks=2).values
    for i, name in enumerate(names):
        most = {kind: max(kept[i][kind] for kept in every) for kind in every[0][i]}
        recipe = recipe_of_run(**PUBLISHED[name].run)
        layout = Layout.parse(text).replace(micro_batch=2)
        stage = predict(SHAPE, layout, seq=32, recipe=recipe, device="cpu").stages[0]
        optimizer = most["masters"] + most["first moments"] + most["second moments"]
        assert (stage.parameters, stage.gradients, stage.optimizer) == (
            most["weights"], most["gradients"], optimizer
        ), name  # fmt: skip
        codes = sum(
            term.value * part.times
            for part in stage.buffer_parts
            for term in part.terms
            if term.part == "weights in FP8" and "scales" not in term.name
        )
        assert codes == most["weights in FP8"], name
