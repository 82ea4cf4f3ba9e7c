"""The ranks of a layout as a grid with named axes, a process group for any of its subsets of axes, and rings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from playbook._checks import unknown
from playbook.errors import LayoutError
from playbook.layout import AXES, Layout
from playbook.layout.tokens import source_of


class Mesh:
    """Where this rank stands in the grid of ``layout``, and the groups in which it talks.

    ``mesh.group("dp")`` are the ranks that differ from this one along dp alone; ``mesh.group("dp", "cp")`` those that
    differ along dp, cp or both. The default process group must exist (``launch.process_group``). A group is made when it
    is first asked for, and all ranks take part in that: they must ask for groups in the same order.

    Raises :class:`LayoutError` when as many ranks were not launched as the layout has.
    """

    def __init__(self, layout: Layout):
        if dist.get_world_size() != layout.world_size:
            raise LayoutError(
                f"layout {str(layout) or 'of one device'!r} has {layout.world_size} ranks, but "
                f"{dist.get_world_size()} were launched: make dp * cp * tp * pp equal to them"
            )
        self.layout, self.rank = layout, dist.get_rank()
        self.coordinates = layout.coordinates(self.rank)
        self._long = [axis for axis in AXES if getattr(layout, axis) > 1]
        self._groups: dict[tuple[str, ...], dist.ProcessGroup | None] = {}

    def group(self, *axes: str) -> dist.ProcessGroup:
        """The group of this rank along ``axes``: itself alone where all of them have size 1."""
        key = self._key(axes)
        if key not in self._groups:
            alone: list[tuple[int, ...]] = [(rank,) for rank in range(self.layout.world_size)]
            self._groups[key] = self._create(self.layout.groups(*key) if key else alone, key)
        group = self._groups[key]
        if group is None:
            raise LayoutError(f"rank {self.rank} is in no group {axes[0]!r}")
        return group

    def add(self, name: str, groups: Iterable[Iterable[int]]) -> str:
        """Let ``name`` stand for an axis whose groups are these lists of global ranks; a rank may be in none of them.

        A collective: every rank must name all groups, in one order. Gives ``name``.
        """
        if (name,) not in self._groups:
            self._groups[name,] = self.subgroup(groups)
        return name

    def subgroup(self, groups: Iterable[Iterable[int]]) -> dist.ProcessGroup | None:
        """A new group: of ``groups``, lists of global ranks, the one that this rank is in. Every rank must ask for all of
        them, in one order: PyTorch names groups by how many there have been."""
        found = None
        for ranks in (sorted(group) for group in groups):
            made = dist.new_group(ranks)
            found = made if self.rank in ranks else found
        return found

    def neighbours(self, axis: str, count: int, name: str = "") -> str:
        """The name of an axis of ``count`` neighbours along ``axis``: ranks 0 and 1, 2 and 3, … for two. A collective."""
        lines = self.layout.groups(axis)
        parts = [line[i : i + count] for line in lines for i in range(0, len(line), count)]
        return self.add(name or f"{axis}/{count}", parts)

    def hybrid(self, group: dist.ProcessGroup) -> tuple[dist.ProcessGroup, dist.ProcessGroup] | None:
        """Of a ``group`` with the same weights, this rank's shard group, and the ranks that have the same shard in all of
        the layout's ``replicate`` groups; None for one. A collective of the group."""
        if self.layout.replicate == 1:
            return None
        each, parts = self.layout.dp // self.layout.replicate, dict[int, list[int]]()
        for rank in dist.get_process_group_ranks(group):
            parts.setdefault(self.layout.coordinates(rank)["dp"] // each, []).append(rank)
        own = parts[self.coordinates["dp"] // each]
        same = [part[own.index(self.rank)] for part in parts.values()]
        return clone_group(group, own), clone_group(group, same)

    def _create(self, groups: list[tuple[int, ...]], axes: tuple[str, ...]) -> dist.ProcessGroup:
        """The one of ``groups`` that this rank is in. Every rank takes part in creating each; NCCL names their axes."""
        if len(groups) == 1:
            whole = dist.group.WORLD
            assert whole is not None
            return whole
        mine, _ = dist.new_subgroups_by_enumeration([list(g) for g in groups], group_desc=",".join(axes))
        return mine

    def size(self, *axes: str) -> int:
        """Number of ranks in ``group(*axes)``."""
        return self.group(*axes).size()

    def index(self, *axes: str) -> int:
        """This rank's place in ``group(*axes)``, from 0; among the ranks along one axis, its coordinate."""
        return self.group(*axes).rank()

    def ranks(self, *axes: str) -> tuple[int, ...]:
        """The global ranks of ``group(*axes)``, in its order."""
        return tuple(dist.get_process_group_ranks(self.group(*axes)))

    def names(self) -> list[str]:
        """The axes that were added."""
        return [key[0] for key in self._groups if len(key) == 1 and key[0] not in AXES]

    def _key(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        if axes in self._groups:
            return axes
        for axis in axes:
            if axis not in AXES:
                raise LayoutError(unknown("axis", axis, AXES))
        return tuple(axis for axis in self._long if axis in axes)

    @property
    def device(self) -> str:
        """Where this rank computes: ``cuda`` under NCCL, else ``cpu``."""
        return "cuda" if dist.get_backend() == "nccl" else "cpu"


def clone_group(group: dist.ProcessGroup, some: list[int] | None = None) -> dist.ProcessGroup:
    """Another group of the same ranks, or of ``some`` of them, whose collectives do not queue behind those of ``group``.
    A collective of all these.

    PyTorch names it by how many groups a rank is in, and ranks that disagree on the name wait for each other for ever.
    They may: after another layout in the same process, whose stages had unequally many. So they even it out first.
    """
    own, counts = len(dist.distributed_c10d._world.pg_names), [0] * group.size()
    dist.all_gather_object(counts, own, group=group)
    for _ in range(own, max(counts)):
        dist.new_group([dist.get_rank()], use_local_synchronization=True)
    return dist.new_group(some or dist.get_process_group_ranks(group), use_local_synchronization=True)


Group: TypeAlias = dist.ProcessGroup | None
# PyTorch 2.13 has renamed them, and warns of the names of before.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_gather(whole: Tensor, own: Tensor, group: Group = None, async_op: bool = False) -> Any:
    """Fill ``whole`` (N · n,) with the ``own`` (n,) of all N ranks in order. With ``async_op``, the work under way."""
    return _all_gather(whole, own, group=group, async_op=async_op)


def reduce_scatter(own: Tensor, whole: Tensor, group: Group = None, async_op: bool = False) -> Any:
    """Fill ``own`` (n,) with this rank's chunk of the sum over ranks of ``whole`` (N · n,), which may contain it."""
    return _reduce_scatter(own, whole, group=group, async_op=async_op)


class Ring:
    """Messages around the ranks of ``group``, in their order: rank r sends to r + 1 and receives from r − 1."""

    def __init__(self, group: dist.ProcessGroup):
        self.group, self.rank, self.ranks = group, group.rank(), group.size()
        ranks = dist.get_process_group_ranks(group)
        self._next, self._before = ranks[(self.rank + 1) % self.ranks], ranks[self.rank - 1]
        self._works: list[dist.Work] = []

    def source(self, step: int) -> int:
        """Whose message is here after so many steps, if every rank began with its own."""
        return source_of(self.rank, step, self.ranks)

    def pass_on(self, tensor: Tensor) -> Tensor:
        """Start to send ``tensor`` (contiguous) and to receive one like it, which is there after `arrive`.

        Neither may be written to before that."""
        coming = torch.empty_like(tensor)
        there = dist.P2POp(dist.isend, tensor, self._next, self.group)
        here = dist.P2POp(dist.irecv, coming, self._before, self.group)
        self._works += dist.batch_isend_irecv([there, here])
        return coming

    def arrive(self) -> None:
        """Wait for all that was started."""
        for work in self._works:
            work.wait()
        self._works.clear()
