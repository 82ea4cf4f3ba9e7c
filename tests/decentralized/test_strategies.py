"""Methods that send less, in a trainer: what they are equal to, replicas that meet, bytes, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import LLAMA
from parallel_runs import Case, on_one_device, on_ranks
from torch import Tensor, nn

from playbook import launch
from playbook.commands.training import Run, check, train_on_ranks
from playbook.decentralized.compressors import TopK
from playbook.decentralized.methods import OPTIONS, parse
from playbook.decentralized.topology import topology
from playbook.errors import ConfigError, LayoutError
from playbook.instruments.counting import CountBytes
from playbook.layout import Layout
from playbook.layout.fields import DATA_PARALLEL
from playbook.model.transformer import IGNORE
from playbook.parallel.engine import Engine
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.planning.memory import predict
from playbook.planning.traffic import traffic
from playbook.shapes import load
from playbook.training.config import TrainConfig
from playbook.training.saving import Saving

CASE = Case(LLAMA.replace(layers=1), steps=4, samples=12)


def rate(engine: Engine, step: int) -> float:
    """The learning rate of a step, which falls, set in the engine's optimizers."""
    for optimizer in engine.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * 0.7**step
    return 1e-3 * 0.7**step


def test_nothing_lost_is_all_reduce(ranks):
    """Also with other numbers of tokens on each rank, and gradients accumulated in uneven parts."""
    names = ["all-reduce", "topk:1", "powersgd:r=99", "topk:0.01,start=4", "local:H=2,start=4"]
    cases = [(CASE, "dp=3,grad_acc=3", {"data_parallel": name}) for name in names]
    alone = on_one_device(CASE)
    for found in ranks(on_ranks, cases, ranks=3).values:
        for name, run in zip(names, found, strict=True):
            assert run.error(alone) < 1e-4, name


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).double()


def share(step: int, rank: int, n: int) -> tuple[Tensor, Tensor]:
    x, y = CASE.batch(step)
    return x[rank::n], y[rank::n]


APART = [
    "local:H=1", "local:2", "local:2,start=1", "slowmo:H=2,momentum=0.5,lr=0.9", "diloco:H=2,lr=0.6,momentum=0.8",
    "gossip:ring", "gossip:one-peer-exp,start=1",
]  # fmt: skip


def steps_on_ranks() -> dict[str, tuple[list[Tensor], list[float], list[float], Tensor]]:
    """Weights after each step, norms, losses; and weights in the end, when all is one model."""
    found = {}
    with launch.process_group() as world:
        for how in APART:
            mesh = Mesh(Layout(dp=world.size, data_parallel=how))
            engine = parallelize(CASE.model(), mesh, CASE.make())
            after, norms, losses = [], [], []
            for step in range(CASE.steps):
                engine.zero_grad()
                losses.append(engine.accumulate(*share(step, world.rank, world.size), 4).item())
                norms.append(engine.clip(1.0).item())
                rate(engine, step)
                engine.step()
                after.append(weights(engine.model))
            engine.sets[0].wait()
            found[how] = after, norms, losses, weights(engine.model)
    return found


class Reference:
    """Nodes one after the other in this process, and what they do together written out once more."""

    def __init__(self, how: str, n: int):
        self.method, self.n = parse(how), n
        self.engines = [CASE.engine() for _ in range(n)]
        self.start = weights(self.engines[0].model)
        self.outer = self.start.clone()
        self.sgd: torch.optim.Optimizer | None = None
        self.u = torch.zeros_like(self.start)
        o = self.method.options
        if self.method.name == "diloco":
            self.sgd = torch.optim.SGD([self.outer], lr=o["lr"], momentum=o["momentum"], nesterov=True)

    def step(self, step: int) -> tuple[list[float], float]:
        """Every node's own step, then what they tell each other. Norms, and the mean loss of all tokens."""
        norms, loss, tokens = [], 0.0, int((CASE.batch(step)[1] != IGNORE).sum())
        for node, engine in enumerate(self.engines):
            together = step < self.method.options["start"]
            x, y = CASE.batch(step) if together else share(step, node, self.n)
            part = 1 / self.n if together else int((y != IGNORE).sum()) / tokens
            engine.zero_grad()
            loss += part * engine.accumulate(x, y, len(x)).item()
            for p in engine.model.parameters():
                p.grad *= self.n * part
            norms.append(engine.clip(1.0).item())
            self.rate = rate(engine, step)
            engine.step()
        x = torch.stack([weights(engine.model) for engine in self.engines])
        for engine, row in zip(self.engines, self.together(step, x), strict=True):
            parts = row.split([p.numel() for p in engine.model.parameters()])
            for p, part in zip(engine.model.parameters(), parts, strict=True):
                p.data.copy_(part.view_as(p))
        return norms, loss

    def together(self, step: int, x: Tensor) -> Tensor:
        o = self.method.options
        if step < o["start"]:
            self.start = x[0]
            return x
        if self.method.name == "gossip":
            rows = topology(o["topology"], self.n).at(step)
            return torch.stack([sum(weight * x[j] for j, weight in row) for row in rows])
        if (step + 1 - o["start"]) % o["H"]:
            return x
        mean = x.mean(0)
        if self.method.name == "slowmo":
            self.u = o["momentum"] * self.u + (self.start - mean) / self.rate
            mean = self.start - o["lr"] * self.rate * self.u
        if self.sgd:
            self.outer.grad = self.start - mean
            self.sgd.step()
            mean = self.outer.clone()
        self.start = mean
        return mean.expand_as(x)


