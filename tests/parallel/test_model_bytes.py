"""What tensor, sequence and context parallelism send, save and keep: as the formulas say, to the byte."""

from __future__ import annotations

import itertools
from unittest import mock

import pytest
import torch
from helpers import BLOCKS
from parallel_runs import Case, nothing

from playbook import launch
from playbook.instruments.counting import CountBytes, traffic_groups
from playbook.kernels import jit
from playbook.layout import Layout
from playbook.model import offload
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.planning.memory import predict
from playbook.training.data import own_tokens
from playbook_book.context_cost import context_traffic
from playbook_book.instruments.measured import SavedActivations

SHAPES = {
    "gpt": BLOCKS["gpt"].replace(hidden=24, heads=4, vocab=37),
    "llama": BLOCKS["llama"].replace(hidden=32, heads=8, kv_heads=4, ffn=52, vocab=38),
}
SEQ, BATCH = 16, 4


def a_step(case: Case, runs: list[tuple[str, dict]]) -> list[dict[str, dict[str, tuple[int, int]]]]:
    """In a rank: by axis and kind, the calls of one step and the bytes that it sent; and what the engine keeps."""
    torch.set_num_threads(1)
    found = []
    with launch.process_group():
        for text, options in runs:
            mesh = Mesh(Layout.parse(text).replace(**options))
            engine = parallelize(case.model(), mesh, case.make())
            with CountBytes(traffic_groups(engine)) as count:
                x, y, where = own_tokens(*share(case, mesh), mesh, mesh.layout.token_placement)
                engine.accumulate(x, y, BATCH, where)
                engine.clip(1.0)
                engine.step()
            kept = {kind: sum(t.nbytes for t in ts) for kind, ts in engine.tensors().items()}
            axes = traffic_groups(engine)
            tallies = {axis: {k: (t.calls, t.sent) for k, t in count[axis].tallies.items()} for axis in axes}
            found.append({"kept": kept, **tallies})
    return found


def share(case: Case, mesh: Mesh) -> list[torch.Tensor]:
    """This rank's samples of inputs and targets."""
    return [t.chunk(mesh.size("dp"))[mesh.index("dp")] for t in case.batch(0)]


@pytest.mark.parametrize("block", SHAPES)
@pytest.mark.parametrize("tp", [2, 4])
def test_a_step_of_tensor_parallelism(ranks, block, tp):
    """Per block two all-reduces forward, two backward; with sp as many gathers and scatters of the same bytes.

    What sp does not save it gathers once more: the input of every region that has columns.
    """
    shape = SHAPES[block]
    case = Case(shape, steps=1, seq=SEQ, samples=BATCH)
    stream = BATCH * SEQ * shape.hidden * 4  # the residual stream of a micro-batch, in bytes
    blocks, tokens = shape.layers, BATCH * SEQ
    plain, shared = ranks(a_step, case, [(f"tp={tp}", {}), (f"tp={tp},sp", {})], ranks=tp).values[0]
    # Beside the blocks: out of the embedding, into the head backward; peaks, denominators and targets' logits; the norm.
    regions = 4 * blocks + 2
    share = 2 * (tp - 1) * stream // tp
    losses = 2 * (tp - 1) * 3 * tokens * 4 // tp
    calls, sent = plain["tp"]["all_reduce"]
    assert calls == regions + 2 + 1
    assert sent == pytest.approx(regions * share + losses, abs=4 * 2)
    half = share // 2
    again = 2 * blocks + 1
    assert shared["tp"]["reduce_scatter"] == (regions, regions * half)
    assert shared["tp"]["all_gather"] == (regions + again, (regions + again) * half)
    assert (
        shared["tp"]["all_reduce"][0] == 2 + 1 + 1
    )  # and in one message the gradients of what no rank has all of


@pytest.mark.parametrize("context", ["ring", "gather", "ulysses"])
def test_a_step_of_context_parallelism(ranks, context):
    shape, cp = SHAPES["llama"], 4
    case = Case(shape, steps=1, seq=SEQ, samples=BATCH)
    options = {"context": context}
    for (found,) in ranks(a_step, case, [(f"cp={cp}", options)], ranks=cp).values:
        each = context_traffic(shape, Layout(cp=cp, micro_batch=BATCH), SEQ, context, itemsize=4)
        assert sum(sent for _, sent in found["cp"].values()) == each.total * shape.layers
        calls = {kind: n for kind, (n, _) in found["cp"].items() if n}
        layers = shape.layers
        if context == "ring":  # keys and values in one message: there, there again, and their gradients
            assert calls == {"send": 3 * (cp - 1) * layers, "recv": 3 * (cp - 1) * layers}
        elif context == "gather":
            assert calls == {"all_gather": 2 * layers, "reduce_scatter": layers}
        else:
            assert calls == {"all_to_all": 8 * layers}


@pytest.mark.parametrize("block", SHAPES)
def test_every_axis_has_bytes_of_its_own(ranks, block):
    """Gradients of tp ranks are pieces: a replica sends fewer of them."""
    case = Case(SHAPES[block], steps=1, seq=SEQ, samples=BATCH)
    runs = [("tp=2,cp=2,dp=2", {}), ("tp=2,sp,cp=2,dp=2,zero=1", {})]
    for found in ranks(a_step, case, runs, ranks=8).values[::3]:
        for (text, _), one in zip(runs, found, strict=True):
            told = predict(SHAPES[block], Layout.parse(text), seq=SEQ, recipe="fp32", device="cpu").stages[0]
            assert one["kept"]["parameters"] == told.parameters
            assert one["kept"]["optimizer"] == pytest.approx(told.optimizer, abs=64)
            assert all(sum(sent for _, sent in one[axis].values()) for axis in ("dp", "tp", "cp"))
        sent = found[0]["dp"]["all_reduce"][1]
        assert sent == pytest.approx(2 * 3 / 4 * told.parameters, rel=0.01)  # four replicas: dp and cp


