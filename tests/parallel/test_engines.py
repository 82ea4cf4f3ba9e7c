"""Engines beside the plain step: evaluation, layers that are used now and then, frozen weights, a second engine."""

from __future__ import annotations

import itertools

import pytest
import torch
from all_pairs import all_pairs, combined
from helpers import BLOCKS
from parallel_runs import Case, on_ranks, train
from torch import Tensor, nn

from playbook import launch
from playbook.errors import PlaybookError
from playbook.layout import Layout
from playbook.parallel.data import STRATEGIES
from playbook.parallel.engine import Engine
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.parallel.zero import Zero1, Zero2


def evaluated(runs: list[tuple[Case, dict]]) -> list[dict[str, float]]:
    """In a rank: how far logits under ZeRO-3 are from those of one device after two steps, and a third step's error."""
    torch.set_num_threads(1)
    with launch.process_group() as world:
        return [one_evaluated(world, *run) for run in runs]


def one_evaluated(world: launch.World, case: Case, options: dict) -> dict[str, float]:
    engine = parallelize(case.model(), Mesh(Layout(dp=2, zero=3, **options)), case.make())
    alone = case.engine()
    train(case, engine, world.rank, world.size)
    train(case, alone)
    x, found = case.batch(0)[0][:2], {}
    for training, grad in itertools.product((False, True), repeat=2):
        with torch.set_grad_enabled(grad):
            a, b = (e.model.train(training)(x).detach() for e in (engine, alone))
        found[f"training={training}, grad={grad}"] = float((a - b).abs().max())
        if not training and "reshard" not in options:
            held = [unit for unit in engine.sets[0].weights.units if unit.gathered]
            found[f"units left, grad={grad}"] = float(len(held))
    texts = [[e.model(x[:, :n]).argmax(-1) for n in (3, 4)] for e in (engine, alone)]
    found["generated"] = float(sum((a != b).sum() for a, b in zip(*texts, strict=True)))
    again = Case(case.shape, steps=3)
    here, there = (
        train(again, e, *at, start=2) for e, at in ((engine, (world.rank, world.size)), (alone, ()))
    )
    found["next step"] = here.error(there)
    return found


def test_weights_that_come_and_go_are_there_for_evaluation(ranks):
    """Any two of block, tied embeddings and options."""
    options = ({}, {"prefetch": False}, {"reshard": False})
    chosen = all_pairs(combined(block=list(BLOCKS), tied=(False, True), option=range(len(options))))
    runs = [
        (Case(BLOCKS[one["block"]].replace(tied=one["tied"]), steps=2), options[one["option"]])
        for one in chosen
    ]
    for results in ranks(evaluated, runs, ranks=2).values:
        for run, found in zip(runs, results, strict=True):
            assert all(error < 1e-5 for error in found.values()), (run, found)


@pytest.mark.parametrize("reshard", [True, False])
def test_what_was_gathered_before_an_update_is_out_of_date_after_it(ranks, reshard):
    def look() -> tuple[Tensor, Tensor]:
        with launch.process_group() as world:
            case = Case(steps=1)
            mesh = Mesh(Layout(dp=2, zero=3, reshard=reshard))
            engine = parallelize(case.model(), mesh, case.make())
            alone, x = case.engine(), case.batch(0)[0]
            train(case, engine, world.rank, world.size)
            train(case, alone)
            with torch.no_grad():
                engine.model(x)  # in training mode: units that backward would need stay here
                engine.step()
                alone.step()
                return engine.model(x), alone.model(x)

    for found, expected in ranks(look, ranks=2).values:
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


