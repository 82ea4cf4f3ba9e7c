"""Who has what: the shapes of a block on one rank, and what crosses its borders, read off a live model.

    table = launch.run(live_shapes, "tiny", "tp=2,sp", ranks=2)[0].value   # shape_table(engine, mesh) in a rank
    table                                                                  # a table on a page, text in a terminal

Nothing here knows what tensor, sequence or context parallelism do. Hooks on the modules note what goes in and comes
out in a real forward pass; the same model on one device, run on no data, says what would be whole; and every collective
is put down to the module whose forward or backward pass started it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from playbook.errors import ConfigError
from playbook.figures.tables import Table, table
from playbook.figures.units import format_bytes
from playbook.instruments.counting import CollectiveEvent, CountBytes, traffic_groups
from playbook.launch.group import process_group
from playbook.layout import Layout
from playbook.model.transformer import Transformer
from playbook.parallel.engine import Engine
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.shapes import ModelShape, load
from playbook.training.data import own_tokens
from playbook.training.optimizer import adamw
from playbook_book.instruments.watch import AFTER, Size, Spot, Watch

#: Each region, in the order of the forward pass, and what its dims mean: going in, coming out. Sizes are measured.
REGIONS = {
    "embedding": ("b s", "b s h"),
    "norm 1": ("b s h", "b s h"),
    "q": ("b s h", "b s a·d"),
    "k": ("b s h", "b s g·d"),
    "v": ("b s h", "b s g·d"),
    "attention core": ("b a s d", "b a s d"),
    "out": ("b s a·d", "b s h"),
    "residual 1": ("b s h", "b s h"),
    "norm 2": ("b s h", "b s h"),
    "gate": ("b s h", "b s ffn"),
    "up": ("b s h", "b s ffn"),
    "down": ("b s ffn", "b s h"),
    "residual 2": ("b s h", "b s h"),
    "final norm": ("b s h", "b s h"),
    "head": ("b s h", "b s v"),
    "loss": ("b·s v", ""),
}
#: Regions that are no part of a block.
AROUND = ("embedding", "final norm", "head", "loss")
#: What ranks share where such a dim is smaller than on one device.
SHARED = {
    "s": "tokens", "b·s": "tokens", "a": "heads", "a·d": "heads", "g·d": "heads", "ffn": "columns",
    "v": "vocabulary",
}  # fmt: skip


@dataclass(frozen=True)
class Side:
    """What goes into a region, or comes out: its shape on this rank and on one device, and what its dims mean."""

    local: Size
    whole: Size
    dims: tuple[str, ...]

    @property
    def parts(self) -> dict[str, int]:
        """Into how many parts each dim is cut, by its name; parts that are padded to be alike count as such."""
        sizes = zip(self.dims, self.local, self.whole, strict=True)
        return {name: round(whole / local) for name, local, whole in sizes}

    @property
    def shared(self) -> tuple[str, ...]:
        """What a rank has some of: tokens, heads, columns (of the MLP), vocabulary; empty where it has everything."""
        return tuple(SHARED.get(name, name) for name, parts in self.parts.items() if parts > 1)

    def __str__(self) -> str:
        """With letters, such as (b, s/2, h)."""
        return f"({', '.join(n if parts == 1 else f'{n}/{parts}' for n, parts in self.parts.items())})"


@dataclass(frozen=True)
class Row:
    """A region of the model on this rank, and the messages that its forward and its backward pass start."""

    region: str
    into: Side
    out: Side
    weight: Size | None  # on this rank
    forward: tuple[CollectiveEvent, ...] = ()
    backward: tuple[CollectiveEvent, ...] = ()

    @property
    def border(self) -> str:
        """What the residual stream crosses here: f or g into a tensor-parallel region, f* or g* out of it, or nothing."""
        ahead, back = ([e for e in events if e.group == "tp"] for events in (self.forward, self.backward))
        if not (ahead or back) or not self.out.dims:
            return ""
        before, after = self.into.parts.get("s"), self.out.parts.get("s")
        if before != after:
            return "g" if before and after and before > after else "g*"
        return "f*" if ahead and not back else "f" if back and not ahead else "?"

    def sent(self, axis: str | None = None) -> int:
        """Bytes that this rank sends here in both passes, as a ring would, all of them or those along one axis."""
        return sum(e.sent for e in (*self.forward, *self.backward) if axis in (None, e.group))


@dataclass(frozen=True)
class ShapeTable:
    """The rows of one block and of what is around the blocks; ``after`` are messages when backward is over.

    ``others`` are the rows of the other blocks, which a table does not show.
    """

    layout: str
    rows: tuple[Row, ...]
    after: tuple[CollectiveEvent, ...] = ()
    others: tuple[Row, ...] = field(default=(), repr=False)

    def __getitem__(self, region: str) -> Row:
        return next(row for row in self.rows if row.region == region)

    @property
    def block(self) -> tuple[Row, ...]:
        """The rows that belong to the block: not the embedding, nor what comes after the last block."""
        return tuple(row for row in self.rows if row.region not in AROUND)

    def table(self, numbers: bool = False, sent: bool = False) -> Table:
        """Letters or, with ``numbers``, elements; ``sent`` adds the bytes that this rank sends."""
        written = partial(_messages, sent=sent)
        lines = []
        for row in self.rows:
            sides = [
                str(side.local if numbers else side) if side.dims else "the loss"
                for side in (row.into, row.out)
            ]
            who = ", ".join(sorted(row.out.shared, reverse=True)) or "not cut"
            who = who if row.out.dims else ""
            lines.append([row.region, *sides, who, row.border, written(row.forward), written(row.backward)])
        if self.after:
            lines.append(["replicated weights", "", "", "", "", "", f"then {written(self.after)}"])
        return table(["region", "goes in", "comes out", "cut by", "border", "forward", "backward"], lines)

    def _repr_html_(self) -> str:
        text = self.table()._repr_html_()
        for kind in ("all-gather", "all-reduce", "all-to-all", "reduce-scatter"):
            text = text.replace(kind, kind.replace("-", "&#8209;"))  # a hyphen at which no line ends
        return text

    def __repr__(self) -> str:
        return f"{self.layout or 'one device'}\n{self.table()}"


def _messages(events: tuple[CollectiveEvent, ...], sent: bool) -> str:
    """As in "2 × all-gather, 12 kB": a send and the receive that belongs to it count once."""
    found: dict[str, list[int]] = {}
    for event in events:
        if event.kind != "recv":
            found.setdefault(event.kind.replace("_", "-"), []).append(event.sent)
    return " + ".join(
        (f"{len(sizes)} × " if len(sizes) > 1 else "")
        + kind
        + (f", {format_bytes(sum(sizes))}" if sent else "")
        for kind, sizes in found.items()
    )


def live_shapes(
    shape: ModelShape | str | dict,
    layout: Layout | str = "",
    *,
    batch: int = 2,
    seq: int = 32,
    **options: Any,
) -> ShapeTable:
    """In a rank: the table of a new model of ``shape`` under ``layout``; ``options`` are fields of it.

    Raises LayoutError for a layout that does not fit the shape or the number of ranks.
    """
    layout = (Layout.parse(layout) if isinstance(layout, str) else layout).replace(**options)
    shape = load(shape)
    layout.check(shape, seq=layout.padded(seq))
    make = partial(adamw, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    with process_group():
        mesh = Mesh(layout)
        engine = parallelize(Transformer(shape, device=mesh.device), mesh, make)
        return shape_table(engine, batch=batch, seq=seq, placement=layout.token_placement)


def shape_table(engine: Engine, *, batch: int = 2, seq: int = 32, placement: str = "zigzag") -> ShapeTable:
    """The table of a live engine, from a forward and a backward pass over ``batch`` random samples of ``seq`` tokens.

    A collective; gradients are zero afterwards. Raises ConfigError for a model that recomputes, as its modules run twice.
    """
    model: Any = engine.model
    mesh = engine.mesh
    assert mesh is not None
    if model.recompute != "none":
        raise ConfigError(
            f"recompute is {model.recompute!r}, but a table of shapes needs a model that runs once: 'none'"
        )
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.shape.vocab, (batch, seq), generator=generator).to(mesh.device)
    x, y, positions = own_tokens(tokens, tokens.clone(), mesh, placement)
    count = CountBytes(traffic_groups(engine))
    engine.zero_grad()
    with Watch(model, count) as watch, count:
        loss, _ = model.loss(x, y, positions)
        loss.backward()
        watch.at(AFTER, "backward")
        engine.finish()
    engine.zero_grad()
    whole = _on_one_device(model.shape, batch, mesh.layout.padded(seq))
    return _rows(str(mesh.layout), watch, whole)


def _on_one_device(shape: ModelShape, batch: int, seq: int) -> dict[Spot, tuple[Size, Size]]:
    """The shapes of a model that nobody cut, run without data."""
    if shape.max_seq < seq:
        shape = shape.replace(max_seq=seq)
    model = Transformer(shape, device="meta")
    tokens = torch.zeros(batch, seq, dtype=torch.int64, device="meta")
    with torch.no_grad(), Watch(model, CountBytes()) as watch:
        model.loss(tokens, tokens)
    return watch.sizes


def _rows(layout: str, watch: Watch, whole: dict[Spot, tuple[Size, Size]]) -> ShapeTable:
    def row(place: Spot) -> Row:
        region = place[1]
        into, out = (
            Side(local, of, tuple(names.split()))
            for local, of, names in zip(watch.sizes[place], whole[place], REGIONS[region], strict=True)
        )
        ahead, back = (tuple(watch.events.get((place, phase), ())) for phase in ("forward", "backward"))
        return Row(region, into, out, watch.weights.get(place), ahead, back)

    found = sorted(watch.sizes, key=lambda place: list(REGIONS).index(place[1]))
    shown = [place for place in found if place[0] in (None, 0)]
    others = tuple(row(place) for place in found if place not in shown)
    after = tuple(watch.events.get((AFTER, "backward"), ()))
    return ShapeTable(layout, tuple(map(row, shown)), after, others)