def saved(runs: list[tuple[Case, str, dict]]) -> list[int]:
    """In a rank: bytes that a forward pass of two samples keeps for backward.

    Fused kernels are launched and write nothing: sizes are all that is looked at.
    """
    torch.set_num_threads(1)
    found = []
    with mock.patch.object(jit, "interpret", new=nothing), launch.process_group():
        for case, text, options in runs:
            mesh = Mesh(Layout.parse(text).replace(**options))
            model = parallelize(case.model(), mesh, case.make()).model
            x, y, where = own_tokens(*case.batch(0), mesh, mesh.layout.token_placement)
            with SavedActivations(model, inputs=(x, y) if where is None else (x, y, where)) as kept:
                model.loss(x, y, where)
            found.append(kept.bytes)
    return found


RECOMPUTE = ["none", "selective", "full", "core_attn+mlp+shared_experts", "full:1"]
#: By ranks: tensor parallelism, with sequence parallelism, context parallelism, and all of them.
SAVE: dict[int, list[tuple[str, dict]]] = {
    2: [
        ("tp=2", {}), ("tp=2,sp", {}), ("tp=2,sp", {"tensor_overlap": "chunked"}), ("cp=2", {}),
        ("cp=2", {"context": "gather"}), ("cp=2", {"context": "ulysses"}),
    ],
    4: [("tp=4", {}), ("tp=4,sp", {}), ("cp=4", {}), ("tp=2,sp,cp=2", {})],
}  # fmt: skip


def saving(block: str, recompute: str, kernels: str = "torch", train: str = "full") -> Case:
    return Case(SHAPES[block].replace(train=train), recompute, seq=SEQ, samples=2, kernels=kernels)


def check_saved(ranks, runs: list[tuple[Case, str, dict]], world: int) -> None:
    for found in ranks(saved, runs, ranks=world).values:
        for (case, text, options), bytes_ in zip(runs, found, strict=True):
            layout = Layout.parse(f"{text},micro_batch=2,recompute={case.recompute}").replace(**options)
            how = {"recipe": "fp32", "device": "cpu", "fused": case.kernels == "fused"}
            told = predict(case.shape, layout, seq=SEQ, **how).stages[0].activations
            assert bytes_ == told, (case, text, options)


@pytest.mark.parametrize("world", SAVE)
def test_saved_activations_are_those_foretold(ranks, world):
    """To the byte: any two of block, layout and recomputation."""
    both = itertools.product(enumerate(SHAPES), enumerate(RECOMPUTE))
    runs = [
        (saving(block, recompute), text, options)
        for (i, block), (j, recompute) in both
        for text, options in SAVE[world][(i + j) % 2 :: 2]
    ]
    check_saved(ranks, runs, world)


@pytest.mark.parametrize(
    ("given", "recompute"),
    [({"kernels": "fused"}, RECOMPUTE[:2]), ({"train": "lora:3"}, ["none", "selective", "mlp", "full:1"])],
    ids=["fused kernels", "adapters"],
)
def test_so_they_are_with(ranks, given, recompute):
    runs: list[tuple[Case, str, dict]] = [
        (saving(block, how, **given), text, options)
        for block in SHAPES
        for how in recompute
        for text, options in [("tp=2", {}), ("tp=2,sp", {}), ("cp=2", {}), ("cp=2", {"context": "gather"})]
        if not options or "kernels" in given
    ]
    check_saved(ranks, runs, 2)


def elsewhere(runs: list[tuple[Case, str, dict]]) -> tuple[list[int], int]:
    """In a rank: what `saved` says, and the bytes of all that goes to CPU memory."""
    gone: list[int] = []

    class Noted(offload.Copied):
        def __init__(self, tensor: torch.Tensor):
            super().__init__(tensor)
            gone.append(len(self.bytes))

    with mock.patch.object(offload, "Copied", Noted):
        return saved(runs), sum(gone)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_so_are_those_that_wait_in_cpu_memory(ranks, recompute):
    """Whatever stays is not seen: weights that ZeRO-3 has gathered, and with cp the angles of a rank's tokens."""
    runs: list[tuple[str, dict]] = [(text, {}) for text in ("tp=2", "tp=2,sp", "cp=2", "dp=2,zero=3")]
    away = "offload" if recompute == "none" else f"{recompute}+offload"

    def told(text: str, mode: str) -> int:
        layout = Layout.parse(f"{text},micro_batch=2,recompute={mode}")
        return predict(SHAPES["llama"], layout, seq=SEQ, recipe="fp32", device="cpu").stages[0].activations

    cases = [(saving("llama", away), text, options) for text, options in runs]
    for here, gone in ranks(elsewhere, cases, ranks=2).values:
        assert here[:2] == [told(text, away) for text, _ in runs[:2]]
        assert gone == sum(told(text, recompute) - told(text, away) for text, _ in runs)
