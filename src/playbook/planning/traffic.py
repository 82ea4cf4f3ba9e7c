"""Everything that one rank sends in an optimizer step, message by message: to the byte what a run counts.

A technique is a function here: what tensor, context and pipeline parallelism send for each micro-batch; what replicas
send of gradients and parameters; what is settled once, in a few bytes. The files under ``parallel/`` that send the
messages name the papers. Standard library only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import pairwise

from playbook.errors import ConfigError
from playbook.layout import AXES, Layout
from playbook.layout.flat import Bucket
from playbook.planning.expert_traffic import Routing, experts
from playbook.planning.flops import parts_again
from playbook.planning.gathers import gathers, reductions
from playbook.planning.job import Job
from playbook.planning.messages import FP32, INT64, Message, Sender, WeightSet, message_in
from playbook.planning.recipes import Recipe
from playbook.planning.weights import WeightSlot, WeightUnit, crossings, keeps_inputs, partial_sums
from playbook.registry import lab
from playbook.shapes import ModelShape

#: Numbers (int64) of the header with which a pipeline announces the shape of its messages.
HEADER = 8


def traffic(
    shape: ModelShape,
    layout: Layout,
    seq: int,
    *,
    rank: int = 0,
    recipe: str | Recipe = "bf16-mixed",
    optimizer: str = "adamw",
    first: bool = False,
    routing: Routing | None = None,
) -> list[Message]:
    """What ``rank`` sends in one step of ``layout.grad_acc`` micro-batches of ``seq`` tokens a sample.

    Collectives go around rings. ``recipe`` says how many bytes elements have; with ``first`` it is the first step of a
    run, in which ranks also tell each other shapes and which parameters get gradients. ``routing`` is what routers
    decided in the step, as `ExpertRoutes` counts it; without it the load of experts is even, in whole rows
    (``expert_traffic.even``). Raises LayoutError or ShapeError for what cannot run and ConfigError for a routing of
    another rank or step, in one sentence.
    """
    job = Job(shape, layout, seq=seq, recipe=recipe, optimizer=optimizer)  # type: ignore[arg-type]
    job.check()
    if layout.method:
        raise ConfigError(
            f"data_parallel is {layout.data_parallel!r}, whose bytes are counted in runs, not predicted"
        )
    return sent(Sender(job, rank), first=first, routing=routing)


def sent(here: Sender, *, first: bool = False, routing: Routing | None = None) -> list[Message]:
    """What `traffic` gives, of a rank that has been checked."""
    some = lab("fp4", "tensor")(here) if here.job.wide else [here]  # of its blocks, by their precision
    terms: list[Iterable[Message]] = [
        *map(tensor, some), vocabulary(here), context(here), experts(here, routing), pipeline(here), replicas(here),
        sums(here), norm(here), loss(here),
    ]  # fmt: skip
    terms += [lab("fp8", "sent")(here, first)] if here.recipe.fp8 else []
    terms += [lab("muon", "sent")(here)] if here.job.optimizer == "muon" else []
    if first or here.layout.find_unused:
        terms.append(used_parameters(here))
    if first:
        terms.append(headers(here))
    return [message for term in terms for message in term if message.count and message.ranks > 1]


def by_axis(messages: Iterable[Message]) -> dict[str, int]:
    """Bytes sent, by axis: what ``Trainer.bytes_sent`` counts."""
    found: Counter[str] = Counter()
    for message in messages:
        found[message.axis] += message.total
    return dict(found)


def tensor(here: Sender) -> Iterator[Message]:
    """Into attention and the MLP of each block and out again: f and f*, or g and g* (``parallel/regions.py``).

    With sequence parallelism backward gathers what entered linear layers once more. Full recomputation repeats what
    forward sends. Layers that multiply in FP8 gather codes, and the scales that tokens have of their own.
    """
    if here.layout.tp == 1:
        return
    into, out = _widths(here, {"attention", "mlp", "shared experts"})
    again = _widths(here, parts_again(here.layout.again) - {"experts"}, again=True)
    # The key that heads of latent attention share enters by itself.
    latent = {kind: n for kind, (_, n) in here.kinds.items() if here.shape.mla and not kind.recurrent}
    key = here.shape.mla.rope_dim if here.shape.mla else 0
    beside = {key: sum(latent.values())} if key else {}
    for phase, (entering, leaving) in {"forward": (into, out), "backward": again}.items():
        yield from _entering(here, phase, entering)
        yield from _crossings(here, phase, {}, leaving)
        if phase == "forward" or "full" in here.layout.again:
            times = sum(n for kind, n in latent.items() if phase == "forward" or not kind.whole)
            yield from _crossings(here, phase, dict.fromkeys(beside, times), {}, plain=True)
    yield from _crossings(here, "backward", out, into)
    yield from _crossings(here, "backward", {}, beside, plain=True)
    kept = {part for part in ("attention", "mlp", "shared experts") if keeps_inputs(here.shape, part)}
    yield from _entering(here, "backward", _widths(here, kept)[0], again=True)


#: Features of each token that cross a border, and how often.
Widths = Mapping[int, int]


def _widths(here: Sender, parts: Set[str], again: bool = False) -> tuple[Counter[int], Counter[int]]:
    """What enters the regions of these parts of a rank's blocks, or of those computed ``again``, and what leaves them."""
    into, out = Counter[int](), Counter[int]()
    for kind, (_, count) in here.kinds.items():
        count *= not (again and kind.whole)
        for widths, crossing in zip((into, out), crossings(here.shape, kind, parts), strict=True):
            for width in crossing:
                widths[width] += count
    return into, out


