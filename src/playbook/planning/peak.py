"""The fullest moment of a training step: what is alive at once, working memory included.

Gradients rise while activations fall, so the two rarely stand at full height together; and whatever runs needs memory of
its own. A step has few moments that can be the fullest: the loss, the output head's backward, one block's (the first
that backward meets, and the last), the embedding's, and the optimizer's. ``predict`` takes the largest. The terms follow
what PyTorch allocates for the book's model, operation by operation (``instruments.memory_timeline`` records it).
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from playbook.block import Kind
from playbook.layout import recomputed
from playbook.layout.fields import OPTIMIZER_CHUNK as CHUNK
from playbook.planning.flops import parts_again
from playbook.planning.fusion import EVERYTHING, chunk_tokens, loss_of
from playbook.planning.job import OfJob
from playbook.planning.parameters import StateCounts
from playbook.planning.saved import block_terms, second_products
from playbook.planning.terms import Make, Part, Term, maker, symbols, total
from playbook.registry import lab

#: What backward has used up of a block when it comes to the attention core: parts, and single terms.
_AFTER_CORE = ("mlp", "router", "experts", "shared experts")
_USED = ("norm 2 input", "norm 2 statistics", "output projection input", "after dropout")


@dataclass(frozen=True)
class Moment:
    """Bytes of gradients and activations that are alive at one moment, and the working memory, term by term."""

    name: str
    gradients: int
    activations: int
    terms: tuple[Term, ...]

    @property
    def working(self) -> int:
        return total(self.terms)

    @property
    def bytes(self) -> int:
        """What changes in the course of a step; parameters, optimizer states and buffers are always there."""
        return self.gradients + self.activations + self.working


@dataclass(frozen=True)
class RunSizes(OfJob):
    """What all stages of a run share, and runs that differ in ZeRO or in numbers of replicas, stages or micro-batches: as
    long as there is a pipeline or none, and ``gradients_stay`` or do not."""

    @cached_property
    def make(self) -> Make:
        """Makes terms of its sizes."""
        return maker(symbols(self.job))

    def make_of(self, kind: Kind) -> Make:
        """Makes those of a block."""
        return self._wide if kind.wide else self.make

    @cached_property
    def _wide(self) -> Make:
        return maker(symbols(self.job.at(wide=True)))

    @cached_property
    def attention(self) -> str:
        """Attention over several ranks goes block by block: it has no matrix of scores to write. What swaps heads for
        tokens gives "swapped": the core keeps its output before that message, the projection its input after it."""
        job, drawn = self.job, self.shape.dropout and self.job.device == "cpu"
        if self.layout.cp > 1 and self.layout.context == "ulysses":
            return "swapped"
        return "reference" if self.layout.cp == 1 and (job.attention == "reference" or drawn) else "sdpa"

    @cached_property
    def fused_loss(self) -> str:
        """How the loss is fused, as `fusion.loss_of` says."""
        return loss_of(self.fused, self.layout.tp)

    @cached_property
    def gradients_stay(self) -> bool:
        """Whether gradients are there all the time: from an earlier micro-batch, or, on many ranks, in one vector."""
        layout = self.layout
        return layout.grad_acc > 1 or layout.world_size > 1

    def saved(self, kind: Kind, recompute: str) -> list[Term]:
        """What a block of a kind keeps of a micro-batch under some recomputation."""
        again = kind.again(recomputed(recompute))
        if "offload" in again:
            return []
        if self.every_second(again):
            return second_products(self.shape, self.make_of(kind), kind)
        given: dict[str, Any] = {"attention": self.attention, "kind": kind, "fused": self.fused}
        return block_terms(self.shape, self.make_of(kind), recompute=recompute, **given)

    def every_second(self, again: Set[str]) -> bool:
        """Whether selective recomputation computes every second product of a block ``again``, not attention alone."""
        return "every-second-product" in self.job.keeps and again == {"core_attn"}

    @cached_property
    def blocks(self) -> dict[Kind, BlockSizes]:
        """The memory of a block's backward, for each kind of block that the model has."""
        return {kind: BlockSizes.of(self, kind) for kind in self.job.kinds}

    @cached_property
    def logits(self) -> tuple[Term, ...]:
        """Logits as the head gives them and, in 16 bits, once more in fp32; fused, those of a chunk, or none in fp32."""
        if self.fused_loss == "linear-cross-entropy":
            return self._chunks
        terms = [self.make("loss", "logits", "b*s*v*c//t")]
        if self.fused_loss == "cross-entropy":
            return ()  # the ones that are kept
        if self.recipe.compute != 4:
            terms.append(self.make("loss", "logits (fp32)", "b*s*v*4//t"))
        return tuple(terms)

    @property
    def _chunks(self) -> tuple[Term, ...]:
        """A chunk's logits and its part of the weight's gradient; the sum of these in fp32, as far as it is not kept."""
        make, compute, weights = self.make, self.recipe.compute, self.recipe.states.parameters
        n, v = make("", "", "b*s").value, self.shape.vocab
        chunk = min(n, chunk_tokens(n, v, self.shape.hidden))
        terms = [Term("loss", "logits of a chunk", f"{chunk}*v*c", chunk * v * compute)]
        if compute != 4:  # in fp32 a product adds to the sum
            terms.append(make("loss", "gradient of the head's weight by a chunk", "v*h*c"))
        if weights != 4:
            terms.append(make("loss", "sum of these (fp32), beyond what is kept", "v*h*(4-w)"))
        if compute != weights:
            terms.append(make("loss", "copy of the head's weight", "v*h*c"))
        return tuple(terms)

    @cached_property
    def loss(self) -> tuple[Term, ...]:
        """Log-softmax goes back in fp32: the gradient that comes in, and the one that goes out.

        Fused, a gradient takes the place of the logits; or gradients are there, and multiplied by the loss's.
        """
        if self.fused_loss == "cross-entropy":
            return self.beside
        if self.fused_loss:
            return (
                self.make("loss", "gradient of the head's input", "b*s*h*c"),
                self.make("loss", "gradient of the head's weight", "v*h*w"),
            )
        terms = [self.make("loss", "gradient of the log-probabilities (fp32)", "b*s*v*4//t")]
        terms.append(self.make("loss", "gradient of the logits (fp32)", "b*s*v*4//t"))
        if self.layout.tp > 1 and "eager-loss" in self.job.keeps:
            terms.append(
                self.make("loss", "probabilities, and these less the targets (fp32)", "2*b*s*v*4//t")
            )
        return tuple(terms)

    @cached_property
    def head(self) -> tuple[Term, ...]:
        """A gradient that is added to one which is there already exists beside it for a moment."""
        terms = [self.make("head", "gradient of the head's input", "b*s*h*c")]
        if not self.fused_loss or self.beside:
            terms.insert(0, self.make("head", "gradient of the logits", "b*s*v*c//t"))
        if self.gradients_stay and "head" in self.shape.trained and "weight-gradients" not in self.fused:
            terms.append(self.make("head", "new gradient of the matrix", "v*h*c//t"))
        return tuple(terms)

    @cached_property
    def beside(self) -> tuple[Term, ...]:
        """As much as logits that stay beside their gradient."""
        stays = "logits" in self.job.keeps and self.fused_loss == "cross-entropy"
        return (self.make("loss", "logits, beside their gradient", "b*s*v*c//t"),) * stays

    @cached_property
    def waiting(self) -> tuple[Term, ...]:
        """Of a tied table the gradient from the head, until backward comes to the embedding: autograd adds up the two
        before it adds them to a gradient that is there. Not where the head adds its own to it."""
        together = self.shape.tied and "head" in self.shape.trained and self.layout.pp == 1
        if not together or "weight-gradients" in self.fused:
            return ()
        return (self.make("embedding", "the head's gradient of the table", "v*h*w//t"),)

    @cached_property
    def embedding(self) -> tuple[Term, ...]:
        """The embedding's gradient is made whole, then added to what is there; of a tied table to a new sum."""
        stream = self.make("embedding", "gradient of the residual stream", "b*s*h*x//r")
        terms = [stream, *self.beside, *self.waiting]
        if (self.gradients_stay or self.shape.tied) and "embedding" in self.shape.trained:
            terms.append(self.make("embedding", "new gradient of the table", "v*h*w//t"))
        if self.gradients_stay and self.waiting:
            terms.append(self.make("embedding", "sum of both", "v*h*w//t"))
        return tuple(terms)


