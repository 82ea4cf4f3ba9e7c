"""Counting communication: every collective that a piece of code runs, by group and kind, in calls and bytes.

    with CountBytes(groups={"dp": dp_group, "tp": tp_group}) as count:
        train_step()
    count["dp"]["all_reduce"].sent

PyTorch hands every collective to its dispatcher, whoever asked for it: a function of ``torch.distributed``, DDP's
buckets, FSDP, DTensor. That is where they are counted, so that nothing has to be wrapped. What other threads run is
not seen, nor what kernels do on symmetric memory. A collective of ``c10d`` that is not known here ends with a
:class:`CollectiveError`: a count that misses some is worse than none.

Two conventions, both kept:

``payload``
    the bytes of the vector, as nccl-tests count the size of a collective: K of a broadcast, reduce, all-reduce, send or
    receive; the whole vector, N chunks, of an all-gather, reduce-scatter, all-to-all, gather and scatter.
``sent``
    the bytes that *this rank* sends if the collective runs around a ring (``plans/rings.py``), N being the ranks of
    the group: all-reduce 2(N − 1)/N·K, all-gather and reduce-scatter (N − 1)/N·K. Broadcast and reduce go along a
    chain, so that every rank sends K but the last one. All-to-all, gather and scatter send each chunk straight to its
    owner. Where K does not divide, what this rank's chunks make it send: exact integers, never a mean. The backend
    may choose another algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from playbook._checks import unknown
from playbook.collectives import CollectiveError
from playbook.planning.communication import ring_bytes_sent

#: What is counted; a coalesced call counts once for each tensor.
KINDS = (
    "broadcast", "reduce", "gather", "all_gather", "scatter", "reduce_scatter", "all_reduce", "all_to_all", "barrier",
    "send", "recv",
)  # fmt: skip


@dataclass(frozen=True)
class Tally:
    """Calls of one kind of collective on one group, their payload, and what this rank sends by a ring's formula."""

    calls: int = 0
    payload: int = 0
    sent: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.calls + other.calls, self.payload + other.payload, self.sent + other.sent)


@dataclass(frozen=True)
class CollectiveEvent:
    """One collective, in the order in which they were started: ``group`` is its label."""

    group: str
    kind: str
    payload: int
    sent: int


@dataclass
class GroupCount:
    """What was counted on one group: ``group["all_reduce"]`` is a :class:`Tally`, empty if there was none."""

    label: str
    tallies: dict[str, Tally] = field(default_factory=dict)

    def __getitem__(self, kind: str) -> Tally:
        if kind not in KINDS:
            raise CollectiveError(unknown("collective", kind, KINDS))
        return self.tallies.get(kind, Tally())

    @property
    def total(self) -> Tally:
        """All kinds together."""
        return sum(self.tallies.values(), Tally())


_Labelled = dist.ProcessGroup | Iterable[dist.ProcessGroup | None] | None


def _each_group(found: _Labelled) -> Iterator[dist.ProcessGroup]:
    several = found if isinstance(found, Iterable) else [found]
    return (group for group in several if isinstance(group, dist.ProcessGroup))


class CountBytes(TorchDispatchMode):
    """Counts while it is entered; enter it again and it counts on.

    ``groups`` gives process groups, or lists of them, the labels to look them up by; a group without one goes by "world"
    if it is the default group, else by PyTorch's name for it. A group that this rank is not in may be given; nothing is
    counted on it.
    """

    def __init__(self, groups: Mapping[str, _Labelled] | None = None):
        super().__init__()
        self.events: list[CollectiveEvent] = []
        self._groups = {label: GroupCount(label) for label in groups or {}}
        self._labels: dict[str, str] = {}
        given = ((label, group) for label, found in (groups or {}).items() for group in _each_group(found))
        for label, group in given:
            if group.group_name in self._labels:
                raise CollectiveError(
                    f"{self._labels[group.group_name]!r} and {label!r} label the same group"
                )
            self._labels[group.group_name] = label

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else PyTorch imports its compiler when the first call is counted, which takes seconds

    def __getitem__(self, label: str) -> GroupCount:
        if label not in self._groups and label != "world":
            raise CollectiveError(unknown("group", label, {*self._groups, "world"}))
        return self._groups.get(label, GroupCount(label))

    @property
    def sent(self) -> dict[str, int]:
        """Bytes that this rank sends, by label."""
        return {label: group.total.sent for label, group in self._groups.items()}

    def __repr__(self) -> str:
        lines = [f"{'group':12} {'collective':14} {'calls':>7} {'payload':>15} {'sent':>15}"]
        for label, group in self._groups.items():
            for kind, t in group.tallies.items():
                lines.append(f"{label:12} {kind:14} {t.calls:>7,} {t.payload:>15,} {t.sent:>15,}")
        return "\n".join(lines)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if types and any(t.__module__.startswith("torch.distributed") for t in types):
            # A DTensor first becomes the collectives and plain tensors that it stands for.
            return NotImplemented
        name = func._schema.name
        reader = _READERS.get(name)
        if reader is None and name.startswith(_COLLECTIVE) and name not in _SILENT:
            raise CollectiveError(f"CountBytes does not know how to count {name}")
        if reader is not None:
            named = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | (kwargs or {})
            group = _group(named)
            self._count(reader(named, group), group)
        return getattr(func, "_op", func)(*args, **(kwargs or {}))  # does not look through all of them

    def _count(self, call: _Call, group: dist.ProcessGroup) -> None:
        label = self._labels.get(group.group_name) or _default_label(group)
        counted = self._groups.setdefault(label, GroupCount(label))
        for vector in call.vectors:
            payload, sent = vector.elements * vector.itemsize, _sent(call, vector, group)
            self.events.append(CollectiveEvent(label, call.kind, payload, sent))
            counted.tallies[call.kind] = counted[call.kind] + Tally(1, payload, sent)


