"""How a training run is spread over ranks: the sizes of the parallel axes and what belongs to a step.

The ranks of a layout form a grid. Its fastest axis is ``tp`` (the ranks that talk most sit next to each
other, inside one node), then ``cp``, then ``dp``; ``pp`` is the slowest. ``ep`` is no axis of its own:
expert groups are cut out of the ``dp`` × ``cp`` ranks. Standard library only.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from playbook._checks import check_fields, check_int, unknown
from playbook.errors import LayoutError
from playbook.layout import models, stages, tokens
from playbook.layout.options import ParallelOptions

if TYPE_CHECKING:
    from playbook.hardware import Cluster
    from playbook.shapes import ModelShape

#: Axes of the grid of ranks, the fastest first.
AXES = ("tp", "cp", "dp", "pp")
#: When a layer's activations are computed a second time in the backward pass.
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Layout:
    """Sizes of the parallel axes, and how a step runs on them. The default is one device.

    ``dp`` data, ``tp`` tensor, ``pp`` pipeline, ``cp`` context and ``ep`` expert parallelism; ``vpp`` model
    chunks per pipeline rank; ``sp`` splits the sequence between tensor-parallel regions; ``zero`` is the
    ZeRO stage; ``micro_batch`` samples per forward pass and ``grad_acc`` of them per step on each
    data-parallel rank. Raises :class:`LayoutError` for values that no model and no machine could make
    right.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    vpp: int = 1
    sp: bool = False
    zero: int = field(default=0, metadata={"least": 0})
    recompute: str = field(default="none", metadata={"choices": RECOMPUTE})
    schedule: str = field(default="1f1b", metadata={"choices": stages.SCHEDULES})
    micro_batch: int = 1
    grad_acc: int = 1

    def __post_init__(self) -> None:
        check_fields(self, LayoutError)
        if self.zero > 3:
            raise LayoutError(f"zero must be 0, 1, 2 or 3, got {self.zero}")
        if (self.dp * self.cp) % self.ep:
            raise LayoutError(f"ep must divide dp * cp = {self.dp * self.cp}, got {self.ep}")

    @property
    def stages(self) -> int:
        """Stages that the model is cut into: pp · vpp, and 2 · pp where the pipeline is folded into a V."""
        return stages.depth(self)

    @property
    def world_size(self) -> int:
        """Number of ranks: dp · cp · tp · pp. Expert parallelism adds none."""
        return self.dp * self.cp * self.tp * self.pp

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step: micro_batch · grad_acc · dp."""
        return self.micro_batch * self.grad_acc * self.dp

    @classmethod
    def parse(cls, text: str) -> Layout:
        """The layout written as ``"dp=2,tp=2,pp=2,zero=1,sp"``; an empty text is one device.

        A bool may stand alone (``sp``) or with ``=true``/``=false``. Raises :class:`LayoutError` for an
        unknown or repeated field and for a value of the wrong kind.
        """
        values: dict[str, Any] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if key not in _KINDS:
                raise LayoutError(unknown("layout field", key, _KINDS))
            if key in values:
                raise LayoutError(f"{key} is given twice in the layout {text!r}")
            values[key] = _value(key, value if equals else None)
        return cls(**values)

    def __str__(self) -> str:
        """What :meth:`parse` reads back: the fields that differ from one device, ``""`` if none does."""
        default, parts = Layout(), []
        for key in _KINDS:
            value = getattr(self, key)
            if value != getattr(default, key):
                parts.append(key if value is True else f"{key}={value}")
        return ",".join(parts)

    def replace(self, **changes: Any) -> Layout:
        """A copy with some fields changed; raises :class:`LayoutError` for an unknown one."""
        for key in changes:
            if key not in _KINDS:
                raise LayoutError(unknown("layout field", key, _KINDS))
        return dataclasses.replace(self, **changes)

    def of_step(self) -> Layout:
        """The same without what belongs to one run's steps: micro-batches and recomputation."""
        return self.replace(micro_batch=1, grad_acc=1, recompute="none")

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where ``rank`` sits: its index on each axis of :data:`AXES`. The inverse of :meth:`rank`."""
        check_int("rank", rank, LayoutError, least=0)
        if rank >= self.world_size:
            raise LayoutError(f"rank must be below the layout's {self.world_size} ranks, got {rank}")
        place = {}
        for axis in AXES:
            rank, place[axis] = divmod(rank, getattr(self, axis))
        return place

    def rank(self, *, tp: int = 0, cp: int = 0, dp: int = 0, pp: int = 0) -> int:
        """The rank at these coordinates: tp + TP · (cp + CP · (dp + DP · pp))."""
        rank, place = 0, {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
        for axis in reversed(AXES):
            size = getattr(self, axis)
            if check_int(axis, place[axis], LayoutError, least=0) >= size:
                raise LayoutError(f"{axis} must be below the layout's {axis} = {size}, got {place[axis]}")
            rank = rank * size + place[axis]
        return rank

    def groups(self, *axes: str) -> list[tuple[int, ...]]:
        """The groups of ranks that differ along ``axes`` alone; every rank is in exactly one of them.

        ``groups("tp")`` are the tensor-parallel groups, ``groups("dp", "cp")`` the ranks that hold the same
        weights. ``groups("ep")`` share one set of experts: neighbours in a dp × cp group. ``groups("edp")``
        hold copies of the same experts. Raises :class:`LayoutError` for an unknown axis.
        """
        if axes in (("ep",), ("edp",)):
            return self._expert_groups(axes[0])
        for axis in axes or ("",):
            if axis not in AXES:
                raise LayoutError(unknown("axis", axis, (*AXES, "ep", "edp")))
        fixed = [axis for axis in AXES if axis not in axes]
        return [
            tuple(sorted(self.rank(**there, **here) for here in self._places(axes)))
            for there in self._places(fixed)
        ]

    def mirrored(self, *axes: str) -> list[tuple[int, ...]]:
        """``groups`` of ``axes`` (dp and cp), each with that at the mirrored place of its pipelines: where these run both
        ways, ranks that hold the same weights."""
        mirror = {rank: line[-1 - i] for line in self.groups("pp") for i, rank in enumerate(line)}
        pairs = [
            {*group, *(mirror[rank] for rank in group)} for group in self.groups(*(axes or ("dp", "cp")))
        ]
        return [tuple(sorted(pair)) for i, pair in enumerate(pairs) if pair not in pairs[:i]]

    def _places(self, axes: list[str] | tuple[str, ...]) -> list[dict[str, int]]:
        """Every combination of indices along ``axes``, the fastest axis first to change."""
        order = [axis for axis in reversed(AXES) if axis in axes]
        ranges = (range(getattr(self, axis)) for axis in order)
        return [dict(zip(order, indices, strict=True)) for indices in itertools.product(*ranges)]

    def _expert_groups(self, axis: str) -> list[tuple[int, ...]]:
        groups = []
        for ranks in self.groups("dp", "cp"):
            if axis == "ep":
                groups += [ranks[start : start + self.ep] for start in range(0, len(ranks), self.ep)]
            else:
                groups += [ranks[start :: self.ep] for start in range(self.ep)]
        return groups

    def check(
        self,
        shape: ModelShape,
        cluster: Cluster | None = None,
        seq: int | None = None,
        options: ParallelOptions | None = None,
    ) -> None:
        """Raise one :class:`LayoutError` if this layout cannot train ``shape``: every technique is asked in turn.

        ``cluster`` limits the ranks if it has a number of GPUs; ``options`` are those of the techniques. With ``seq``,
        the tokens per sample, a step is checked as well: its samples, and its ``grad_acc`` micro-batches. The sentence
        names the field, its value and what would be valid. A pipeline's own schedule that cannot be carried out raises
        ScheduleError.
        """
        options = options or ParallelOptions()
        models.check_tensor(shape, self, options)
        stages.check(shape, self, options)
        models.check_experts(shape, self, options, seq)
        tokens.check(shape, self, options, seq)
        if options.method:
            options.method.check(self)
        if seq is not None:
            stages.check_microbatches(self, self.grad_acc, options.schedule)
        if cluster is not None and cluster.gpus is not None and self.world_size > cluster.gpus:
            raise LayoutError(
                f"dp * cp * tp * pp must be at most the {cluster.gpus} GPUs of {cluster.name}, "
                f"got {self.world_size}"
            )

    def padded(self, seq: int) -> int:
        """Tokens of a sample of ``seq`` once it can be sharded evenly; what is added counts in no loss.

        Context-parallel ranks have two parts each (of a zigzag), and with sp a rank's tokens are sharded once more.
        """
        parts = math.lcm(2 * self.cp if self.cp > 1 else 1, self.cp * (self.tp if self.sp else 1))
        return -(-seq // parts) * parts

    def padding(self, shape: ModelShape, seq: int) -> list[str]:
        """What is made larger so that it can be sharded evenly, a sentence each."""
        said, padded = [], self.padded(seq)
        if padded != seq:
            why = [
                f"cp={self.cp} ranks in a zigzag" if self.cp > 1 else "",
                f"tp={self.tp} ranks with sp" if self.sp else "",
            ]
            said.append(
                f"samples of {seq} tokens are padded to {padded}, to divide over {' and '.join(filter(None, why))}"
            )
        words = -(-shape.vocab // self.tp) * self.tp
        if words != shape.vocab:
            said.append(
                f"the vocabulary of {shape.vocab} is padded to {words}, to divide over tp={self.tp} ranks"
            )
        return said


_KINDS = {f.name: str(f.type) for f in dataclasses.fields(Layout)}


def _value(key: str, text: str | None) -> int | bool | str:
    """The value of one ``key=text`` of a layout; ``text`` is None where the key stands alone."""
    kind = _KINDS[key]
    if kind == "bool":
        truths = {None: True, "true": True, "1": True, "false": False, "0": False}
        known = text.lower() if text else text
        if known not in truths:
            raise LayoutError(f"{key} must stand alone or be true or false, got {text!r}")
        return truths[known]
    if not text:
        raise LayoutError(f"{key} needs a value, such as {key}={getattr(Layout, key)}")
    if kind == "str":
        return text
    try:
        return int(text)
    except ValueError:
        raise LayoutError(f"{key} must be an integer, got {text!r}") from None
