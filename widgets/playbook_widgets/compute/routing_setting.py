"""What a reader of the routing widget sets: experts, ranks and nodes, what is routed, and the remedy for uneven loads.

Inputs are a flat mapping that holds only what differs from ``DEFAULTS``, so that it fits into a link:
``{"remedy": "bias", "experts": 64, "skew": 1.5}``. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from playbook._checks import check_divides, typed_int, unknown
from playbook.errors import ConfigError, ShapeError
from playbook.shapes import MoE
from playbook_widgets.compute.routing_rows import Placement, placed
from playbook_widgets.compute.routing_rule import Scores, draw_scores

#: What a control shows when nothing is set: a row is one of DeepSeek-V3's, in bf16.
DEFAULTS: dict[str, Any] = {
    "remedy": "none",
    "experts": 16,
    "top_k": 2,
    "ranks": 8,
    "node": 4,
    "tokens": 64,
    "skew": 1,
    "capacity": None,  # dropless
    "top_groups": None,  # as many as there are nodes
    "bias_rate": 0.01,
    "spare": 1,
    "hidden": 7168,
    "itemsize": 2,
    "seed": 0,
    "step": 0,  # where the reader is, of the updates
}
REMEDIES = ("none", "bias", "replicas")
EXPERTS, TOP_K, RANKS, NODE = (2, 256), (1, 16), (1, 32), (1, 32)
TOKENS, SPARE, HIDDEN, SEED = (1, 1024), (0, 16), (1, 65_536), (0, 9999)
SKEW, BIAS_RATE = (0, 3), (0.0001, 1)
CAPACITIES = (0.5, 0.75, 1, 1.1, 1.25, 1.5, 2, 3, 4)
ITEMSIZES = (1, 2, 4)
#: Scores that are drawn at most: beyond them a reader would wait.
SCORES = 2**17


@dataclass(frozen=True)
class RoutingSetting:
    """What a flat mapping of controls comes to: groups of experts are ``node`` ranks', ``spare`` slots are a rank's."""

    sizes: MoE
    remedy: str
    ranks: int
    node: int
    tokens: int
    skew: float
    spare: int
    hidden: int
    itemsize: int
    seed: int

    @property
    def nodes(self) -> int:
        return self.ranks // self.node

    @property
    def limited(self) -> bool:
        """Whether tokens choose nodes before they choose experts."""
        return self.sizes.top_groups < self.sizes.groups

    @property
    def parts(self) -> int:
        """In how many parts replicas are placed: a limit on nodes means nothing once experts have left theirs."""
        return self.nodes if self.limited else 1

    @property
    def row_bytes(self) -> int:
        return self.hidden * self.itemsize

    def scores(self) -> Scores:
        """A sample for each rank."""
        return draw_scores(self.ranks, self.tokens, self.sizes.experts, self.skew, self.seed)

    def placed(self, loads: list[int]) -> Placement:
        """The experts of each rank, for rows as many as ``loads``."""
        return placed(loads, self.ranks, self.spare if self.remedy == "replicas" else None, self.parts)


def read(inputs: Mapping[str, Any]) -> RoutingSetting:
    """The setting that a flat mapping means; raises :class:`PlaybookError` in one sentence."""
    for key in inputs:
        if key not in DEFAULTS:
            raise ConfigError(f"{key} is not a setting of the routing widget")
    values = {**DEFAULTS, **{key: value for key, value in inputs.items() if value is not None}}
    if values["remedy"] not in REMEDIES:
        raise ConfigError(unknown("remedy", str(values["remedy"]), REMEDIES))
    _whole("step", values["step"], (0, 10_000))  # a reader's place; what is not there is the end
    experts, ranks = _whole("experts", values["experts"], EXPERTS), _whole("ranks", values["ranks"], RANKS)
    check_divides("ranks", ranks, "experts", experts, ConfigError)
    node = min(_whole("node", values["node"], NODE), ranks)
    check_divides("node", node, "ranks", ranks, ConfigError)
    setting = RoutingSetting(
        _sizes(values, experts, ranks // node),
        values["remedy"],
        ranks,
        node,
        _whole("tokens", values["tokens"], TOKENS),
        _number("skew", values["skew"], SKEW),
        _whole("spare", values["spare"], SPARE),
        _whole("hidden", values["hidden"], HIDDEN),
        _one_of("itemsize", values["itemsize"], ITEMSIZES, " bytes"),
        _whole("seed", values["seed"], SEED),
    )
    _check(setting)
    return setting


def _sizes(values: Mapping[str, Any], experts: int, nodes: int) -> MoE:
    """The router: a group of experts is those of a node."""
    capacity, limit = values["capacity"], values["top_groups"]
    top_k = _whole("top_k", values["top_k"], TOP_K)
    top_groups = nodes if limit is None else _whole("top_groups", limit, (1, nodes))
    try:
        return MoE(
            experts=experts,
            top_k=top_k,
            ffn=1,
            scores="sigmoid",
            groups=nodes,
            top_groups=top_groups,
            capacity=None
            if capacity in (None, "none")
            else _one_of("capacity", capacity, CAPACITIES, " or none"),
            bias_rate=_number("bias_rate", values["bias_rate"], BIAS_RATE),
        )
    except ShapeError as error:
        raise ConfigError(str(error).replace("moe.", "")) from None


def _check(setting: RoutingSetting) -> None:
    sizes, ranks = setting.sizes, setting.ranks
    most = SCORES // (sizes.experts * ranks)
    if setting.tokens > most:
        where = f"{sizes.experts} experts on {ranks} ranks"
        raise ConfigError(f"tokens must be at most {most} for {where}, got {setting.tokens}")
    if setting.remedy == "replicas":
        within = sizes.experts // setting.parts
        most = within - sizes.experts // ranks
        whose = "a node" if setting.parts > 1 else "the layer"
        if setting.spare > most:
            raise ConfigError(
                f"spare must be at most {most}: a rank then has all {within} experts of {whose}, got {setting.spare}"
            )


def _whole(name: str, value: Any, limits: tuple[int, int]) -> int:
    return typed_int(name, value, ConfigError, least=limits[0], most=limits[1])


def _number(name: str, value: Any, limits: tuple[float, float]) -> float:
    number = _typed(value)
    if (
        isinstance(number, bool)
        or not isinstance(number, int | float)
        or not limits[0] <= number <= limits[1]
    ):
        raise ConfigError(f"{name} must be a number from {limits[0]} to {limits[1]}, got {value!r}")
    return float(number)


def _one_of(name: str, value: Any, known: tuple[float, ...], after: str) -> Any:
    number = _typed(value)
    if isinstance(number, bool) or number not in known:
        raise ConfigError(
            f"{name} must be one of {', '.join(f'{one:g}' for one in known)}{after}, got {value!r}"
        )
    return number


def _typed(value: Any) -> Any:
    """A number where its text stands for one, as a reader types it."""
    if isinstance(value, str) and re.fullmatch(r"\s*\d{1,6}(\.\d{1,9})?\s*", value):
        return float(value)
    return value
