"""How a training run is spread over ranks: sizes of the parallel axes, options of their techniques, parts of a step.

The ranks of a layout form a grid. Its fastest axis is ``tp`` (the ranks that talk most sit next to each
other, inside one node), then ``cp``, then ``dp``; ``pp`` is the slowest. ``ep`` is no axis of its own:
expert groups are cut out of the ``dp`` × ``cp`` ranks. Standard library only.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from playbook._checks import check_fields, check_int, unknown
from playbook.errors import LayoutError
from playbook.layout import models, stages, tokens
from playbook.layout.fields import DATA_PARALLEL, Fields, recomputed
from playbook.registry import lab

if TYPE_CHECKING:
    from playbook.hardware import Cluster
    from playbook.shapes import ModelShape

#: Axes of the grid of ranks, the fastest first.
AXES = ("tp", "cp", "dp", "pp")
#: Groups that are cut out of the dp × cp ranks: neighbours, and ranks at one place among their neighbours, by turns.
CUT_OUT = ("ep", "edp", "shard", "replicate")


@dataclass(frozen=True)
class Layout(Fields):
    """Sizes of the parallel axes, and how a step runs on them. The default is one device.

    ``dp`` data, ``tp`` tensor, ``pp`` pipeline, ``cp`` context and ``ep`` expert parallelism; ``vpp`` model chunks per
    pipeline rank; ``sp`` splits the sequence between tensor-parallel regions; ``zero`` is the ZeRO stage, of whose shards
    as many groups of neighbours as ``replicate`` says have all (HSDP); ``micro_batch`` samples per forward pass and
    ``grad_acc`` of them per step on each data-parallel rank.

    The other fields are options of techniques; those of one that is not used mean nothing. ``own_schedule`` is carried
    out in place of the one that ``schedule`` names; a method of ``data_parallel`` that sends less is one of
    ``decentralized/methods.py``.

    Raises :class:`LayoutError` for values that no model and no machine could make right.
    """

    def __post_init__(self) -> None:
        self._check()

    def _check(self, changed: Iterable[str] | None = None) -> None:
        """Check the fields that were ``changed``, or all, and what they ask of each other."""
        check_fields(self, LayoutError, only=changed)
        if self.data_parallel == "all-reduce":
            object.__setattr__(self, "data_parallel", "bucketed")
        recomputed(self.recompute, LayoutError)
        _ = self.method, self.token_placement  # they say what is wrong
        if self.zero > 3:
            raise LayoutError(f"zero must be 0, 1, 2 or 3, got {self.zero}")
        if self.dp % self.replicate:
            raise LayoutError(f"replicate must divide dp = {self.dp}, got {self.replicate}")
        if self.replicate > 1 and not self.zero:
            raise LayoutError(
                f"replicate = {self.replicate} repeats ZeRO's shards: zero must be 1, 2 or 3, got 0"
            )
        if self.etp == self.tp:
            object.__setattr__(self, "etp", 0)
        if self.etp > 1 or (self.etp and not self.sp):
            raise LayoutError(f"etp must be tp = {self.tp}, or 1 where the layout has sp, got {self.etp}")
        if self.shards * self.apart % self.ep:
            some = "dp * cp" + " * tp" * self.etp + " / replicate" * (self.replicate > 1)
            raise LayoutError(f"ep must divide {some} = {self.shards * self.apart}, got {self.ep}")

    @property
    def method(self) -> Any:
        """What takes the place of adding up whole gradients; None for ``DATA_PARALLEL``, which does. ConfigError else."""
        if self.data_parallel in DATA_PARALLEL:
            return None
        return lab("data parallel", "method")(self.data_parallel)

    @property
    def token_placement(self) -> str:
        """Which tokens of a sample each context-parallel rank has: ``placement``, filled in."""
        return tokens.placement_of(self.context, self.placement)

    @property
    def stages(self) -> int:
        """Stages that the model is cut into: pp · vpp, and 2 · pp where the pipeline is folded into a V."""
        return stages.depth(self)

    @property
    def world_size(self) -> int:
        """Number of ranks: dp · cp · tp · pp. Expert parallelism adds none."""
        return self.dp * self.cp * self.tp * self.pp

    @property
    def shards(self) -> int:
        """Over how many ranks ZeRO shards what all of them have: dp · cp / replicate."""
        return self.dp * self.cp // self.replicate

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step: micro_batch · grad_acc · dp."""
        return self.micro_batch * self.grad_acc * self.dp

    @classmethod
    def parse(cls, text: str, gpus: int | None = None) -> Layout:
        """The layout written as ``"dp=2,tp=2,pp=2,zero=1,sp"``; an empty text is one device. Options are no part of it.

        With so many ``gpus``, dp is what is left of them unless it is written.
        A bool may stand alone (``sp``) or with ``=true``/``=false``. Raises :class:`LayoutError` for an
        unknown or repeated field and for a value of the wrong kind.
        """
        values: dict[str, Any] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if key not in FIELDS:
                raise LayoutError(unknown("layout field", key, FIELDS))
            if key in values:
                raise LayoutError(f"{key} is given twice in the layout {text!r}")
            values[key] = _value(key, value if equals else None)
        if gpus is None:
            return cls(**values)
        others = math.prod(check_int(axis, values.get(axis, 1), LayoutError) for axis in ("tp", "cp", "pp"))
        if check_int("gpus", gpus, LayoutError) % others and "dp" not in values:
            raise LayoutError(f"gpus must be a multiple of tp * cp * pp = {others}, got {gpus}")
        layout = cls(**{"dp": gpus // others, **values})
        if gpus != layout.world_size:
            raise LayoutError(f"dp * cp * tp * pp must be gpus = {gpus}, got {layout.world_size}")
        return layout

    def __str__(self) -> str:
        """What :meth:`parse` reads back: the fields that differ from one device, ``""`` if none does."""
        default, parts = Layout(), []
        for key in FIELDS:
            value = getattr(self, key)
            if value != getattr(default, key):
                parts.append(key if value is True else f"{key}={value}")
        return ",".join(parts)

    def replace(self, **changes: Any) -> Layout:
        """A copy with some fields changed; raises :class:`LayoutError` for an unknown one."""
        for key in changes:
            if key not in self.__dataclass_fields__:
                raise LayoutError(unknown("layout field", key, self.__dataclass_fields__))
        copy = object.__new__(Layout)  # a search makes many: `dataclasses.replace` checks all fields again
        vars(copy).update(vars(self) | changes)
        copy._check(changes)
        return copy

    @property
    def options(self) -> dict[str, Any]:
        """The options of techniques, by the names of their fields."""
        return {key: value for key, value in vars(self).items() if key not in FIELDS}

    def to_json(self) -> dict[str, Any]:
        """All fields, as JSON holds them."""
        own = {"own_schedule": self.own_schedule.to_json()} if self.own_schedule else {}
        return vars(self) | own

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
        weights. ``groups("ep")`` share one set of experts: neighbours in a dp × cp (× tp) group. ``groups("edp")``
        hold copies of the same experts. So do ``groups("shard")`` and ``groups("replicate")`` with what ZeRO shards.
        Raises :class:`LayoutError` for an unknown axis.
        """
        if len(axes) == 1 and axes[0] in CUT_OUT:
            return self._neighbours(axes[0])
        for axis in axes or ("",):
            if axis not in AXES:
                raise LayoutError(unknown("axis", axis, (*AXES, *CUT_OUT)))
        fixed = [axis for axis in AXES if axis not in axes]
        of = [[self.rank(**there, **here) for here in self._places(axes)] for there in self._places(fixed)]
        return [tuple(sorted(ranks)) for ranks in of]

    def mirrored(self, *axes: str) -> list[tuple[int, ...]]:
        """``groups`` of ``axes`` (dp and cp), each with that at the mirrored place of its pipelines: where these run both
        ways, ranks that hold the same weights."""
        mirror = {rank: line[-1 - i] for line in self.groups("pp") for i, rank in enumerate(line)}
        mirrored = self.groups(*(axes or ("dp", "cp")))
        pairs = [{*group, *(mirror[rank] for rank in group)} for group in mirrored]
        return [tuple(sorted(pair)) for i, pair in enumerate(pairs) if pair not in pairs[:i]]

    def _places(self, axes: list[str] | tuple[str, ...]) -> list[dict[str, int]]:
        """Every combination of indices along ``axes``, the fastest axis first to change."""
        order = [axis for axis in reversed(AXES) if axis in axes]
        ranges = (range(getattr(self, axis)) for axis in order)
        return [dict(zip(order, indices, strict=True)) for indices in itertools.product(*ranges)]

    def _neighbours(self, axis: str) -> list[tuple[int, ...]]:
        """Neighbours in dp × cp groups, or (edp, replicate) the ranks at one place among theirs."""
        groups, size = [], self.ep if axis in ("ep", "edp") else self.shards
        for ranks in self.groups("dp", "cp", *["tp"] * (self.etp * (axis in ("ep", "edp")))):
            if axis in ("ep", "shard"):
                groups += [ranks[start : start + size] for start in range(0, len(ranks), size)]
            else:
                groups += [ranks[start::size] for start in range(size)]
        return groups

    def check(self, shape: ModelShape, cluster: Cluster | None = None, seq: int | None = None) -> None:
        """Raise one :class:`LayoutError` if this layout cannot train ``shape``: every technique is asked in turn.

        ``cluster`` limits the ranks if it has a number of GPUs. With ``seq``, the tokens per sample, a step is checked as
        well: its samples, and its ``grad_acc`` micro-batches. The sentence names the field, its value and what would be
        valid. A pipeline's own schedule that cannot be carried out raises ScheduleError.
        """
        models.check_tensor(shape, self)
        stages.check(shape, self)
        models.check_experts(shape, self, seq)
        tokens.check(shape, self, seq)
        if self.method:
            self.method.check(self)
        if seq is not None:
            stages.check_microbatches(self, self.grad_acc)
        if cluster is not None and cluster.gpus is not None and self.world_size > cluster.gpus:
            raise LayoutError(
                f"dp * cp * tp * pp must be at most the {cluster.gpus} GPUs of {cluster.name}, "
                f"got {self.world_size}"
            )


#: Fields that the text of a layout has, and what they are: all that are no option of a technique.
_TEXT = itertools.takewhile(lambda f: f.name != "context", dataclasses.fields(Layout))
FIELDS = {f.name: str(f.type) for f in _TEXT}


def _value(key: str, text: str | None) -> int | bool | str:
    """The value of one ``key=text`` of a layout; ``text`` is None where the key stands alone."""
    kind = FIELDS[key]
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