@pytest.mark.parametrize("n", [2, 4])
def test_replicas_apart_are_nodes_with_an_adamw_each(ranks, n):
    """To the rounding of fp32, with other numbers of tokens on each: norms, losses, weights after each step."""
    found = ranks(steps_on_ranks, ranks=n)
    for how in APART:
        reference = Reference(how, n)
        for step in range(CASE.steps):
            norms, loss = reference.step(step)
            for rank in range(n):
                after, own, losses, _ = found[rank].value[how]
                there = weights(reference.engines[rank].model)
                assert torch.allclose(after[step], there, rtol=0, atol=2e-5), (how, step, rank)
                assert own[step] == pytest.approx(norms[rank], rel=1e-3)
                assert losses[step] == pytest.approx(loss, rel=1e-4)
            if how.startswith("gossip"):
                continue
            o = reference.method.options
            met = step < o["start"] or (step + 1 - o["start"]) % o["H"] == 0
            same = [
                torch.equal(found[rank].value[how][0][step], found[0].value[how][0][step])
                for rank in range(1, n)
            ]
            assert all(same) if met else not any(same), (how, step)
        ends = [value[how][3] for value in found.values]
        assert all(torch.equal(end, ends[0]) for end in ends)
        last = torch.stack([value[how][0][-1] for value in found.values]).mean(0)
        assert torch.allclose(ends[0], last, rtol=0, atol=1e-6)  # one model: the average


SAME = ["local:H=3", "gossip:ring", "slowmo:H=2,momentum=0", "diloco:H=2,lr=1,momentum=0"]


def on_the_same_data() -> dict[str, list[tuple[float, float]]]:
    found = {}
    with launch.process_group() as world:
        for how in SAME:
            mesh = Mesh(Layout(dp=world.size, data_parallel=how))
            engine = parallelize(CASE.model(), mesh, CASE.make())
            found[how] = steps_of(engine)
    return found


def steps_of(engine: Any) -> list[tuple[float, float]]:
    told = []
    for step in range(CASE.steps):
        engine.zero_grad()
        loss = engine.accumulate(*CASE.batch(step), 5).item()
        told.append((loss, engine.clip(1.0).item()))
        engine.step()
    return told


def test_with_the_same_data_on_all_ranks_a_run_is_that_of_one(ranks):
    alone = steps_of(CASE.engine())
    for value in ranks(on_the_same_data, ranks=3).values:
        for how in SAME:
            for mine, other in zip(value[how], alone, strict=True):
                assert mine == pytest.approx(other, rel=1e-4), how


COUNTED = ["local:H=2", "gossip:ring", "gossip:star", "powersgd:r=2", "topk:0.02"]


def counted() -> dict[str, tuple[int, int, int]]:
    """What a network has counted in three steps, what an instrument has, and of how many messages."""
    found = {}
    with launch.process_group() as world:
        for how in COUNTED:
            mesh = Mesh(Layout(dp=world.size, data_parallel=how))
            engine = parallelize(CASE.model(), mesh, CASE.make())
            count, before = CountBytes({"dp": mesh.group("dp")}), 0
            for step in range(CASE.steps):
                if step == 1:  # in the first they agree on which parameters are used
                    count.__enter__()
                    before = engine.sets[0].network.sent[0]
                engine.zero_grad()
                engine.accumulate(*share(step, world.rank, world.size), 4)
                engine.step()
            count.__exit__(None, None, None)
            events = [event for event in count.events if event.payload > 8]  # not those of the loss
            sent = engine.sets[0].network.sent[0] - before
            found[how] = sent, sum(event.sent for event in events), len(events)
    return found


def test_bytes_are_those_that_an_instrument_counts(ranks):
    n = 3
    numel = weights(CASE.model()).numel()
    for value in ranks(counted, ranks=n).values:
        for how in COUNTED:
            sent, seen, messages = value[how]
            assert sent == pytest.approx(seen, abs=8 * messages), how
            assert messages > 0
        assert value["topk:0.02"][0] == 3 * (n - 1) * TopK(0.02).size(numel)
        assert value["local:H=2"][0] == 2 * round(4 / 3 * 4 * numel)


SMALL = '{"layers":2,"hidden":16,"heads":2,"vocab":256,"max_seq":64,"dropout":0.0}'


