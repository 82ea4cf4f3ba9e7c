"""A machine as ``playbook calibrate`` measured it, in the simulator's place of a datasheet: this one, for instance.

Products, attention and passes take what was fitted to their measured times, messages what collectives took there, and
ranks that share the cores of a CPU slow each other down as they did. What the file holds is in ``bench/calibrate.py``.
Standard library only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from playbook._tables import read_file
from playbook.block import Kind
from playbook.collectives.links import AlphaBeta, ring
from playbook.errors import ConfigError
from playbook.hardware import Accelerator, Cluster
from playbook.planning.calibration import Calibration
from playbook.planning.expert_traffic import balance
from playbook.planning.job import Job
from playbook.planning.memory import Held
from playbook.planning.message_times import Links
from playbook.planning.messages import Message, Sender
from playbook.planning.operations import Operation, Passes
from playbook.planning.roofline import Device
from playbook.planning.simulator import Run
from playbook.planning.stage_times import Pass, StageTimes, Work
from playbook.planning.traffic import loss, norm, replicas

#: Passes of ``operations`` by name: which measured pass it is, and its bytes of fp32 for each element there and back.
_PASSES = {
    "norm": ("rms_norm", 24),
    "residual": ("add", 12),
    "rotary": ("rotary", 16),
    "activation": ("silu", 20),
    "loss": ("cross_entropy", 24),
}
#: The device is measured, not a share of a datasheet; and ranks of a machine hide no messages behind computation.
_CALIBRATION = Calibration(
    "measured", processors=1, bandwidth=1.0, launch=0.0, host=0.0, collective=0.0, jitter=0.0,
    hidden_dp=0.0, hidden_tp=0.0, hidden_cp=0.0, hidden_ep=0.0, hidden_pp=0.0,
)  # fmt: skip


#: Parameters of a block that an optimizer updates one by one, where ZeRO has not made one of them: those of a Llama.
TENSORS = 9


@dataclass(frozen=True)
class Machine:
    """The tables of a file that ``playbook calibrate`` wrote."""

    device: Mapping[str, Any]
    network: Mapping[str, Any]
    source: str

    @property
    def accelerator(self) -> Accelerator:
        """The device, with what it reached in place of what a datasheet says."""
        given = self.device
        bandwidth = given["memory_bandwidth"]
        peaks = dict(given["peak_flops"])
        return Accelerator(
            "measured", given["name"], given["memory_bytes"], peaks, bandwidth, bandwidth, self.source
        )

    def training(self, ranks: float) -> tuple[float, float, float]:
        """How many times longer operations take in training with so many ranks at once, what Python takes for each block,
        and for one with experts beyond that. Between two measured numbers of ranks they lie between; beyond the last,
        ranks of a CPU share cores."""
        rows = sorted(self.device.get("blocks", ()), key=lambda row: row["ranks"])
        if not rows:
            return 1.0, 0.0, 0.0
        over = next((row for row in rows if row["ranks"] >= ranks), rows[-1])
        under = next((row for row in reversed(rows) if row["ranks"] <= ranks), rows[0])
        apart = over["ranks"] - under["ranks"]
        part = (ranks - under["ranks"]) / apart if apart > 0 else 0.0
        more = max(1.0, ranks / over["ranks"]) if self.device["kind"] == "cpu" else 1.0
        slower, between, experts = (
            (under.get(key, 0.0) + part * (over.get(key, 0.0) - under.get(key, 0.0))) * more
            for key in ("slower", "between_s", "experts_s")
        )
        return slower, between, experts

    def links(self, collective: str, ranks: int, group: int) -> AlphaBeta | None:
        """α and β of a collective in groups of so many of the ranks: those measured with the nearest numbers, or None."""
        rows = [row for row in self.network.get("collectives", ()) if row["collective"] == collective]
        if not rows:
            return None
        row = min(rows, key=lambda row: (abs(row["ranks"] - ranks), abs(row["group"] - group)))
        return AlphaBeta(row["alpha_s"], row["beta_s_per_byte"])


def load_machine(path: str | Path) -> Machine | None:
    """The machine of a file; None for a file that is no measurement, but another calibration.

    Raises ConfigError for a file that cannot be read, and for a measurement that lacks a table.
    """
    path = Path(path)
    table = read_file(path, "calibration", ConfigError)
    device = table.get("device", {})
    if "kind" not in device:
        return None
    for name in ("gemm_flops", "gemm_half", "attention", "passes", "optimizer", "blocks", "memory_bandwidth"):
        if name not in device:
            raise ConfigError(
                f"calibration file {str(path)!r} has no {name} of its device: measure the machine again"
            )
    where = table.get("provenance", {})
    return Machine(
        device, table.get("network", {}), f"measured {where.get('date', '')} with {where.get('command', '')}"
    )


@dataclass(frozen=True)
class MeasuredDevice(Device):
    """One of ``ranks`` ranks on a measured machine, on average, that are busy at the same time."""

    machine: Machine = dataclasses.field(kw_only=True)
    ranks: float = dataclasses.field(kw_only=True)

    def seconds(self, operation: Operation) -> float:
        """As `Device.seconds`, from the fits."""
        one = {"product": self._gemm, "attention": self._core}.get(operation.kind, self._over)(operation)
        return one * self.machine.training(self.ranks)[0]

    def _gemm(self, o: Operation) -> float:
        given = self.machine.device
        half = given["gemm_half"][self._known]
        slower = 1 + half["m"] / o.m + half["n"] / o.n + half["k"] / o.k
        each = (
            given["gemm_overhead_s"][self._known]
            + 2.0 * o.m * o.n * o.k / given["gemm_flops"][self._known] * slower
        )
        return each * o.batch

    def _core(self, o: Operation) -> float:
        """Measured FLOPs count what the mask hides, and two products of backward for one of forward."""
        backward = o.name.endswith("backward")
        fit = self.machine.device["attention"]["backward" if backward else "forward"]
        flops = o.flops * 2 * (2 / 2.5 if backward else 1)
        return fit["overhead_s"] + flops / fit["flops"] * (1 + fit["seq_half"] / o.n + fit["head_half"] / o.k)

    def _over(self, o: Operation) -> float:
        given = self.machine.device
        name, each = _PASSES.get(o.name.rpartition(", ")[2], ("", 0))
        passes = [given["passes"][key] for key in (name, f"{name}_backward") if key in given["passes"]]
        if not passes:
            return given["op_overhead_s"] * o.kernels + o.bytes / self.bandwidth
        both = sum(1 / found["elements_per_s"] for found in passes)
        return sum(found["overhead_s"] for found in passes) / len(passes) + o.bytes / each * both

    @cached_property
    def _known(self) -> str:
        """The dtype of products, or the first that was measured."""
        known = self.machine.device["gemm_flops"]
        return self.dtype if self.dtype in known else next(iter(known))


@dataclass(frozen=True)
class MeasuredLinks(Links):
    """Messages of ranks on a measured machine."""

    machine: Machine = dataclasses.field(kw_only=True)

    def collective(self, collective: str, payload: float, ranks: int, axis: str, apart: int = 1) -> float:
        """As `Links.collective`. All ranks of the layout talk at the same time: theirs is the number that counts."""
        if ranks == 1 or not payload:
            return 0.0
        link = self.machine.links(collective, self.layout.world_size, ranks)
        if link is None:
            return super().collective(collective, payload, ranks, axis, apart)
        messages, volume = ring(collective, ranks)
        return link.time(volume * payload, messages)

    def hop(self, payload: float) -> float:
        """As `Links.hop`."""
        link = self.machine.links("send", self.layout.world_size, 2)
        return super().hop(payload) if link is None else link.time(payload)


@dataclass(frozen=True)
class MeasuredTimes(StageTimes):
    """Stages on a measured machine."""

    def block(self, kind: Kind, passes: Passes) -> Pass:
        assert isinstance(self.device, MeasuredDevice)
        _, between, experts = self.device.machine.training(self.device.ranks)
        third = Work((between + experts * kind.experts) / 3)
        return super().block(kind, passes) + Pass(third, third, third)


@dataclass(frozen=True)
class MeasuredRun(Run):
    """A run on a measured machine."""

    machine: Machine = dataclasses.field(kw_only=True)

    @cached_property
    def device(self) -> Device:
        """Ranks of a pipeline that wait, as long as in 1F1B, leave the cores of a CPU to others."""
        layout, ranks = self.layout, float(self.layout.world_size)
        if self.machine.device["kind"] == "cpu":
            ranks *= layout.grad_acc / (layout.grad_acc + (layout.pp - 1) / layout.vpp)
        return MeasuredDevice(
            self.cluster.accelerator, self.calibration, self.recipe.compute, machine=self.machine, ranks=ranks
        )

    @property
    def waited_for(self) -> float:
        """As `Run.waited_for`; where ranks share cores, those that have less leave theirs to the busiest."""
        slower = self.machine.training(self.layout.world_size)[0] / self.machine.training(1)[0]
        return max(1.0, self.imbalance / slower)

    @cached_property
    def links(self) -> Links:
        return MeasuredLinks(self.cluster, self.layout, self.calibration, machine=self.machine)

    @cached_property
    def times(self) -> StageTimes:
        plain = super().times
        return MeasuredTimes(plain.sizes, plain.device, plain.links, plain.overlap)

    @cached_property
    def _parts(self) -> dict[str, float]:
        """As `Run._parts`, with what ranks tell each other in a few bytes, which on a CPU takes long."""
        found = dict(super()._parts)
        here = self._sender(0)
        few = (*norm(here), *loss(here), *(balance(here) if here.expert_layers else ()))
        for message in _sent_of(few):
            part = {"tp": "tp", "cp": "cp", "pp": "pp_comm"}.get(message.axis, "dp_exposed")
            found[part] += self.links.of([message])
        return found

    def _sent(self, held: Held, collective: str, size: int, across: bool = False) -> float:
        """In as many messages as this library's ranks send: on a CPU it is their number that takes time."""
        gathers = collective == "all_gather"
        phases = ("parameters", "forward", "backward") if gathers else ("gradients",)
        every = _sent_of(replicas(self._sender(held.stage)))
        if across:
            return self.links.of(m for m in every if m.axis == "replicate")
        messages = [m for m in every if m.phase in phases and m.axis == "dp"]
        # ZeRO-3 gathers forward and backward, but not again what forward has gathered last.
        often = self.passes * (2 if gathers else 1) if self.at_once else 1
        return self.links.of(messages) / (1 if gathers and self.layout.zero < 3 else often)

    def _sender(self, stage: int) -> Sender:
        rank = self.layout.rank(pp=stage)
        return Sender(self.job, rank)

    def _optimizer(self, held: Held) -> float:
        """Adam's pass over what this rank updates, as it was measured."""
        fit = self.machine.device["optimizer"]
        updated = held.counts.shard
        tensors = len(held.counts.units) if self.layout.zero else TENSORS * held.layers
        alone = fit["overhead_s"] + fit["per_tensor_s"] * tensors + updated / fit["parameters_per_s"]
        return alone * self.machine.training(self.layout.world_size)[0]


def _sent_of(messages: Iterable[Message]) -> list[Message]:
    return [message for message in messages if message.count and message.ranks > 1]


def measured_run(
    machine: Machine, job: Job, *, cluster: Cluster | None = None, imbalance: float = 1.0
) -> MeasuredRun:
    """What `simulator.simulate` is asked about, on a machine; ``.step(limit=False).seconds`` is its answer.

    ``cluster`` has the network where none was measured; None is one node with as many ranks as there are. Raises
    ConfigError for replicas that send less than their gradients.
    """
    layout = job.layout
    if layout.method:
        raise ConfigError(
            f"data_parallel is {layout.data_parallel!r}, whose messages are counted in runs, not predicted"
        )
    accelerator = machine.accelerator
    link = machine.links("send", 2, 2) or AlphaBeta(1e-5, 1 / accelerator.link_bandwidth)
    one = Cluster(
        "measured",
        accelerator,
        layout.world_size,
        link.bandwidth,
        link.alpha or 1e-9,
        link.bandwidth,
        link.alpha or 1e-9,
    )
    return MeasuredRun(job, cluster or one, _CALIBRATION, imbalance=imbalance, machine=machine)