def _crossings(here: Sender, phase: str, into: Widths, out: Widths, plain: bool = False) -> Iterator[Message]:
    """What goes ``into`` regions and ``out`` of them, or its gradient the other way; ``plain``: beside no product."""
    size, tp, sp = here.recipe.compute, here.layout.tp, here.layout.sp
    # Where the stream is whole on every rank, one of both is free.
    ways = [("all_gather", into), ("reduce_scatter", out)] if sp else [("all_reduce", out)]
    for collective, widths in ways:
        for width, count in widths.items():
            elements = here.tokens * width
            if here.layout.tensor_overlap == "chunked" and not plain:
                yield here.tp("send", elements // tp, size, phase, count * (tp - 1))
            else:
                yield here.tp(collective, elements, size, phase, count)


def _entering(here: Sender, phase: str, into: Widths, again: bool = False) -> Iterator[Message]:
    """What goes into regions, or does so ``again``: of a region's input a rank saves its own tokens."""
    fp8 = here.recipe.fp8
    if fp8 is None:
        yield from _fetched_again(here, into) if again else _crossings(here, phase, into, {})
        return
    for width, count in into.items() if here.layout.sp else ():
        yield here.tp("all_gather", int(here.tokens * width * fp8.element), 1, phase, count)
        if fp8.groups.rows:
            scales = -(-width // (fp8.groups.columns or width))
            yield here.tp("all_gather", here.tokens * scales, fp8.groups.scale_bytes, phase, count)


def _fetched_again(here: Sender, into: Widths) -> Iterator[Message]:
    for width, count in into.items() if here.layout.sp else ():
        yield here.tp("all_gather", here.tokens * width, here.recipe.compute, "backward", count)


def vocabulary(here: Sender) -> Iterator[Message]:
    """Embedding, head and loss over tensor-parallel ranks: of logits three numbers per token (``parallel/tensor.py``)."""
    if here.layout.tp == 1:
        return
    embedded, heads, size = here.passes.get(0, 0), here.passes.get(here.depth - 1, 0), here.recipe.residual
    entering, learn = {here.shape.hidden: heads}, here.shape.trained
    if here.layout.sp:
        yield here.tp("reduce_scatter", here.stream, size, "forward", embedded)
        yield here.tp("all_gather", here.stream, size, "backward", embedded * ("embedding" in learn))
        yield from _crossings(here, "forward", entering, {})
    else:
        yield here.tp("all_reduce", here.stream, size, "forward", embedded)
    yield from _crossings(here, "backward", {}, entering)
    yield from _fetched_again(here, entering if "head" in learn else {})
    # The largest logit; then the denominator and the target's logit.
    for numbers in (1, 2):
        yield here.tp("all_reduce", numbers * here.tokens, FP32, "forward", heads)


def context(here: Sender) -> Iterator[Message]:
    """Keys and values, or tokens for heads, in each block (``parallel/context.py``); recomputation sends them again."""
    layout, shape, size = here.layout, here.shape, here.recipe.compute
    cp, group, count = layout.cp, (layout.cp, here.at["cp"]), here.block_passes
    if cp == 1:
        return
    heads = shape.heads // layout.tp * here.tokens
    kv_heads = max(1, shape.n_kv_heads // layout.tp) * here.tokens
    kv = 2 * kv_heads * shape.qk_dim  # they travel as one, values as wide as keys
    again = sum(here.layers_again.values()) * bool(layout.again & {"full", "core_attn"})
    phases = [("forward", count), ("backward", again), ("backward", count)]
    if here.layout.context == "ulysses":
        for phase, n in phases:  # q, k, v and the output there, their gradients back
            for width in (shape.qk_dim, shape.v_dim):
                yield message_in("cp", "all_to_all", heads * width, size, group, phase, n)
                yield message_in("cp", "all_to_all", kv_heads * width, size, group, phase, n)
        return
    for phase, n in phases:
        if here.layout.context == "ring":
            yield message_in("cp", "send", kv, size, group, phase, (cp - 1) * n)
        else:
            yield message_in("cp", "all_gather", cp * kv, size, group, phase, n)
    if here.layout.context == "ring":
        yield message_in("cp", "send", kv, FP32, group, "backward", (cp - 1) * count)
    else:
        yield message_in("cp", "reduce_scatter", cp * kv, FP32, group, "backward", count)


def hops(here: Sender) -> Iterator[tuple[str, int, int, int]]:
    """This rank's sends: the phase, the stage before the border, the rank beyond it, and how many micro-batches."""
    mine = here.at["pp"]
    for direction, count in zip(here.where, here.taken, strict=True):
        for stage, (before, after) in enumerate(pairwise(direction)):
            if before == mine != after:
                yield "forward", stage, after, count
            if after == mine != before:
                yield "backward", stage, before, count


def pipeline(here: Sender) -> Iterator[Message]:
    """Behind each stage but the last the residual stream goes on, and its gradient comes back (``parallel/pipeline.py``).

    That is b·s·h elements, however large the stages are: little beside what tensor parallelism or ZeRO-3 send for every
    layer (Narayanan et al. 2021, arXiv 2104.04473, section 3.2). Between two stages on one rank nothing is sent.
    """
    layout, group = here.layout, (here.layout.pp, here.at["pp"])
    elements = here.stream // (layout.tp if layout.sp else 1)
    for phase, _, _, count in hops(here):
        yield message_in("pp", "send", elements, here.recipe.residual, group, phase, count)
    ends, shared = (
        (here.where[0][0], here.where[0][-1]),
        here.shape.tied and "embedding" in here.shape.trained,
    )
    if shared and not here.mirrored and ends[0] != ends[1] and here.at["pp"] in ends:
        table = -(-here.shape.vocab // layout.tp) * here.shape.hidden
        place = sorted(ends).index(here.at["pp"])
        yield message_in("pp", "all_reduce", table, here.gradient_bytes, (2, place), "gradients")


def headers(here: Sender) -> Iterator[Message]:
    """The first message across a border, in either direction, is announced (``parallel/channels.py``)."""
    borders = {(stage, peer) for _, stage, peer, _ in hops(here)}
    yield message_in("pp", "send", HEADER, INT64, (here.layout.pp, here.at["pp"]), "first", len(borders))


def replicas(here: Sender) -> Iterator[Message]:
    """Gradients of ranks that have the same weights, and under ZeRO their parameters (``parallel/data.py``, ``zero.py``).

    They have other samples (dp) or other parts of the same ones (cp); where a pipeline runs both ways the other copy of a
    stage is one of them. Stages 2 and 3 send gradients for each micro-batch, stage 3 parameters as well: `_gathers`.
    Where several groups have all shards (replicate), these are summed over the groups once.
    """
    zero, size = here.layout.zero, here.gradient_bytes
    for one in here.sets:
        sent: Counter[int] = Counter()
        if zero == 0:
            whole = here.layout.data_parallel == "bucketed"
            sent.update(
                map(len, one.buckets) if whole else (w.elements for u in one.units for w in u.weights)
            )
        for bucket in one.buckets if zero else ():
            sent[len(bucket)] += _passes(here, one.unit(bucket)) if zero > 1 else 1
        for elements, count in sent.items():
            collective = "reduce_scatter" if zero else "all_reduce"
            yield message_in("dp", collective, elements, size, one.shards, "gradients", count)
        for elements, count in Counter(map(len, one.buckets)).items() if zero else ():
            own = elements // one.shards[0]
            yield message_in("replicate", "all_reduce", own, size, here.across, "gradients", count)
    weight = here.recipe.states.parameters
    for one in (*here.sets, *here.frozen):
        for (phase, bucket), count in _gathers(here, one).items():
            codes = here.recipe.fp8 is not None and zero == 3
            there = lab("fp8", "gathered")(here, bucket) if codes else len(bucket) * weight
            yield message_in("dp", "all_gather", there, 1, one.shards, phase, count)


def _passes(here: Sender, unit: WeightUnit) -> int:
    """How often the gradients of a unit are sent: for each micro-batch, or as the pipeline's `reductions` say.

    What two stages have in common waits for the last.
    """
    if unit.stage is None:
        return 1
    as_needed = here.layout.zero == 3 and here.layout.pp > 1
    return reductions(here.actions)[unit.stage] if as_needed else here.passes[unit.stage]


def _gathers(here: Sender, one: WeightSet) -> Counter[tuple[str, Bucket[WeightSlot]]]:
    """All-gathers of parameters, by phase and bucket: after the update or, in stage 3, wherever they are needed."""
    found: Counter[tuple[str, Bucket[WeightSlot]]] = Counter()
    if here.layout.zero == 3 and here.layout.pp > 1:
        each = gathers(one.units, here.actions, here.depth, here.layout.reshard)
        for (phase, index), count in each.items():
            found[phase, one.buckets[index]] += count
        return found
    for bucket in one.buckets if here.layout.zero else ():
        if here.layout.zero < 3:
            found["parameters", bucket] += 1
            continue
        unit = one.unit(bucket)
        found["forward", bucket] += _passes(here, unit)
        found["backward", bucket] += _passes(here, unit) * (unit.again and here.layout.reshard)
    return found


def sums(here: Sender) -> Iterator[Message]:
    """Gradients of weights that tensor-parallel ranks have in common are partial sums: one message for each group."""
    tp, kv_heads, place = here.layout.tp, here.shape.n_kv_heads, here.at["tp"]
    copies = max(1, tp // kv_heads)
    for partial, group in (("tp", (tp, place)), ("copies", (copies, place % copies))):
        rank = here.layout.zero > 0
        elements = sum(partial_sums(one.buckets, partial, one.shards[1] * rank) for one in here.sets)
        if elements:
            yield message_in("tp", "all_reduce", elements, here.gradient_bytes, group, "gradients")


def norm(here: Sender) -> Iterator[Message]:
    """The sum of squares of the gradient, one number: over ranks that have other elements of it."""
    layout = here.layout
    cut = {"tp", "pp", *(("dp", "cp") if layout.zero or layout.ep > 1 else ())}
    axes = tuple(axis for axis in AXES if axis in cut and getattr(layout, axis) > 1)
    if axes:
        label = axes[0] if len(axes) == 1 else "dp" if set(axes) == {"dp", "cp"} else "world"
        yield message_in(label, "all_reduce", 1, FP32, here.over(axes), "norm")


def loss(here: Sender) -> Iterator[Message]:
    """The number of targets and the mean loss, over ranks that have other tokens; the last stage tells all the others."""
    layout, label = here.layout, here.samples_axis if here.mirrored or len(here.sets) > 1 else "dp"
    group = here.samples
    yield message_in(label, "all_reduce", 1, INT64, group, "loss")
    if layout.pp > 1:
        label, group = "pp" if group[0] == 1 else "world", here.over(("cp", "dp", "pp"))
    yield message_in(label, "all_reduce", 1, FP32, group, "loss")


def used_parameters(here: Sender) -> Iterator[Message]:
    """A byte for each parameter: does it get a gradient on any replica?"""
    for one in here.sets:
        count = sum(len(unit.weights) for unit in one.units)
        yield message_in("dp", "all_reduce", count, 1, one.group, "first")


def total(messages: Iterable[Message], axis: str | None = None, phase: str | None = None) -> int:
    """Bytes of the messages of an axis and a phase, or of all."""
    wanted = (m for m in messages if axis in (None, m.axis) and phase in (None, m.phase))
    return sum(message.total for message in wanted)