def run(how: str, layout: str = "dp=3", **settings: Any) -> Run:
    own = {name: settings.pop(name) for name in ("saving", "check_replicas", "on_spike") if name in settings}
    config = TrainConfig(
        **{"steps": 5, "global_batch": 12, "seq": 16, "device": "cpu", **settings},
        layout=Layout.parse(layout).replace(data_parallel=how),
    )
    return Run(load(SMALL), config, **own)


def test_a_whole_run_tells_bytes_of_a_step():
    """Of five steps in rounds of two: after the last all go to their average once more."""
    outcome = train_on_ranks(run("diloco:H=2"))
    assert len(outcome.results) == 5
    assert outcome.bytes_sent == {"dp": round(3 * round(4 / 3 * 4 * load(SMALL).num_parameters) / 5)}


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("local:H=16", {"H": 16}),
        ("local:3,start=5", {"H": 3, "start": 5}),
        ("diloco:H=8,lr=0.4", {"H": 8, "lr": 0.4, "momentum": 0.9}),
        ("gossip:one-peer-exp", {"topology": "one-peer-exponential"}),
        ("gossip:exponential", {"topology": "exponential"}),
        ("powersgd:r=4", {"r": 4}),
        ("topk:0.01", {"share": 0.01}),
    ],
)
def test_names(text, options):
    assert parse(text).options == {"start": 0, **options}
    assert parse(text).name in OPTIONS
    assert Layout(data_parallel=text).method == parse(text)


def test_ways_to_add_whole_gradients_are_no_methods():
    assert [Layout(data_parallel=name).method for name in (*DATA_PARALLEL, "all-reduce")] == [None] * 4
    assert Layout(data_parallel="all-reduce") == Layout()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("magic", "must be one of naive, overlapped, bucketed, local:H=16, .*got 'magic'"),
        ("local", "is 'local', but needs H: as in local:H=16"),
        ("local:H=0", "H is '0', but must be a whole number of at least 1"),
        ("local:H=1.5", "H is '1.5', but must be a whole number of at least 1"),
        ("local:H=2,start=-1", "start is '-1', but must be a whole number of at least 0"),
        ("powersgd:r=0", "r is '0', but must be a whole number of at least 1"),
        ("topk:0", "share is '0', but must be a number above 0 and at most 1"),
        ("topk:1.1", "share is '1.1', but must be a number above 0 and at most 1"),
        ("topk:few", "share is 'few', but must be a number above 0 and at most 1"),
        ("slowmo:H=2,momentum=1", "momentum is '1', but must be a number at least 0 and below 1"),
        ("diloco:H=2,lr=inf", "lr is 'inf', but must be a number above 0"),
        ("diloco:H=2,mu=0.9", "unknown option 'mu'; known: H, lr, momentum, start"),
        ("gossip:circle", "unknown topology 'circle'"),
    ],
)
def test_names_that_are_none(text, words):
    with pytest.raises(ConfigError, match=words):
        Layout(data_parallel=text)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"layout": "dp=2,zero=1"}, "the layout can have dp alone, not zero=1"),
        ({"layout": "dp=2,tp=2,cp=2"}, "the layout can have dp alone, not cp=2, tp=2"),
        ({"layout": "dp=2,pp=2"}, "the layout can have dp alone, not pp=2"),
        ({"layout": ""}, "the layout has one replica"),
        ({"how": "gossip:hypercube"}, "nodes is 3, but must be a power of two"),
        ({"dtype": "float16"}, "dtype is float16, but with data_parallel=local:H=4 ranks do not see"),
        ({"dtype": "bfloat16", "weights": "bfloat16"}, "weights are bfloat16, but data_parallel=local:H=4"),
        ({"offload": True}, "offload is on, but data_parallel=local:H=4"),
        ({"check_replicas": 2}, "check_replicas is 2, but with data_parallel=local:H=4 replicas differ"),
        ({"on_spike": "skip"}, "on_spike is 'skip', but with data_parallel=local:H=4 each rank has a norm"),
        (
            {"how": "topk:0.1", "saving": Saving("nowhere", 1)},
            "checkpoint is 'nowhere', but data_parallel=topk:0.1",
        ),
    ],
)
def test_what_does_not_go_with_it(given, words):
    def refused() -> None:
        asked = run(**{"how": "local:H=4", **given})
        asked.config.layout.check(asked.shape, seq=asked.config.seq)
        check(asked)

    with pytest.raises((ConfigError, LayoutError), match=words):
        refused()


def test_what_they_send_and_keep_is_not_foretold():
    layout = Layout(dp=2, data_parallel="local:H=4")
    for formula in (traffic, predict):
        with pytest.raises(ConfigError, match="data_parallel is 'local:H=4', whose"):
            formula(load(SMALL), layout, seq=16)


def test_averages_do_not_reach_masters(ranks):
    def refused() -> str:
        with launch.process_group():
            case = Case(offload=True)
            try:
                parallelize(case.model(), Mesh(Layout(data_parallel="local:H=2")), case.make())
            except ConfigError as error:
                return str(error)
            return ""

    assert "optimizer keeps masters" in ranks(refused, ranks=1)[0].value