@dataclass(frozen=True)
class BlockSizes:
    """One block's backward: bytes it ``stored``, bytes of them (recomputed ones too) that are alive at its MLP and at its
    attention core, and what these two work with."""

    stored: int
    at_mlp: int
    at_core: int
    mlp: tuple[Term, ...]
    core: tuple[Term, ...]

    @classmethod
    def of(cls, run: RunSizes, kind: Kind) -> BlockSizes:
        mode = run.layout.recompute
        again = kind.again(run.layout.again)
        inside = "+".join(sorted(again - {"full", "mlp", "moe", "shared_experts", "offload"})) or "none"
        inside = "none" if run.every_second(again) else inside
        kept = {each: run.saved(kind, each) for each in {"none", mode, inside}}
        here = kept[inside]
        return cls(
            stored=total(kept[mode]),
            at_mlp=total(t for t in here if t.name != "down projection input"),
            # By the time of its own backward, a recomputed core has its scores back.
            at_core=total(t for t in kept["none"] if t.part not in _AFTER_CORE and t.name not in _USED),
            mlp=tuple(_mlp(run, kind)),
            core=tuple(
                lab("recurrent", "backward")(run.shape.recurrent, run.make) if kind.recurrent else _core(run)
            ),
        )


def _mlp(run: RunSizes, kind: Kind) -> list[Term]:
    make, part, width = run.make_of(kind), *(("experts", "K*F") if kind.experts else ("mlp", "f"))
    again = kind.again(run.layout.again)
    terms = [
        make("mlp", "gradient of the residual stream", "b*s*h*x//r"),
        make(part, "gradient of the down projection's input", f"b*s*{width}*c//t"),
        make(part, "gradient of the activation", f"b*s*{width}*c//t"),
    ]
    if run.shape.gated:
        terms.append(make(part, "gradient of up", f"b*s*{width}*c//t"))
    if "full" in again:
        terms.append(make("mlp", "output of the recomputed block", "b*s*h*x//r"))
    elif ("moe" if kind.experts else "mlp") in again:
        terms.append(make(part, "output of the recomputed MLP", "b*s*h*c//r"))
        if make("", "", "x").value != make("", "", "l").value:  # beside what the products keep of it
            terms.append(make(part, "input of the recomputed MLP", "b*s*h*x//r"))
    return terms


