"""Small changes to a job that need less memory: what each is called, costs by rule of thumb, and does.

``advice`` tries them, alone and together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import gcd

from playbook.errors import PlaybookError
from playbook.planning.fusion import EVERYTHING
from playbook.planning.job import Job
from playbook.planning.memory import predict_stages
from playbook.planning.parameters import StateCounts


def peak_within(job: Job, capacity: int) -> int | None:
    """Bytes of the fullest rank; None if that is more than ``capacity``, or if the job is refused."""
    peak = 0
    try:
        for stage in predict_stages(job):
            peak = max(peak, stage.total)
            if peak > capacity:
                return None
    except PlaybookError:  # such as a tp that no longer divides the heads
        return None
    return peak


@dataclass(frozen=True)
class Change:
    """One change: what it is called, its rough cost (a share of a step's time) and why, and how it is made.

    ``make`` returns None where the change does not apply.
    """

    label: str
    cost: float
    why: str
    make: Callable[[Job], Job | None]


def _zero(stage: int) -> Callable[[Job], Job | None]:
    def make(job: Job) -> Job | None:
        layout = job.layout
        return job.relayout(zero=stage) if layout.zero < stage and layout.dp * layout.cp > 1 else None

    return make


def _smaller_micro_batch(job: Job) -> Job | None:
    layout = job.layout
    if layout.micro_batch == 1:
        return None
    return job.relayout(micro_batch=1, grad_acc=layout.grad_acc * layout.micro_batch)


def _recompute(mode: str) -> Callable[[Job], Job | None]:
    less = ("none", "selective", "core_attn+mlp+moe", "full")

    def make(job: Job) -> Job | None:
        useful = job.layout.recompute in less[: less.index(mode)]
        return job.relayout(recompute=mode) if useful else None

    return make


def _half_of_the_blocks(job: Job) -> Job | None:
    blocks = -(-job.shape.layers // job.layout.stages) // 2
    useful = blocks and job.layout.recompute in ("none", "selective")
    return job.relayout(recompute=f"full:{blocks}") if useful else None


def _double(axis: str, most: int) -> Callable[[Job], Job | None]:
    """Twice the ranks on an axis, taken from data parallelism where it can be halved (the step then accumulates twice
    as many micro-batches), from new GPUs where not."""

    def make(job: Job) -> Job | None:
        layout = job.layout
        size = 2 * getattr(layout, axis)
        if size > most:
            return None
        left = layout.dp // 2 * layout.cp * (2 if axis == "cp" else 1)  # what experts may then be spread over
        if layout.dp % 2 == 0 and left % layout.ep == 0:
            return job.relayout(**{axis: size, "dp": layout.dp // 2, "grad_acc": 2 * layout.grad_acc})
        return job.relayout(**{axis: size})

    return make


def widest_ep(job: Job) -> int:
    """The largest ep that these replicas allow: it divides the experts and dp · cp."""
    moe, layout = job.shape.moe, job.layout
    return gcd(moe.experts, layout.dp * layout.cp) if moe else 1


def _double_experts(job: Job) -> Job | None:
    """Twice the ranks that experts are spread over; where dp · cp allows no more, twice the replicas as well, each of
    which accumulates half as many micro-batches."""
    layout, moe, size = job.layout, job.shape.moe, 2 * job.layout.ep
    if moe is None or moe.experts % size:
        return None
    if widest_ep(job) % size == 0:
        return job.relayout(ep=size)
    if layout.grad_acc % 2:
        return None
    return job.relayout(ep=size, dp=2 * layout.dp, grad_acc=layout.grad_acc // 2)


def _widest_experts(job: Job) -> Job | None:
    ep = widest_ep(job)
    return job.relayout(ep=ep) if ep > job.layout.ep and ep != 2 * job.layout.ep else None


def _flash(job: Job) -> Job | None:
    return replace(job, attention="sdpa") if job.attention == "reference" else None


def _fuse(job: Job) -> Job | None:
    return None if job.fused or job.shape.lora else replace(job, fused=EVERYTHING)


def _sequence_parallel(job: Job) -> Job | None:
    return job.relayout(sp=True) if job.layout.tp > 1 and not job.layout.sp else None


def _offload(job: Job) -> Job | None:
    return None if job.offload else replace(job, offload=True)


#: Changes in the order in which one would try them.
CHANGES = (
    Change("FlashAttention", 0.0, "scores never leave the chip: less memory, and faster", _flash),
    Change(
        "fused kernels", 0.0, "SwiGLU keeps one tensor less and the loss no logits; both are faster", _fuse
    ),
    Change(
        "sequence parallelism",
        0.001,
        "the same bytes over the network as tensor parallelism alone",
        _sequence_parallel,
    ),
    Change("ZeRO-1", 0.002, "the same traffic as data parallelism", _zero(1)),
    Change("selective recomputation", 0.01, "the attention core is computed twice", _recompute("selective")),
    Change("micro-batches of 1", 0.03, "smaller matrix products keep a GPU less busy", _smaller_micro_batch),
    Change("ZeRO-2", 0.04, "gradients are reduce-scattered for every micro-batch", _zero(2)),
    Change(
        "twice the tensor parallelism",
        0.08,
        "two all-reduces per block and pass, inside a node",
        _double("tp", 8),
    ),
    Change(
        "twice the pipeline stages",
        0.10,
        "a longer bubble at the start and the end of a step",
        _double("pp", 64),
    ),
    Change("twice the context parallelism", 0.10, "keys and values travel around a ring", _double("cp", 64)),
    Change(
        "twice the expert parallelism",
        0.05,
        "more rows of tokens travel to their experts and back",
        _double_experts,
    ),
    Change(
        "the widest expert parallelism",
        0.09,
        "rows of tokens travel to experts on as many ranks as EP allows",
        _widest_experts,
    ),
    Change("ZeRO-3", 0.12, "parameters are gathered for every pass: half as much traffic again", _zero(3)),
    Change(
        "recomputation of MLPs, too",
        0.25,
        "attention cores, MLPs and experts are computed twice",
        _recompute("core_attn+mlp+moe"),
    ),
    Change(
        "full recomputation of half of the blocks", 0.17, "half of a second forward pass", _half_of_the_blocks
    ),
    Change("full recomputation", 0.33, "a second forward pass: a third more arithmetic", _recompute("full")),
    Change("optimizer states in CPU memory", 0.40, "moments cross PCIe every step", _offload),
)


def limit_of_experts(job: Job, counts: StateCounts) -> str:
    """Why experts, most of a GPU's parameters (``counts``), are spread no further; empty if they are not, or can be."""
    moe, layout = job.shape.moe, job.layout
    experts = sum(unit.experts for unit in counts.units)
    if moe is None or layout.ep == moe.experts or layout.ep < widest_ep(job) or 2 * experts < counts.local:
        return ""
    share = round(100 * experts / counts.local)
    return (
        f"Experts are {share} % of the parameters that a GPU computes with. EP is as large as "
        f"DP · CP = {layout.dp * layout.cp} allows: with more replicas, each GPU could hold fewer experts."
    )