def _default_label(group: dist.ProcessGroup) -> str:
    world = dist.group.WORLD
    return "world" if world is not None and group.group_name == world.group_name else group.group_name


@dataclass(frozen=True)
class _Vector:
    """A vector that a collective moves: K / itemsize elements, of which this rank keeps ``own`` (if the call says)."""

    elements: int
    itemsize: int
    own: int | None = None


@dataclass(frozen=True)
class _Call:
    kind: str
    vectors: list[_Vector]
    root: int = 0


def _vector(tensor: Tensor, times: int = 1, own: int | None = None) -> _Vector:
    return _Vector(tensor.numel() * times, tensor.element_size(), own)


def _joined(tensors: list[Tensor], own: int | None = None) -> _Vector:
    """A vector that comes as a list of its chunks."""
    size = tensors[0].element_size() if tensors else 1
    return _Vector(sum(t.numel() for t in tensors), size, own)


def _each(kind: str, argument: str) -> _Reader:
    """A call whose every tensor is a whole vector."""

    def read(named: dict[str, Any], group: dist.ProcessGroup) -> _Call:
        tensors = named[argument]
        vectors = [_vector(t) for t in ([tensors] if isinstance(tensors, Tensor) else tensors)]
        return _Call(kind, vectors, int(named.get("root_rank", 0)))

    return read


def _chunks(kind: str, argument: str) -> _Reader:
    """A call whose tensors are one rank's chunks of vectors that are N times as long."""

    def read(named: dict[str, Any], group: dist.ProcessGroup) -> _Call:
        tensors = named[argument]
        vectors = [_vector(t, group.size()) for t in ([tensors] if isinstance(tensors, Tensor) else tensors)]
        return _Call(kind, vectors, int(named.get("root_rank", 0)))

    return read


def _lists(kind: str, argument: str) -> _Reader:
    """A call whose vectors are lists of chunks."""

    def read(named: dict[str, Any], group: dist.ProcessGroup) -> _Call:
        return _Call(kind, [_joined(tensors) for tensors in named[argument]])

    return read


def _all_to_all_list(named: dict[str, Any], group: dist.ProcessGroup) -> _Call:
    chunks = named["input_tensors"]
    return _Call("all_to_all", [_joined(chunks, own=chunks[group.rank()].numel())])


def _all_to_all_single(named: dict[str, Any], group: dist.ProcessGroup) -> _Call:
    tensor, rows = named["input"], list(named["input_split_sizes"])
    row = tensor[0].numel() if tensor.dim() > 1 and len(tensor) else 1
    own = rows[group.rank()] * row if rows else tensor.numel() // group.size()
    return _Call("all_to_all", [_vector(tensor, own=own)])


def _barrier(named: dict[str, Any], group: dist.ProcessGroup) -> _Call:
    return _Call("barrier", [_Vector(0, 1)])


