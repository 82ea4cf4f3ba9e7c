"""How long one micro-batch takes on each stage of a layout, forward and backward, and what of that is waiting.

Blocks of a kind are alike, so that one is timed: its operations (`operations`) on the device (`roofline`), its messages
(`traffic`, asked about a model of that one block) on the network (`message_times`). What a framework hides of messages
behind computation is calibrated. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from playbook.block import Kind
from playbook.layout import Layout
from playbook.layout.stages import placement
from playbook.planning import operations
from playbook.planning.expert_traffic import experts
from playbook.planning.message_times import Links
from playbook.planning.messages import Message, Sender
from playbook.planning.operations import Operation, Passes, Sizes
from playbook.planning.parameters import blocks_of_stages
from playbook.planning.peak import RunSizes
from playbook.planning.roofline import Device
from playbook.planning.terms import label, total
from playbook.planning.traffic import context, tensor, vocabulary
from playbook.shapes import ModelShape

#: What messages a pass waits for, beside its computation.
AXES = ("tp", "cp", "ep")


@dataclass(frozen=True)
class Work:
    """One pass of a micro-batch: seconds of computation and, by axis, seconds in which it waits for messages; and those
    in which messages, hidden or not, keep the adapter of its GPU busy."""

    compute: float = 0.0
    waits: Mapping[str, float] = field(default_factory=dict)
    adapter: float = 0.0

    @cached_property
    def seconds(self) -> float:
        return self.compute + sum(self.waits.values())

    @property
    def quiet(self) -> float:
        """Seconds in which the adapter is free for gradients and weights: bytes of all axes add up on it."""
        return max(0.0, self.seconds - self.adapter)

    def __add__(self, other: Work) -> Work:
        waits = self.waits or other.waits
        if self.waits and other.waits:
            every = {**self.waits, **other.waits}
            waits = {axis: self.waits.get(axis, 0.0) + other.waits.get(axis, 0.0) for axis in every}
        return Work(self.compute + other.compute, waits, self.adapter + other.adapter)

    def __mul__(self, times: float) -> Work:
        waits = {axis: seconds * times for axis, seconds in self.waits.items()}
        return Work(self.compute * times, waits, self.adapter * times)


@dataclass(frozen=True)
class Pass:
    """The passes of a block, or of a stage: forward, gradients of inputs with what is recomputed, and of weights."""

    forward: Work = Work()
    inputs: Work = Work()
    weights: Work = Work()

    def __add__(self, other: Pass) -> Pass:
        return Pass(self.forward + other.forward, self.inputs + other.inputs, self.weights + other.weights)

    def __mul__(self, times: float) -> Pass:
        return Pass(self.forward * times, self.inputs * times, self.weights * times)

    @property
    def works(self) -> tuple[Work, Work, Work]:
        return self.forward, self.inputs, self.weights

    @cached_property
    def seconds(self) -> float:
        return sum(work.seconds for work in self.works)


@dataclass(frozen=True)
class StageTimes:
    """Times of the parts of a model on the ranks of a layout. ``overlap`` says which messages the framework hides."""

    sizes: Sizes
    device: Device
    links: Links
    overlap: Mapping[str, bool] = field(default_factory=dict)

    @property
    def shape(self) -> ModelShape:
        return self.sizes.shape

    @property
    def layout(self) -> Layout:
        return self.sizes.layout

    @cached_property
    def blocks(self) -> dict[Kind, Pass]:
        """A block of each kind."""
        return {kind: self.block(kind, self.operations(kind)) for kind in self.sizes.job.kinds}

    @cached_property
    def ends(self) -> tuple[Pass, Pass]:
        """Embedding, and head with loss. The one message of the embedding is counted with those of the head."""
        here = self._sender(next(iter(self.shape.blocks())))
        return (
            self._pass(operations.embedding(self.sizes), [], ()),
            self._pass(operations.head(self.sizes), list(vocabulary(here)), ()),
        )

    @cached_property
    def stages(self) -> list[Pass]:
        """Every stage of the model, in order. What many have in common is added up once."""
        depth, layout = self.depth, self.layout
        known: dict[tuple[object, ...], Pass] = {}
        found = []
        wide = self.sizes.job.wide
        cut = blocks_of_stages(self.shape, depth, layout.stage_layers, layout.blocks_again, wide)
        for stage, held in enumerate(cut):
            kinds, first, last = tuple(held.items()), stage == 0, stage == depth - 1
            if (kinds, first, last) not in known:
                whole = sum((self.blocks[kind] * count for kind, count in kinds), Pass())
                for end, here in zip(self.ends, (first, last), strict=True):
                    whole = whole + end if here else whole
                known[kinds, first, last] = self._at_least(whole, sum(held.values()))
            found.append(known[kinds, first, last])
        return found

    def _at_least(self, stage: Pass, blocks: int) -> Pass:
        """A stage that takes no less than the floors of its framework, a third of that forward."""
        calibration, layout = self.device.calibration, self.layout
        each = calibration.floor_pipeline if layout.pp > 1 else calibration.floor
        floor = each * layout.tp * blocks * (layout.tp > 1)
        for axis, least in (("tp", floor), ("pp", self._stall())):
            if (missing := least - stage.seconds) > 0:
                stage += Pass(Work(0.0, {axis: missing / 3}), Work(0.0, {axis: missing * 2 / 3}))
        return stage

    def _stall(self) -> float:
        """Seconds that a micro-batch takes at least where its results go to other nodes: those of two neighbours in the
        middle of a pipeline, and half of that at its ends."""
        calibration, layout, node = self.device.calibration, self.layout, self.links.cluster.gpus_per_node
        plain = layout.dp > 1 and not layout.zero
        least = calibration.stall_nodes_plain if plain else calibration.stall_nodes
        return calibration.stall * min(1.0, (layout.pp - 1) / 2) * (-(-layout.world_size // node) >= least)

    @cached_property
    def depth(self) -> int:
        return len(placement(self.layout)[0])

    def operations(self, kind: Kind) -> Passes:
        """What a block of a kind computes."""
        passes = operations.block(self.sizes, kind)
        return passes.wide() if kind.wide else passes

    def again(self, kind: Kind, passes: Passes) -> tuple[Operation, ...]:
        """What backward computes a second time of a block of a kind."""
        if "full" in (again := kind.again(self.layout.again)):
            return passes.forward
        names = {name for module in again for name in operations.AGAIN.get(module, ())}
        others = (o for o in passes.forward if o.name in names or o.name.split(", ")[0] in names)
        return (*(passes.core if "core_attn" in again else ()), *others)

    def block(self, kind: Kind, passes: Passes) -> Pass:
        """A block of a kind, whose ``operations`` these are. What it keeps goes to CPU memory and back beside it."""
        found = self._pass(passes, self._messages(kind), self.again(kind, passes))
        if "offload" not in kind.again(self.layout.again):
            return found
        kept = RunSizes(self.sizes.job).saved(kind, "+".join(self.layout.again - {"offload"}) or "none")
        seconds = total(kept) / self.device.accelerator.host_bandwidth
        windows = found.forward.seconds, found.inputs.seconds + found.weights.seconds
        return found + Pass(*(Work(max(0.0, seconds - window)) for window in windows))

    def _messages(self, kind: Kind) -> list[Message]:
        if kind not in self.sizes.sent:
            here = self._sender(kind)
            sent = (m for m in (*tensor(here), *context(here), *experts(here)) if m.axis in AXES)
            self.sizes.sent[kind] = [m for m in sent if m.count and m.ranks > 1]
        return self.sizes.sent[kind]

    def _sender(self, kind: Kind) -> Sender:
        """A rank that has this one block, and one micro-batch of it."""
        ep = self.layout.ep if kind.experts else 1
        straight = self.layout.replace(schedule="1f1b", own_schedule=None, stage_layers=None)
        again = "none" if kind.whole else self.layout.recompute.partition(":")[0]
        layout = straight.replace(ep=ep, pp=1, vpp=1, grad_acc=1, recompute=again)
        return Sender(self.sizes.job.at(kind.wide).on(layout, _one_block(self.shape, kind)), 0)

    def _pass(self, passes: Passes, messages: list[Message], again: Iterable[Operation]) -> Pass:
        calibration = self.device.calibration
        more = tuple(again)
        mode, colon, _ = self.layout.recompute.partition(":")
        part = calibration.products_again if mode == "selective" and (more or not colon) else 0.0
        products = [o for o in passes.forward if o.kind == "product" and o not in more]
        forward = self._compute(passes.forward)
        inputs = self._compute((*passes.inputs, *more)) + part * self.device.of(products)
        weights = self._compute(passes.weights) + self._accumulated(passes)
        behind = {"forward": passes.forward, "backward": (*passes.inputs, *passes.weights)}
        waits = [dict(self._waits(messages, phase, some)) for phase, some in behind.items()]
        across = [m for m in messages if self.links.spread(m.axis, m.ranks, m.apart)[0] > 1]
        busy = [self.links.of(m for m in across if m.phase == phase) for phase in behind]
        return Pass(Work(forward, waits[0], busy[0]), Work(inputs, waits[1], busy[1]), Work(weights))

    def _compute(self, some: tuple[Operation, ...]) -> float:
        """Seconds on the device, or on the host that launches the kernels, whichever is longer."""
        return max(self.device.of(some), self.device.kernels(some) * self.device.calibration.host)

    def _accumulated(self, passes: Passes) -> float:
        """Weights' gradients added to those of earlier micro-batches."""
        parameters = sum(o.m * o.n * o.batch for o in passes.weights if o.kind == "product")
        return parameters * self.device.calibration.accumulate / self.device.bandwidth

    def _waits(
        self, messages: list[Message], phase: str, beside: tuple[Operation, ...]
    ) -> Iterator[tuple[str, float]]:
        """What of the messages of a pass is not hidden ``beside`` the operations that can hide them."""
        by_axis: dict[str, float] = {}
        for message in messages:
            if message.phase == phase:
                # The rank with most rows has them to wait for.
                if message.axis == "ep" and self.sizes.imbalance != 1:
                    message = replace(message, payload=round(message.payload * self.sizes.imbalance))
                seconds = message.count * self.links.seconds(message)
                by_axis[message.axis] = by_axis.get(message.axis, 0.0) + seconds
        for axis, seconds in by_axis.items():
            hidden = self.hidden(axis)
            if axis == "cp" and self.layout.context != "ring":
                hidden = 0.0
            kinds: tuple[str, ...] = ("attention",) if axis == "cp" else ("product",)
            # Of two passes side by side one computes while the other's rows travel.
            if axis == "ep" and paired(self.layout):
                hidden, kinds = max(hidden, OVERLAPPED), ("product", "attention", "pass")
            window = hidden * self.device.of(o for o in beside if o.kind in kinds) if hidden else 0.0
            yield axis, max(0.0, seconds - window)

    def hidden(self, axis: str) -> float:
        """Of the computation that messages of an axis can hide behind, the share that they do."""
        calibration = self.device.calibration
        share: float = getattr(calibration, f"hidden_{axis}")
        if axis in self.overlap:
            return (share or OVERLAPPED) if self.overlap[axis] else 0.0
        return 0.0 if axis == "dp" and self.layout.zero and not calibration.hidden_zero else share

    def messages(self) -> Iterator[tuple[str, Message, float]]:
        """The messages of a block of each kind and of the head, for one micro-batch, and the seconds of one."""
        for kind in self.sizes.job.kinds:
            for message in self._messages(kind):
                yield f"{label(kind)} block", message, self.links.seconds(message)
        for message in vocabulary(self._sender(next(iter(self.shape.blocks())))):
            yield "head", message, self.links.seconds(message)


def paired(layout: Layout) -> bool:
    """Whether the schedule has passes side by side (DualPipe)."""
    return layout.pp > 1 and layout.schedule in ("dualpipe", "dualpipev")


#: What is hidden of messages behind computation where a job says that they overlap and no calibration how well.
OVERLAPPED = 0.8


@lru_cache(maxsize=256)
def _one_block(shape: ModelShape, kind: Kind) -> ModelShape:
    """A model of one block of this kind."""
    moe = replace(shape.moe, dense_layers=0, every=1) if kind.experts and shape.moe else None
    return replace(shape, layers=1, moe=moe, windows=(kind.window,))
