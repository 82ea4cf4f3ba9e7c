"""Data parallelism where it is not like the book's model: parameters that come and go, shared ones, samplers."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from parallel_runs import Case, flat
from torch import Tensor, nn

from playbook import launch
from playbook.errors import ConfigError, PlaybookError
from playbook.instruments.counting import CountBytes, traffic_groups
from playbook.layout import Layout
from playbook.parallel.data import STRATEGIES, BucketedDataParallel
from playbook.parallel.engine import Engine
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.parallel.zero import Zero1, Zero2
from playbook.training.optimizer import adamw
from playbook_book.distributed_sampler import Sampler


class Switch(nn.Module):
    """y = x·W + v where the second layer is switched on for a call, x·W elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 5), nn.Linear(5, 2)
        self.on = True

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return (self.second(y) if self.on else y).square().sum()


def make(weights):
    return adamw(weights, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)


def data(step: int, rank: int) -> Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * step + rank))


def is_on(step: int, rank: int) -> bool:
    """In the first step on one rank, in the second on both, in the third on none, in the fourth on the other."""
    return {0: rank == 0, 1: True, 2: False, 3: rank == 1}[step]


def switching(kinds: list[str], find_unused: bool) -> list[tuple[list[dict], dict]]:
    """In a rank: gradients of four steps, and the weights afterwards, of each kind."""
    with launch.process_group() as world:
        return [switching_as(kind, find_unused, world.rank) for kind in kinds]


def switching_as(kind: str, find_unused: bool, rank: int) -> tuple[list[dict], dict]:
    model, mesh = Switch(), Mesh(Layout(dp=2))
    small = {} if kind in STRATEGIES else {"bucket": 40, "first_bucket": 20}
    strategy = {**STRATEGIES, "zero 1": Zero1, "zero 2": Zero2}[kind]
    one = strategy(model, mesh.group("dp"), find_unused=find_unused, **small)
    one.optimize(make)
    engine = Engine(model, [one], mesh=mesh)
    found = []
    for step in range(4):
        model.on = is_on(step, rank)
        engine.zero_grad()
        model(data(step, rank)).backward()
        engine.finish()
        found.append(engine.gradients_whole())
        engine.step()
    return found, {n: p.detach().clone() for n, p in model.named_parameters()}


def switching_alone() -> tuple[list[dict], dict]:
    model = Switch()
    optimizer = make([(p, p.dim() > 1) for p in model.parameters()])
    found = []
    for step in range(4):
        optimizer.zero_grad(set_to_none=True)
        for rank in range(2):
            model.on = is_on(step, rank)
            model(data(step, rank)).backward()
        found.append({n: p.grad if p.grad is None else p.grad.clone() for n, p in model.named_parameters()})
        optimizer.step()
    return found, {n: p.detach() for n, p in model.named_parameters()}


KINDS = [*STRATEGIES, "zero 1", "zero 2"]