def _core(run: RunSizes) -> list[Term]:
    make = run.make
    terms = [
        make("attention", "gradient of the residual stream", "b*s*h*x//r"),
        make("attention", "gradient of the core's output", "b*s*a*e*c//t"),
        make("attention", "gradients of queries, keys, values", "b*s*(a*d+g*d+g*e)*c//t"),
    ]
    if run.attention == "reference":
        terms.append(make("scores", "gradients of the weights and of the scores", "2*b*a*s*S*c//t"))
    elif "attention" in run.fused:
        terms.append(make("attention", "sums of outputs times their gradients (fp32)", "b*s*a*4//t"))
    elif run.job.device == "cuda":
        terms.append(make("attention", "gradient of the queries (fp32)", "b*s*a*d*4//t"))
    return terms


class Weights(NamedTuple):
    """What a rank of a pipeline holds whatever it keeps for backward: its share of the model, and what belongs to it.

    ``blocks`` counts its blocks by kind, ``first`` and ``last`` say whether it has these ends of the model.
    """

    counts: StateCounts
    parameters: int
    gradients: int
    optimizer: int
    buffers: tuple[Part, ...]
    blocks: dict[Kind, int]
    first: bool
    last: bool


def moments(
    run: RunSizes, stage: Weights, most: int, before: int, of_first: int, head: int
) -> Iterator[Moment]:
    """The moments of a step that can be its fullest, in order. The rank keeps ``most`` bytes of activations, ``before``
    when a backward pass begins; of one micro-batch the first stage of all keeps ``of_first``, the ``head`` so many."""
    stay, gradients = run.gradients_stay, stage.gradients
    of_head = head if stage.last else 0
    all_copies = _weight_copies(run, stage)
    copies = _weight_copies(run, stage, parts_again(run.layout.again))
    matrix, table = (stage.counts.table * (end in run.shape.trained) for end in ("head", "embedding"))
    heads_gradient = gradients if stay else matrix * run.recipe.states.gradients
    if stage.last:
        yield Moment("forward of the loss", gradients if stay else 0, before, (*run.logits, *all_copies))
        yield Moment("backward of the loss", gradients if stay else 0, before, (*run.loss, *copies))
        if run.fused_loss != "linear-cross-entropy":  # whose backward is the loss's
            gone = 0 if run.fused_loss else run.make("loss", "log-probabilities", "b*s*v*4//t").value
            yield Moment("backward of the output head", heads_gradient, before - gone, (*run.head, *copies))
    if stay and stage.last:  # it is not among the gradients yet
        copies = (*copies, *run.waiting, *run.beside)
    for kind in stage.blocks:
        block = run.blocks[kind]
        places = [("last", before - of_head - block.stored, heads_gradient)]
        if not stay:  # gradients pile up: the first block's backward, the last to run, may be the fuller one
            others = stage.counts.learning - stage.counts.block_learns - table
            places.append(("first", 0, max(0, others * run.recipe.states.gradients)))
        for name, others, there in places:
            where = f"backward of the {name} block"
            yield Moment(f"{where}: MLP", there, others + block.at_mlp, (*block.mlp, *copies))
            yield Moment(f"{where}: attention", there, others + block.at_core, (*block.core, *copies))
    if stage.first:
        others = max(0, before - of_first)  # other micro-batches, and other stages
        yield Moment("backward of the embedding", gradients, others, run.embedding)
    if most > before:
        yield Moment("between B and W", gradients, most, ())
    update = lab("muon", "working") if run.job.optimizer == "muon" else _update
    yield Moment("optimizer", gradients, 0, update(run, stage))


