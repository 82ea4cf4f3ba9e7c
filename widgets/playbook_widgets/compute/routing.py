"""The routing widget: one pure function from what a reader sets to where the tokens of a mixture of experts go.

``compute`` runs in a kernel and, as the same file, in the reader's browser. Inputs are a flat mapping that holds only
what differs from ``DEFAULTS``, so that it fits into a link: ``{"remedy": "bias", "experts": 64, "skew": 1.5}``. Each rank
has one sample; tokens choose by the library's rule (``routing_rule``), replicas of hot experts are placed by
``planning.expert_placement``. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from playbook._checks import check_divides, typed_int, unknown
from playbook.errors import ConfigError, ShapeError
from playbook.planning.expert_placement import ExpertPlacement, in_order
from playbook.shapes import MoE
from playbook_widgets.compute.refusals import answered
from playbook_widgets.compute.routing_rows import Placement, Rows, placed, travel
from playbook_widgets.compute.routing_rule import Scores, choose, draw_scores, keep, load_of, room, updated
from playbook_widgets.compute.routing_words import answer, code, command, waiting

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
#: Updates of the biases that are gone through.
UPDATES = 16
#: Bands that a picture shows at most; where there would be more, a rank's experts are taken together.
BANDS = 600


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


def compute(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`describe` says of the setting, or ``{"error": {"field", "message"}}``: the control to change."""
    return answered(lambda: describe(read(inputs)))


# --- What a reader has set


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


# --- What the page draws


def describe(setting: RoutingSetting) -> dict[str, Any]:
    """All that the page shows of a setting: one layer, one dispatch; rows, and bytes of all ranks together."""
    sizes, ranks = setting.sizes, setting.ranks
    pictures = _pictures(setting)
    return {
        "values": _values(setting),
        "nodes": setting.nodes,
        "choices": ranks * setting.tokens * sizes.top_k,
        "room": room(sizes, setting.tokens),
        "row_bytes": setting.row_bytes,
        "coarse": ranks * sum(map(len, pictures[0]["experts"])) > BANDS,
        "pictures": pictures,
        "command": command(setting),
    }


def _values(setting: RoutingSetting) -> dict[str, Any]:
    """What every control shows, with what follows from others filled in."""
    sizes = setting.sizes
    return {
        **{
            name: getattr(sizes, name) for name in ("experts", "top_k", "capacity", "top_groups", "bias_rate")
        },
        **{
            name: getattr(setting, name)
            for name in ("remedy", "ranks", "node", "tokens", "skew", "spare", "hidden", "itemsize", "seed")
        },
    }


def _pictures(setting: RoutingSetting) -> list[dict[str, Any]]:
    """How it stands; with biases, before the first update and after each, the same tokens routed again."""
    sizes, scores = setting.sizes, setting.scores()
    bias, found = [0.0] * sizes.experts, list[dict[str, Any]]()
    for number in range(UPDATES + 1 if setting.remedy == "bias" else 1):
        chosen = choose(scores, bias, sizes)
        kept, wanted = keep(chosen, scores, sizes), load_of(chosen, sizes.experts)
        loads = wanted if kept is chosen else load_of(kept, sizes.experts)
        rows = travel(chosen, kept, setting.placed(loads), loads, setting.node)
        found.append(_picture(setting, rows, loads, bias))
        found[-1]["answer"] = answer(setting, found, number)
        bias = updated(bias, wanted, sizes.bias_rate)
    return found


def _picture(setting: RoutingSetting, rows: Rows, loads: list[int], bias: list[float]) -> dict[str, Any]:
    """What is drawn of one moment."""
    coarse = setting.ranks * sum(map(len, rows.placement)) > BANDS
    return {
        "experts": [list(own) for own in rows.placement],
        "loads": loads,
        "bias": [round(b, 6) for b in bias],
        "bands": [rows.by_rank(row) for row in rows.sent] if coarse else rows.sent,
        "slots": rows.slots,
        "missed": rows.by_rank(rows.missed),
        "dropped": rows.dropped,
        "ranks": rows.ranks,
        "imbalance": rows.imbalance,
        "imbalance_in_order": in_order(loads, setting.ranks).imbalance,
        "waiting": waiting(rows.ranks),
        "busiest_expert": max(loads) * len(loads) / sum(loads),
        "capacity": _capacity(setting, loads, rows.placement),
        "plain": [count * setting.row_bytes for count in rows.plain],
        "two_steps": [count * setting.row_bytes for count in rows.two_steps],
        "code": code(setting, loads),
    }


def _capacity(setting: RoutingSetting, loads: list[int], placement: Placement) -> list[float] | None:
    """Rows that each rank has at most; None where nothing is dropped."""
    most = room(setting.sizes, setting.tokens)
    if most is None:
        return None
    replicas = ExpertPlacement(tuple(loads), placement).counts
    return [sum(most * setting.ranks / replicas[e] for e in experts) for experts in placement]
