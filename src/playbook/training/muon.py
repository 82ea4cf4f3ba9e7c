"""Muon for the matrices of blocks, AdamW for all else, on one device and on many ranks.

Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) keeps one moment, and steps by a matrix with the same
singular vectors whose singular values are all near 1: all directions are learnt as fast. Steps are scaled by
0.2·√max(rows, columns), so that their root mean square is AdamW's, and its learning rate and decay hold (Liu et al.
2025, arXiv 2502.16982, section 2.2). AdamW works element by element, and never minds where a shard begins; here a matrix
must be whole. How ranks make it so is in `planning/muon.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from playbook.layout import Layout
from playbook.model.linear import linear_layers
from playbook.parallel.engine import Engine
from playbook.parallel.mesh import Mesh
from playbook.parallel.placement import LocalShard, Placement, Shard, assemble
from playbook.parallel.replicas import Leaf, ReplicaSet, is_matrix
from playbook.planning import muon as plan
from playbook.training.optimizer import MasterAdamW

#: Parts of matrices by (matrix, part).
_Parts: TypeAlias = dict[tuple[int, int], Tensor]
#: What goes to a rank, or comes from one, of a matrix: (rank, matrix).
_To: TypeAlias = tuple[int, int]
#: How much of the moment stays, and the coefficients of an iteration, in which small singular values grow fastest.
MOMENTUM, COEFFICIENTS = 0.95, (3.4445, -4.7750, 2.0315)


def orthogonal(x: Tensor) -> Tensor:
    """Newton-Schulz: X (…, m, n) of singular values s becomes one of values near 1, with the same singular vectors.

    Each iteration is X ← aX + (bA + cA²)X with A = XXᵀ, so that s ← as + bs³ + cs⁵; after five of them what was above
    0.2 % of the norm lies between 0.68 and 1.2.
    """
    a, b, c = COEFFICIENTS
    added = torch.addmm if x.dim() == 2 else torch.baddbmm
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(plan.STEPS):
        gram = x @ x.mT
        x = added(x, added(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(MasterAdamW):
    """AdamW for the parameters of ``groups``; for ``leaves``, which ``matrices`` makes whole, Muon with ``ratio`` times
    its learning rate. Moments are in fp32, masters as `MasterAdamW` keeps them."""

    def __init__(
        self, leaves: Sequence[Leaf], groups: list[dict], matrices: Matrices, *, lr: float, ratio: float = 1.0,
        weight_decay: float, **options: Any,
    ):  # fmt: skip
        own: dict[str, Any] = {"params": [leaf.tensor for leaf in leaves], "weight_decay": weight_decay}
        super().__init__([group for group in (own, *groups) if group["params"]], lr, **options)
        mine = set(own["params"])
        self.chunks = [(group, chunk) for group, chunk in self.chunks if chunk[0] not in mine]
        self.group, self.matrices, self.ratio = self.param_groups[0], matrices, ratio
        self.exchange = matrices.group

    @torch.no_grad()
    def step(self, closure=None):
        """AdamW's part; then matrix by matrix the moment, what is made of it, and the update."""
        loss = super().step(closure)
        self.matrices.orthogonalize(self._moment, self._move)
        return loss

    def _moment(self, leaf: Leaf) -> Tensor:
        """What is to be made orthogonal, of this rank's part: the moment, with a look ahead (Nesterov); in fp32."""
        p, gradient = leaf.tensor, leaf.tensor.grad
        if gradient is None:  # nobody has one
            return torch.zeros(p.shape, device=p.device)
        if "step" not in self.state[p]:
            self.state[p] |= {"exp_avg": torch.zeros(p.shape, device=p.device), "step": torch.zeros(())}
        gradient = gradient.float() / self.loss_scale if self.loss_scale != 1 else gradient.float()
        self.state[p]["step"] += 1
        return gradient.lerp(self.state[p]["exp_avg"].lerp_(gradient, 1 - MOMENTUM), MOMENTUM)

    def _move(self, leaf: Leaf, update: Tensor, longest: int) -> None:
        if leaf.tensor.grad is None:
            return
        x, lr = self.state[leaf.tensor].get("master", leaf.tensor), self.group["lr"] * self.ratio
        x.mul_(1 - lr * self.group["weight_decay"])
        x.add_(update.view(x.shape), alpha=-lr * 0.2 * longest**0.5)
        if x is not leaf.tensor:
            leaf.tensor.copy_(x)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """States alone: what groups are told is not a checkpoint's."""
        groups = [{"params": group["params"]} for group in state_dict["param_groups"]]
        super().load_state_dict({"state": state_dict["state"], "param_groups": groups})


@dataclass(frozen=True)
class Piece:
    """A part of a matrix, as ranks tell each other: elements from ``start`` on of a slice of this ``shape``."""

    name: str
    shards: tuple[Shard, ...]
    shape: tuple[int, ...]
    start: int
    elements: int

    @property
    def placement(self) -> Placement:
        return Placement(self.name, self.shards)

    def of(self, whole: Tensor) -> Tensor:
        """This part of a whole."""
        return self.placement.of(whole).reshape(-1)[self.start : self.start + self.elements]