_Reader = Callable[[dict[str, Any], dist.ProcessGroup], _Call]
#: How to read each operation that PyTorch's dispatcher sees, by its name.
_READERS: dict[str, _Reader] = {
    "c10d::broadcast_": _each("broadcast", "tensors"),
    "c10d::reduce_": _each("reduce", "tensors"),
    "c10d::gather_": _chunks("gather", "input_tensors"),
    "c10d::scatter_": _chunks("scatter", "output_tensors"),
    "c10d::allgather_": _lists("all_gather", "output_tensors"),
    "c10d::allgather_coalesced_": _chunks("all_gather", "input_list"),
    "c10d::_allgather_base_": _each("all_gather", "output_tensor"),
    "c10d::allgather_into_tensor_coalesced_": _each("all_gather", "outputs"),
    "c10d::reduce_scatter_": _lists("reduce_scatter", "input_tensors"),
    "c10d::_reduce_scatter_base_": _each("reduce_scatter", "input_tensor"),
    "c10d::reduce_scatter_tensor_coalesced_": _each("reduce_scatter", "inputs"),
    "c10d::allreduce_": _each("all_reduce", "tensors"),
    "c10d::allreduce_coalesced_": _each("all_reduce", "tensors"),
    "c10d::alltoall_": _all_to_all_list,
    "c10d::alltoall_base_": _all_to_all_single,
    "c10d::barrier": _barrier,
    "c10d::monitored_barrier_": _barrier,
    "c10d::send": _each("send", "tensors"),
    "c10d::recv_": _each("recv", "tensors"),
    "c10d::recv_any_source_": _each("recv", "tensors"),
    "_c10d_functional::broadcast": _each("broadcast", "input"),
    "_c10d_functional::broadcast_": _each("broadcast", "input"),
    "_c10d_functional::all_gather_into_tensor": _chunks("all_gather", "input"),
    "_c10d_functional::all_gather_into_tensor_out": _chunks("all_gather", "input"),
    "_c10d_functional::all_gather_into_tensor_coalesced": _chunks("all_gather", "inputs"),
    "_c10d_functional::reduce_scatter_tensor": _each("reduce_scatter", "input"),
    "_c10d_functional::reduce_scatter_tensor_out": _each("reduce_scatter", "input"),
    "_c10d_functional::reduce_scatter_tensor_coalesced": _each("reduce_scatter", "inputs"),
    "_c10d_functional::all_reduce": _each("all_reduce", "input"),
    "_c10d_functional::all_reduce_": _each("all_reduce", "input"),
    "_c10d_functional::all_reduce_coalesced": _each("all_reduce", "inputs"),
    "_c10d_functional::all_reduce_coalesced_": _each("all_reduce", "inputs"),
    "_c10d_functional::all_to_all_single": _all_to_all_single,
    "_c10d_functional::isend": _each("send", "tensor"),
    "_c10d_functional::irecv": _each("recv", "tensor"),
    "_dtensor::shard_dim_alltoall": _each("all_to_all", "input"),
}
_COLLECTIVE = ("c10d::", "_c10d_functional::")
#: What moves nothing.
_SILENT = {"c10d::check_for_nan", "_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd"}


def _group(named: dict[str, Any]) -> dist.ProcessGroup:
    """The process group among the arguments of an operation: as an object, or by PyTorch's name for it."""
    if "process_group" in named:
        return dist.ProcessGroup.unbox(named["process_group"])
    return dist.distributed_c10d._resolve_process_group(named["group_name"])


def _sent(call: _Call, vector: _Vector, group: dist.ProcessGroup) -> int:
    if vector.own is not None:
        return (vector.elements - vector.own) * vector.itemsize
    return ring_bytes_sent(call.kind, vector.elements, vector.itemsize, group.size(), group.rank(), call.root)


def traffic_groups(engine: Any) -> dict[str, list[dist.ProcessGroup]]:
    """The groups in which this rank of an `Engine` talks, by axis of the mesh: what `CountBytes` labels bytes with.

    Gradients and parameters of ranks with other tokens count for dp, whether these are other samples or other parts
    (cp), sums over replicas of shards for replicate; keys and values that travel count for cp, parts of matrices that
    are made whole for muon.
    """
    mesh, found = engine.mesh, {"dp": [group for one in engine.sets for group in one.groups()]}
    if mesh is None:
        return {}
    if mesh.layout.replicate > 1:
        found["replicate"] = [one.across for one in engine.sets if one.across]
    if whole := [group for one in engine.optimizers if (group := getattr(one, "exchange", None))]:
        found["muon"] = whole
    partial = {axis for placement in engine.placements.values() for axis in placement.partial}
    tied = {placement.tied for placement in engine.placements.values() if placement.tied}
    if mesh.layout.ep > 1:
        found["ep"] = [mesh.group(name) for name in mesh.names() if name.startswith("ep")]
    for axis, more in (("tp", partial), ("cp", ()), ("pp", tied)):
        if getattr(mesh.layout, axis) > 1:
            found[axis] = [mesh.group(name) for name in dict.fromkeys([axis, *sorted(more)])]
    if engine.pipeline:
        found["pp"] += engine.pipeline.groups()
    return {axis: list(dict.fromkeys(groups)) for axis, groups in found.items()}
