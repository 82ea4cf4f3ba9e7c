"""A measured machine in the simulator's place of a datasheet: what was planted in its file comes out of its steps."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from playbook.errors import ConfigError
from playbook.estimates.measured import Machine, MeasuredDevice, load_machine, measured_run
from playbook.layout import Layout
from playbook.planning.job import Job
from playbook.planning.operations import Operation
from playbook.planning.traffic import traffic
from playbook.shapes import load

SAMPLE = Path(__file__).parents[2] / "benchmarks" / "results" / "cpu-2-cores-calibration.toml"
PASS = {"overhead_s": 1e-6, "elements_per_s": 1e9}
CORE = {"overhead_s": 1e-5, "flops": 50e9, "seq_half": 100.0, "head_half": 8.0}
DEVICE: dict[str, Any] = {
    "name": "planted",
    "kind": "cpu",
    "memory_bytes": 8 * 10**9,
    "peak_flops": {"fp32": 95e9},
    "gemm_overhead_s": {"fp32": 2e-6},
    "gemm_flops": {"fp32": 100e9},
    "gemm_half": {"fp32": {"m": 4.0, "n": 2.0, "k": 0.0}},
    "memory_bandwidth": 20e9,
    "op_overhead_s": 1e-6,
    "attention": {"forward": CORE, "backward": CORE},
    "passes": dict.fromkeys(("rms_norm", "rms_norm_backward", "silu", "silu_backward", "add"), PASS),
    "optimizer": {"overhead_s": 1e-5, "per_tensor_s": 1e-6, "parameters_per_s": 1e9},
    "blocks": [
        {"ranks": 1, "slower": 1.0, "between_s": 1e-3, "experts_s": 2e-3},
        {"ranks": 4, "slower": 2.5, "between_s": 4e-3, "experts_s": 5e-3},
    ],
}
LINKS = [
    {"collective": name, "ranks": n, "group": g, "alpha_s": n * 1e-4, "beta_s_per_byte": g * 1e-9}
    for name in ("all_reduce", "all_gather", "reduce_scatter", "send")
    for n, g in ((2, 2), (4, 2), (4, 4))
]
MACHINE = Machine(DEVICE, {"collectives": LINKS}, "planted")


def run(layout: str, machine: Machine = MACHINE):
    parsed = Layout.parse(layout)
    return measured_run(machine, Job(load("tiny"), parsed, seq=64, recipe="fp32"))


def test_a_product_takes_what_was_fitted_and_ranks_that_share_cores_take_longer():
    product = Operation("query", "product", 64, 32, 256, 3)
    alone = 3 * (2e-6 + 2 * 64 * 32 * 256 / 100e9 * (1 + 4 / 64 + 2 / 32))
    # Two ranks lie between one and four, and eight have the cores of four.
    for ranks, slower in ((1, 1.0), (2, 1.5), (4, 2.5), (8, 5.0)):
        device = run(f"dp={ranks}").device
        assert isinstance(device, MeasuredDevice)
        assert device.seconds(product) == pytest.approx(slower * alone)
    gpu = Machine({**DEVICE, "kind": "cuda"}, {}, "planted")
    assert run("dp=8", gpu).device.seconds(product) == pytest.approx(2.5 * alone)


def test_python_takes_its_time_for_each_block():
    def without(blocks: list[dict[str, float]]) -> Machine:
        return Machine({**DEVICE, "blocks": [{**row, "between_s": 0.0} for row in blocks]}, {}, "planted")

    with_it, bare = run("").step(limit=False), run("", without(DEVICE["blocks"])).step(limit=False)
    assert with_it.seconds - bare.seconds == pytest.approx(load("tiny").layers * 1e-3)
    halves, bare = (run("pp=2,grad_acc=1", m).busy[0].seconds for m in (MACHINE, without(DEVICE["blocks"])))
    assert halves - bare == pytest.approx(
        load("tiny").layers / 2 * 1e-3
    )  # one of both ranks waits at all times


def test_ranks_of_a_pipeline_that_wait_leave_cores_to_others():
    for layout, busy in (
        ("pp=4,grad_acc=1", 1.0),
        ("pp=4,grad_acc=9", 3.0),
        ("dp=2,pp=2,vpp=2,grad_acc=2", 3.2),
    ):
        device = run(layout).device
        assert isinstance(device, MeasuredDevice)
        assert device.ranks == pytest.approx(busy)
    gpu = run("pp=4,grad_acc=1", Machine({**DEVICE, "kind": "cuda"}, {}, "planted")).device
    assert isinstance(gpu, MeasuredDevice)
    assert gpu.ranks == 4


def test_and_more_for_a_block_with_experts():
    plain = [{**row, "experts_s": 0.0} for row in DEVICE["blocks"]]
    machines = MACHINE, Machine({**DEVICE, "blocks": plain}, MACHINE.network, "planted")
    for model, more in (("tiny", 0.0), ("tiny-moe", 4 * 5e-3)):
        layout = Layout.parse("dp=4")
        runs = (
            measured_run(m, Job(load(model), layout, seq=64, recipe="fp32")).step(limit=False)
            for m in machines
        )
        with_it, without = (step.seconds for step in runs)
        assert with_it - without == pytest.approx(more, abs=1e-9)


def test_attention_is_counted_as_it_was_measured():
    base = 4.0 * 64 * 64 * 32 / 2  # of one head: what the mask leaves
    forward = Operation("attention", "attention", 64, 64, 32, 1, base)
    backward = forward._replace(name="attention, backward", flops=2.5 * base)
    device, slower = run("dp=1").device, 1 + 100 / 64 + 8 / 32
    assert device.seconds(forward) == pytest.approx(1e-5 + 4 * 64 * 64 * 32 / 50e9 * slower)
    assert device.seconds(backward) == pytest.approx(1e-5 + 8 * 64 * 64 * 32 / 50e9 * slower)


def test_there_and_back_a_pass_takes_what_both_took():
    device = run("dp=1").device
    elements = 10**6
    both = [Operation("norm", "pass", bytes=b * elements) for b in (8.0, 16.0)]
    assert device.of(both) == pytest.approx(2 * 1e-6 + 2 * elements / 1e9)
    assert device.seconds(Operation("embedding", "pass", bytes=4e6, kernels=2)) == pytest.approx(
        2e-6 + 4e6 / 20e9
    )


def test_a_collective_has_the_links_of_as_many_ranks_as_talk():
    links = run("dp=2,tp=2").links
    # Two ranks of four: two messages, a vector in all, with α and β of pairs while four ranks talk.
    assert links.collective("all_reduce", 1e6, 2, "tp") == pytest.approx(2 * 4e-4 + 1e6 * 2e-9)
    assert links.collective("all_reduce", 1e6, 4, "dp") == pytest.approx(6 * 4e-4 + 1.5e6 * 4e-9)
    assert links.hop(1e6) == pytest.approx(4e-4 + 1e6 * 2e-9)
    assert run("tp=2").links.collective("all_gather", 1e6, 2, "tp") == pytest.approx(2e-4 + 0.5e6 * 2e-9)
    assert links.collective("all_reduce", 1e6, 1, "cp") == 0


@pytest.mark.parametrize(
    "layout", ["", "dp=2", "dp=2,zero=1", "tp=2,sp", "pp=2,grad_acc=4", "dp=2,tp=2,pp=2,grad_acc=2"]
)
def test_a_step_is_the_sum_of_its_parts(layout):
    for machine in (MACHINE, load_machine(SAMPLE)):
        assert machine is not None
        step = run(layout, machine).step(limit=False)
        assert step.seconds == pytest.approx(sum(step.breakdown.values()))
        assert step.breakdown["compute"] > 0
        assert (step.breakdown["tp"] > 0) == ("tp" in layout)


def test_the_optimizer_updates_what_a_rank_has_tensor_by_tensor():
    slower, tiny = 1.5, load("tiny")
    whole, half = (run(layout).breakdown["optimizer"] for layout in ("dp=2", "dp=2,zero=1"))
    assert whole == pytest.approx(slower * (1e-5 + 9 * tiny.layers * 1e-6 + tiny.num_parameters / 1e9))
    assert 0.4 < half / whole < 0.6


def test_what_is_no_measurement(tmp_path):
    other = tmp_path / "other.toml"
    other.write_text("[device]\nbandwidth = 0.8\n")
    assert load_machine(other) is None
    other.write_text('[device]\nkind = "cpu"\ngemm_flops = { fp32 = 1e9 }\n')
    with pytest.raises(ConfigError, match="has no gemm_half of its device: measure the machine again"):
        load_machine(other)
    with pytest.raises(ConfigError, match="cannot read calibration file"):
        load_machine(tmp_path / "none.toml")


@pytest.mark.parametrize(
    "layout", ["dp=2", "dp=2,zero=1", "dp=4,zero=2", "dp=4,zero=2,grad_acc=3", "dp=2,zero=3"]
)
def test_replicas_send_as_many_messages_as_a_run(layout):
    step = run(layout).step(limit=False)
    messages = traffic(load("tiny"), Layout.parse(layout), 64, recipe="fp32")
    links, seconds = run(layout).links, step.breakdown["dp_exposed"]
    assert len(messages) > 2
    assert seconds == pytest.approx(links.of(messages))


def test_routers_tell_each_other_loads():
    def exposed(**moe: Any) -> float:
        shape = load("tiny-moe")
        shape = shape.replace(moe=dataclasses.replace(shape.moe, **moe))
        layout = Layout.parse("dp=2")
        return (
            measured_run(MACHINE, Job(shape, layout, seq=64, recipe="fp32"))
            .step(limit=False)
            .breakdown["dp_exposed"]
        )

    none = exposed(balance_loss=0.0, z_loss=0.0, bias_rate=0.0)
    some = exposed(balance_loss=0.01, balance_over="global_batch", z_loss=0.0, bias_rate=0.0)
    # Four blocks, each with an all-reduce of two messages of 0.2 ms.
    assert some - none == pytest.approx(4 * 2 * 2e-4, rel=0.1)


def test_what_sends_less_is_not_foretold():
    layout = Layout(dp=2, data_parallel="local:H=4")
    with pytest.raises(ConfigError, match="data_parallel is 'local:H=4', whose messages are counted"):
        measured_run(MACHINE, Job(load("tiny"), layout, seq=64, recipe="fp32"))


@pytest.mark.parametrize(
    ("layout", "imbalance", "waited_for"), [("dp=2,ep=2", 1.5, 1.5), ("dp=4,ep=4", 3.0, 1.2)]
)
def test_who_has_fewer_tokens_waits_unless_others_need_its_core(layout, imbalance, waited_for):
    """On the machine below two ranks are as fast as one, four are 2.5 times slower."""
    blocks = [
        {"ranks": n, "slower": slower, "between_s": 0.0} for n, slower in ((1, 2.0), (2, 2.0), (4, 5.0))
    ]
    machine = Machine({**DEVICE, "blocks": blocks}, {}, "planted")
    job = Job(load("tiny-moe"), Layout.parse(layout), seq=64, recipe="fp32")
    one = measured_run(machine, job, imbalance=imbalance)
    assert one.times.sizes.imbalance == pytest.approx(waited_for)