class Matrices:
    """Matrices of which this rank has the ``leaves``, ranks of ``group`` other parts; in the order of ``names``."""

    def __init__(
        self, leaves: Sequence[Leaf], names: Sequence[str], placements: Mapping[str, Placement],
        group: dist.ProcessGroup | None, way: str, empty: Tensor,
    ):  # fmt: skip
        self.group, self.way, self.empty = group, way, empty
        self.rank, self.ranks = (group.rank(), group.size()) if group else (0, 1)
        # Ranks of ep have other matrices, not other parts of the same.
        mine = {}
        for leaf in leaves:
            of = placements[leaf.name]
            shards = tuple(shard for shard in of.shards if shard.axis != "ep")
            piece = Piece(of.name, shards, tuple(leaf.parameter.shape), leaf.start, leaf.tensor.numel())
            mine[piece] = leaf
        every: list[Any] = [list(mine)]
        if group:
            every = [None] * self.ranks
            dist.all_gather_object(every, list(mine), group)
        holders: dict[str, dict[Piece, list[int]]] = {placements[name].name: {} for name in names}
        for rank, pieces in enumerate(every):
            for piece in pieces:
                holders[piece.name].setdefault(piece, []).append(rank)
        self.pieces = [list(found) for found in holders.values()]
        self.leaves = [[mine.get(piece) for piece in found] for found in self.pieces]
        self.plan = []
        for found in holders.values():
            first = next(iter(found))
            shape = (1, *first.placement.whole_shape(first.shape))[-3:]
            parts = tuple(plan.Part(piece.elements, tuple(ranks)) for piece, ranks in found.items())
            self.plan.append(plan.Matrix(shape[0], shape[1], shape[2], parts))

    def orthogonalize(
        self, moment: Callable[[Leaf], Tensor], move: Callable[[Leaf, Tensor, int], None]
    ) -> None:
        """Have each leaf ``move`` by its part of what all parts of its ``moment`` become together."""
        for together in plan.rounds(self.plan, self.ranks, self.way):
            self._round({i: self.plan[i].makers(self.way, owner) for i, owner in together}, moment, move)

    def _round(self, makers: Mapping[int, tuple[int, ...]], moment: Any, move: Any) -> None:
        """Matrices that are under way at once, each with those who make it whole."""
        parts = {
            (i, k): moment(leaf).to(self.empty.dtype).reshape(-1)
            for i in makers
            for k, leaf in enumerate(self.leaves[i])
            if leaf is not None
        }
        for (i, k), part in self._orthogonal(parts, makers).items():
            if leaf := self.leaves[i][k]:
                move(leaf, part, max(self.plan[i].rows, self.plan[i].columns))

    def _orthogonal(self, parts: _Parts, makers: Mapping[int, tuple[int, ...]]) -> _Parts:
        """Of matrices that are under way at once, this rank's parts, and what these become."""
        parts |= self._exchange(parts, [(i, *to) for i in makers for to in self.plan[i].there(makers[i])])
        made = {i: self._made(i, parts) for i in makers if self.rank in makers[i]}
        found = {
            (i, k): piece.of(made[i])
            for i in made
            for k, piece in enumerate(self.pieces[i])
            if self.leaves[i][k] or len(makers[i]) == 1
        }
        back = [(i, *to) for i in makers for to in self.plan[i].back(makers[i])]
        return found | self._exchange(found, back)

    def _made(self, i: int, parts: _Parts) -> Tensor:
        """A matrix, or a stack of them, made of its parts, and orthogonal."""
        shards = [
            LocalShard("", piece.placement, piece.shape, piece.start, parts[i, k])
            for k, piece in enumerate(self.pieces[i])
        ]
        (whole,) = assemble(shards).values()
        return orthogonal(whole)

    def _exchange(self, parts: _Parts, moves: Sequence[tuple[int, int, int, int]]) -> _Parts:
        """Send parts where they go, (matrix, part, from, to); the parts that come."""
        if self.group is None or not moves:
            return {}
        sends, comes = defaultdict[Any, list](list), defaultdict[Any, list](list)
        for i, k, source, to in moves:
            if source == self.rank:
                sends[to, i].append(parts[i, k])
            if to == self.rank:
                comes[source, i].append((i, k))
        sizes = {key: [self.pieces[i][k].elements for i, k in comes[key]] for key in sorted(comes)}
        carried = self._one_by_one if self.way == "owner" else self._together
        got = carried({key: sends[key] for key in sorted(sends)}, {key: sum(n) for key, n in sizes.items()})
        return {k: p for key in got for k, p in zip(comes[key], got[key].split(sizes[key]), strict=True)}

    def _one_by_one(self, there: Mapping[_To, list[Tensor]], sizes: Mapping[_To, int]) -> dict[_To, Tensor]:
        """A message for each rank and matrix, all under way at once."""
        ranks, group = dist.get_process_group_ranks(self.group), self.group
        here = {key: self.empty.new_empty(size) for key, size in sizes.items()}
        works = [dist.P2POp(dist.isend, torch.cat(t), ranks[to], group) for (to, _), t in there.items()]
        works += [dist.P2POp(dist.irecv, t, ranks[source], group) for (source, _), t in here.items()]
        for work in dist.batch_isend_irecv(works) if works else ():
            work.wait()
        return here

    def _together(self, there: Mapping[_To, list[Tensor]], sizes: Mapping[_To, int]) -> dict[_To, Tensor]:
        """All of them in one collective."""
        sent, got = ([0] * self.ranks for _ in range(2))
        for (rank, _), some in there.items():
            sent[rank] += sum(map(len, some))
        for (rank, _), size in sizes.items():
            got[rank] += size
        landing = self.empty.new_empty(sum(got))
        whole = torch.cat([self.empty, *(t for some in there.values() for t in some)])
        dist.all_to_all_single(landing, whole, got, sent, group=self.group)
        return dict(zip(sizes, landing.split([*sizes.values()]), strict=True))