def _weight_copies(run: RunSizes, stage: Weights, again: Set[str] = frozenset()) -> tuple[Term, ...]:
    """Autocast's 16-bit copies of the matrices of all blocks, and of the head: backward needs them. It makes those of the
    parts that are computed ``again`` anew, block by block.

    Experts and routers keep none: experts are cast in each product, and a router computes in fp32.
    """
    each, counts = run.recipe.weight_copies, stage.counts
    if not each or run.layout.pp > 1:  # a pipeline's linear layers cast a weight each time they need it
        return ()
    weights = counts.table if stage.last else 0
    kept = {"attention", "mlp", "shared experts"}
    largest = 0
    for part in counts.parts:
        if run.recipe.fp8 and not part.wide:  # which has copies of its own
            continue
        anew = frozenset() if part.whole else again
        matrices = [t for t in part.terms if t.part in kept and "bias" not in t.name]
        if run.shape.train != "full":  # what is frozen is cast each time it is needed
            adapters, learn = (", A", ", B"), run.shape.trained
            matrices = [
                t for t in matrices if t.part in learn or (run.shape.lora and t.name.endswith(adapters))
            ]
        weights += round(part.times * total(term for term in matrices if term.part not in anew))
        largest = max(largest, total(term for term in matrices if term.part in anew))
    weights += largest
    return (Term("weights", "16-bit copies of the matrices", f"{each} per weight", each * weights),)


def _update(run: RunSizes, stage: Weights) -> tuple[Term, ...]:
    """A chunk of gradients in fp32 for masters that PyTorch updates there; its loop on a CPU has two tensors more."""
    shape, terms, learn = run.shape, [], run.shape.trained
    wide = max(shape.ffn_dim, shape.heads * shape.qk_dim)
    ends, block = (
        stage.counts.table * bool({"embedding", "head"} & learn),
        shape.hidden * wide // run.layout.tp,
    )
    largest = max(
        ends, block * bool({"attention", "mlp"} & learn), (shape.lora or 1) * max(shape.hidden, wide)
    )
    if any(kind.experts for kind in stage.blocks):  # the experts of a rank are one tensor
        largest = max(largest, run.make("experts", "one of their matrices", "m*h*F//T").value)
    chunk = min(stage.counts.shard, max(CHUNK, largest))
    own = run.job.device != "cpu" and (run.job.offload or run.fused >= EVERYTHING)
    if run.recipe.states.master and not own:
        terms.append(Term("optimizer", "gradients of a chunk (fp32)", "4 per weight", 4 * chunk))
    if each := run.recipe.widened:
        terms.append(Term("optimizer", "states of a chunk (fp32)", f"{each} per weight", each * chunk))
    if run.job.device == "cpu":
        terms.append(Term("optimizer", "square root of the second moment", "8 per weight", 8 * largest))
    elif run.recipe.widened:
        terms.append(Term("optimizer", "a state over its scale (fp32)", "4 per weight", 4 * largest))
    return tuple(terms)