def test_parameters_that_come_and_go(ranks):
    """With ``find_unused`` a parameter is updated where any rank has a gradient of it, and left alone where none has."""
    gradients, weights = switching_alone()
    for found, after in itertools.chain(*ranks(switching, KINDS, True, ranks=2).values):
        for mine, reference in zip(found, gradients, strict=True):
            assert {n for n, g in mine.items() if g is None} == {n for n, g in reference.items() if g is None}
            torch.testing.assert_close(flat(mine), flat(reference))
        for name, weight in weights.items():
            torch.testing.assert_close(after[name], weight, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_parameter_that_comes_unannounced_is_named(ranks, kind):
    with pytest.raises(
        launch.RankError, match=r"parameter 'second\.(weight|bias)' got (a|no) gradient in the first"
    ):
        ranks(switching, [kind], False, ranks=2)


def counted(micro_batches: int) -> dict[str, list[int]]:
    """In a rank, by kind: bytes of gradients in a step of several micro-batches, sent once, and with each; and the
    model's."""
    found = {}
    with launch.process_group():
        case = Case(samples=8)
        x, y = case.batch(0)
        for kind in STRATEGIES:
            engine = parallelize(case.model(), Mesh(Layout(dp=2, data_parallel=kind)), case.make())
            engine.accumulate(x, y, 8)  # ranks ask once who gets gradients
            engine.zero_grad()
            with CountBytes(traffic_groups(engine)) as once:
                engine.accumulate(x, y, len(x) // micro_batches)
            engine.zero_grad()
            with CountBytes(traffic_groups(engine)) as each:
                for a, b in zip(x.chunk(micro_batches), y.chunk(micro_batches), strict=True):
                    engine.model.loss(a, b)[0].backward()
                    engine.finish()
            found[kind] = [sum(e.payload for e in count.events if e.payload > 8) for count in (once, each)]
            found[kind].append(case.shape.num_parameters * 4)
    return found


def test_accumulation_sends_once(ranks):
    """And without ``no_sync`` every micro-batch is sent."""
    for found in ranks(counted, 4, ranks=2).values:
        for kind, (once, each, model) in found.items():
            assert (once, each) == (model, 4 * model), kind


def twice(kind: str) -> None:
    with launch.process_group():
        model = Switch()
        engine = STRATEGIES[kind](model, Mesh(Layout(dp=2)).group("dp"))
        for _ in range(2):
            model(data(0, 0)).backward()
        engine.finish()


@pytest.mark.parametrize("kind", ["overlapped", "bucketed"])
def test_backward_twice_without_saying_so_is_refused(ranks, kind):
    """Its gradients would be reduced twice."""
    with pytest.raises(launch.RankError, match="got its gradient in two parts"):
        ranks(twice, kind, ranks=2)


def start_apart(kinds: list[str]) -> list[float]:
    """In a rank: how far weights that differ at first are from those of rank 0 afterwards."""
    found = []
    with launch.process_group() as world:
        group, reference = Mesh(Layout(dp=2)).group("dp"), Case().model()
        for kind in kinds:
            model = Case().model()
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(world.rank)
            assert {**STRATEGIES, "zero 1": Zero1}[kind](model, group) is not None
            pairs = zip(model.parameters(), reference.parameters(), strict=True)
            found.append(max(float((a - b).abs().max()) for a, b in pairs))
    return found


def test_replicas_start_alike(ranks):
    for found in ranks(start_apart, [*STRATEGIES, "zero 1"], ranks=2).values:
        assert found == [0] * 4


def test_bad_options(ranks):
    def refused(every: list[dict]) -> list[str]:
        found, case = [], Case()
        with launch.process_group():
            for options in every:
                with pytest.raises(PlaybookError) as error:
                    parallelize(case.model(), Mesh(Layout(dp=1, **options)), case.make())
                found.append(f"{error.typename}: {error.value}")
        return found

    cases = {
        "data_parallel": (
            {"data_parallel": "magic"},
            "ConfigError: data_parallel must be one of naive, overlapped, bucketed, local:H=16",
        ),
        "bucket": ({"bucket": 0}, "LayoutError: bucket must be at least 1, got 0"),
        "first bucket": ({"first_bucket": -1}, "LayoutError: first_bucket must be at least 1, got -1"),
        "gather": (
            {"zero": 1, "gather": "never"},
            "LayoutError: gather must be one of after, lazily, got 'never'",
        ),
    }
    found = ranks(refused, [options for options, _ in cases.values()], ranks=1)[0].value
    for (_, words), error in zip(cases.values(), found, strict=True):
        assert words in error


def test_gradients_are_views_of_one_vector(ranks):
    def addresses() -> tuple[list[int], int, int]:
        with launch.process_group():
            case = Case()
            model = case.model()
            replicas = BucketedDataParallel(model, Mesh(Layout()).group("dp"))
            model.loss(*case.batch(0))[0].backward()
            replicas.finish()
            storages = {p.grad.untyped_storage().data_ptr() for p in model.parameters()}
            return list(storages), replicas.vector.data_ptr(), replicas.vector.numel()

    storages, address, length = ranks(addresses, ranks=1)[0].value
    assert storages == [address]
    assert length == Case().shape.num_parameters


@given(
    length=st.integers(1, 200),
    share=st.integers(1, 9),
    ranks=st.integers(1, 6),
    seed=st.integers(0, 5),
    epochs=st.integers(1, 3),
)
def test_a_sampler_gives_each_sample_once_an_epoch(length, share, ranks, seed, epochs):
    batch = share * ranks
    if length < batch:
        with pytest.raises(ConfigError, match="one batch needs global_batch"):
            Sampler(length, batch)
        return
    samplers = [Sampler(length, batch, rank, ranks, seed) for rank in range(ranks)]
    steps = length // batch
    for epoch in range(epochs):
        seen: Counter = Counter()
        for step in range(epoch * steps, (epoch + 1) * steps):
            shares = [sampler.indices(step) for sampler in samplers]
            assert {len(s) for s in shares} == {share}
            whole = Sampler(length, batch, seed=seed).indices(step)
            assert torch.equal(torch.cat(shares), whole)  # ranks take slices of the one-device batch
            seen.update(whole.tolist())
        assert set(seen.values()) == {1}
        assert len(seen) == steps * batch
        assert seen.keys() <= set(range(length))


def test_a_sampler_resumes_anywhere_and_shuffles_each_epoch():
    sampler = Sampler(50, 10, rank=1, ranks=2)
    forwards = [sampler.indices(step) for step in range(15)]
    assert torch.equal(Sampler(50, 10, rank=1, ranks=2).indices(12), forwards[12])
    assert not torch.equal(torch.cat(forwards[:5]), torch.cat(forwards[5:10]))
    with pytest.raises(ConfigError, match="global_batch is 9, but must be a multiple of the 2 ranks"):
        Sampler(50, 9, ranks=2)


@pytest.mark.parametrize(("rank", "ranks"), [(2, 2), (-1, 2), (0, 0)])
def test_a_sampler_of_no_rank(rank, ranks):
    with pytest.raises(ConfigError, match=f"rank is {rank}, but must be from 0 to {ranks - 1}"):
        Sampler(50, 10, rank, ranks)


def test_a_sampler_of_a_step_before_the_first():
    with pytest.raises(ConfigError, match="step is -1, but must be at least 0"):
        Sampler(50, 10).indices(-1)