def of_run(engine: Engine, config: Any, **options: Any) -> None:
    """`use_muon` as a `TrainConfig` says; ``options`` are those of its AdamW."""
    ratio = 1.0 if config.muon_lr is None else config.muon_lr / config.lr
    use_muon(engine, dtype=getattr(torch, config.dtype), ratio=ratio, **options)


def use_muon(
    engine: Engine, *, lr: float, dtype: torch.dtype = torch.float32, ratio: float = 1.0, weight_decay: float = 0.1,
    kernel: Any = None, **options: Any,
) -> None:  # fmt: skip
    """Have an engine update the matrices of blocks by Muon, computed in ``dtype``, with ``ratio`` times the learning
    rate; ``options`` are those of `MasterAdamW`, for the rest. A collective."""
    layout = engine.mesh.layout if engine.mesh else Layout()
    hidden = {id(layer.weight) for layer in linear_layers(engine.model.blocks)}
    groups = _groups(engine)
    for one in _learning(engine):
        learning = [leaf for leaf in one.leaves if leaf.parameter.requires_grad]
        leaves = [leaf for leaf in learning if id(leaf.parameter) in hidden]
        others = [leaf for leaf in learning if id(leaf.parameter) not in hidden]
        rest: list[dict[str, Any]] = []
        for decays, decay in ((True, weight_decay), (False, 0.0)):
            params = [leaf.tensor for leaf in others if is_matrix(leaf.parameter) is decays]
            rest.append({"params": params, "weight_decay": decay})
        if not learning:  # a rank beyond the last parameter
            rest[0]["params"].append(one.parameters[0][1].new_zeros(0).requires_grad_())
        names = [name for name, p in one.parameters if id(p) in hidden]
        group = groups[_apart(engine, one)]
        empty = torch.empty(0, dtype=dtype, device=one.parameters[0][1].device)
        matrices = Matrices(leaves, names, engine.placements, group, layout.muon, empty)
        fused = bool(one.parameters[0][1].is_cuda and not kernel) or None
        given = {"lr": lr, "ratio": ratio, "weight_decay": weight_decay, "kernel": kernel, "fused": fused}
        one.optimizer = Muon(leaves, rest, matrices, **given, **options)


def _learning(engine: Engine) -> list[ReplicaSet]:
    return [one for one in engine.sets if any(p.requires_grad for _, p in one.parameters)]


def _apart(engine: Engine, one: ReplicaSet) -> bool:
    """Whether a set's matrices are experts of which other ranks have others."""
    return any(shard.axis == "ep" for shard in engine.placements[one.parameters[0][0]].shards)


def _groups(engine: Engine) -> dict[bool, dist.ProcessGroup | None]:
    """The ranks that have parts of the same matrices, of experts apart (True) and of all else. A collective."""
    found: dict[bool, dist.ProcessGroup | None] = {False: None, True: None}
    if (mesh := engine.mesh) is None:
        return found
    for apart in found:
        mine = [_ranks(mesh, one, apart) for one in _learning(engine) if _apart(engine, one) is apart]
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, mine[0] if mine else ())
        found[apart] = mesh.subgroup(sorted({ranks for ranks in every if len(ranks) > 1}))
    return found


def _ranks(mesh: Mesh, one: Any, apart: bool) -> tuple[int, ...]:
    same = [mesh.rank]
    if one.shared:
        same = dist.get_process_group_ranks(one.store.group)
    elif mesh.layout.muon != "gather" and one.group:
        same = dist.get_process_group_ranks(one.group)
    if apart and mesh.layout.etp:
        return tuple(sorted(same))
    lines = {rank: line for line in mesh.layout.groups("tp") for rank in line}
    return tuple(sorted({rank for one in same for rank in lines[one]}))
