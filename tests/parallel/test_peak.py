"""The fullest moment of a step in which ranks share a sample, against the prediction."""

import pytest
import torch

from playbook import launch
from playbook.instruments.step_costs import StepCosts
from playbook.layout import Layout
from playbook.parallel.mesh import Mesh
from playbook.planning.memory import predict
from playbook.shapes import load
from playbook.training.config import TrainConfig
from playbook.training.data import load_corpus
from playbook.training.trainer import make_trainer

SHAPE = load("tiny").replace(layers=3)
RUN = {"steps": 2, "global_batch": 2, "seq": 64}


def peaks(layouts: list[str]) -> list[int]:
    torch.set_num_threads(1)
    with launch.process_group():
        meshes = [Mesh(Layout.parse(text)) for text in layouts]
        trainers = [
            make_trainer(SHAPE, load_corpus(), TrainConfig(layout=m.layout, **RUN), m) for m in meshes
        ]
        costs = [StepCosts(trainer) for trainer in trainers]
        for trainer in trainers:
            trainer.run()
        return [cost.peak_bytes for cost in costs]


def test_peak_of_tensor_and_sequence_parallelism(ranks):
    """One replica on several ranks has its gradients in one vector, too: they are there from the beginning to the end."""
    layouts = ["tp=2", "tp=2,sp"]
    for text, measured in zip(layouts, ranks(peaks, layouts, ranks=2)[0].value, strict=True):
        layout = Layout.parse(text).replace(micro_batch=2)
        predicted = predict(SHAPE, layout, seq=64, recipe="fp32", device="cpu").peak
        assert predicted == pytest.approx(measured, rel=0.03)
