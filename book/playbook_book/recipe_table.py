"""The published recipes of training in 16 and 8 bits: what each keeps in which format, and the table of them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pkgutil import get_data

from playbook.planning.recipes import BytesPerParameter, bytes_of


@dataclass(frozen=True)
class StateFormats:
    """The format of each kind of tensor of which there is an element for every parameter; "" where there is none.

    ``accumulated`` are gradients added up over micro-batches beside those that a backward pass leaves, ``first`` and
    ``second`` Adam's moments. Scales, of which many numbers share one, are not counted.
    """

    master: str
    accumulated: str
    weights: str
    gradients: str
    first: str = "fp32"
    second: str = "fp32"

    @property
    def bytes(self) -> dict[str, int]:
        """Bytes per parameter of each kind that there is."""
        return {kind.name: size for kind in fields(self) if (size := bytes_of(getattr(self, kind.name)))}

    @property
    def states(self) -> BytesPerParameter:
        """The same as the planner adds them up."""
        return BytesPerParameter(
            parameters=bytes_of(self.weights),
            gradients=bytes_of(self.accumulated) + bytes_of(self.gradients),
            master=bytes_of(self.master),
            optimizer=bytes_of(self.first) + bytes_of(self.second),
        )

    @property
    def sum(self) -> str:
        """The sum as one writes it: 4 + 2 + 2 + 4 + 4 = 16."""
        return f"{' + '.join(map(str, self.bytes.values()))} = {self.states.total}"


@dataclass(frozen=True)
class Published:
    """A recipe of low-precision training: the format of its ``products``, and of what it keeps.

    ``printed`` is what the summary in Tazi et al. 2025, The Ultra-Scale Playbook, counts; ``kept`` what is in memory at
    the fullest moment if a gradient is freed as soon as it has been added to the accumulated ones, as Megatron-LM's main
    gradients are, after the recipe's own ``source``. ``run`` are fields of TrainConfig for a run of the trainer that
    comes near: its weights and, where it has none, its masters are the parameters, from which FP8 copies are made.
    """

    name: str
    products: str
    printed: StateFormats
    kept: StateFormats
    source: str
    run: Mapping[str, str] | None = None


def _published() -> Iterator[Published]:
    table = get_data(__package__, "published_recipes.toml") or b""
    for row in tomllib.loads(table.decode())["recipe"]:
        printed = StateFormats(*row["printed"])
        kept = replace(printed, **row.get("kept", {}))
        yield Published(row["name"], row["products"], printed, kept, row["source"], row.get("run"))


#: The six rows of the summary, in its order.
PUBLISHED = {one.name: one for one in _published()}


def published_rows() -> list[list[str]]:
    """The table of `PUBLISHED`: name, format of products, of each kind of tensor, both sums, and what the second saves.

    Savings are in percent of the first row as printed.
    """
    rows, most = [], next(iter(PUBLISHED.values())).printed.states.total
    for one in PUBLISHED.values():
        formats = [getattr(one.printed, kind.name).upper() or "–" for kind in fields(StateFormats)]
        saved = [f"{1 - form.states.total / most:.0%}" for form in (one.printed, one.kept)]
        sums = [text for pair in zip((one.printed.sum, one.kept.sum), saved, strict=True) for text in pair]
        rows.append([one.name, one.products.upper(), *formats, *sums])
    return rows