class Gates(nn.Module):
    """Layers that each step uses or not, in an order that is not the one in which they were made."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(5))

    def forward(self, x: Tensor, used: list[bool]) -> Tensor:
        for i in (4, 1, 2, 0, 3):
            if used[i]:
                x = x + self.layers[i](x).tanh()
        return x.square().sum()


GATED = 16


def used(step: int, rank: int) -> list[bool]:
    half = torch.rand(5, generator=torch.Generator().manual_seed(1000 * step + rank)) < 0.5
    return [*half[:2].tolist(), True, *half[3:].tolist()]


def gradients_of(model: nn.Module) -> dict[str, Tensor | None]:
    return {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}


#: Strategies, and bytes in a bucket.
GATES = [
    ("naive", None),
    ("overlapped", None),
    *itertools.product(("bucketed", "zero 1", "zero 2"), (64, 96, 10_000)),
]


def gated() -> list[tuple[list[dict], int]]:
    """In a rank: the gradients of each step, and how many came when their bucket was on its way already."""
    results = []
    with launch.process_group() as world:
        for kind, bucket in GATES:
            model, mesh = Gates(), Mesh(Layout(dp=2))
            options = {"bucket": bucket, "first_bucket": bucket} if bucket else {}
            strategy = {**STRATEGIES, "zero 1": Zero1, "zero 2": Zero2}[kind]
            one = strategy(model, mesh.group("dp"), find_unused=True, **options)
            engine = Engine(model, [one], mesh=mesh)
            late: list[str] = []
            if kind != "naive":
                spy(one.hooks, late)
            found = []
            for step in range(GATED):
                engine.zero_grad()
                model(torch.full((2, 4), world.rank + 1.0), used(step, world.rank)).backward()
                engine.finish()
                found.append(engine.gradients_whole())
            results.append((found, len(late)))
    return results


def spy(hooks, late: list[str]) -> None:
    """Note gradients that arrive after their bucket is complete."""
    arrived, complete, sent = hooks.arrived, hooks.complete, set()

    def note(slot) -> None:
        late.extend(slot.name for bucket in sent if slot in bucket.slots)
        arrived(slot)

    def send(bucket) -> None:
        sent.add(bucket)
        complete(bucket)
        if bucket is hooks.buckets[-1]:
            sent.clear()

    hooks.arrived, hooks.complete = note, send


def test_no_gradient_comes_too_late_for_its_bucket(ranks):
    """Where layers come and go, a bucket must not leave without one that was idle in the step before."""
    model, reference = Gates(), []
    for step in range(GATED):
        model.zero_grad()
        for rank in range(2):
            model(torch.full((2, 4), rank + 1.0), used(step, rank)).backward()
        reference.append(gradients_of(model))
    assert {kind for kind, _ in GATES} == {*STRATEGIES, "zero 1", "zero 2"}
    results = [
        (gate, *one) for every in ranks(gated, ranks=2).values for gate, one in zip(GATES, every, strict=True)
    ]
    for gate, found, late in results:
        assert late == 0, gate
        for mine, other in zip(found, reference, strict=True):
            for name, gradient in other.items():
                assert (mine[name] is None) is (gradient is None), gate
                if gradient is not None:
                    torch.testing.assert_close(mine[name], gradient)


def freeze_blocks(model: nn.Module) -> None:
    model.blocks[0].requires_grad_(False)
    model.blocks[1].mlp.requires_grad_(False)


def freeze_all_but_the_head(model: nn.Module) -> None:
    model.requires_grad_(False)
    model.head.requires_grad_(True)


@pytest.mark.parametrize("freeze", [freeze_blocks, freeze_all_but_the_head])
def test_frozen_weights_stay_and_are_in_the_checkpoint(ranks, freeze):
    case = Case(prepare=freeze, steps=3)
    runs = [(case, f"dp=2,zero={zero}", {}) for zero in range(4)]
    alone = case.engine()
    reference, state = train(case, alone), alone.state_dict()
    for results in ranks(on_ranks, runs, Engine.state_dict, ranks=2).values:
        for (_, text, _), (run, found) in zip(runs, results, strict=True):
            assert run.error(reference) < 1e-5, text
            assert found["model"].keys() == state["model"].keys()
            assert found["optimizer"]["state"].keys() == state["optimizer"]["state"].keys()
            for name, p in case.model().named_parameters():
                assert torch.equal(found["model"][name], p) is not p.requires_grad, text


def test_a_second_engine_for_one_model_is_refused(ranks):
    """Both would listen to its gradients, and the ranks be added up twice; of ZeRO-3's model there is but a share."""

    def work() -> list[str]:
        found = []
        with launch.process_group():
            case = Case()
            for first, second in itertools.product(range(4), (0, 3)):
                model = case.model()
                parallelize(model, Mesh(Layout(dp=2, zero=first)), case.make())
                with pytest.raises(PlaybookError) as error:
                    parallelize(model, Mesh(Layout(dp=2, zero=second)), case.make())
                found.append(str(error.value))
        return found

    for found in ranks(work, ranks=2).values:
        assert len(found) == 8
        assert all("is in the hands of another engine: make a new model" in words for words in found)
