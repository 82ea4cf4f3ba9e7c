"""Bytes of four bits: kept, copied and sent, they are those that are counted; what has no whole blocks is refused."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from helpers import BLOCKS, tokens
from parallel_runs import Case
from traffic_runs import check

from playbook import launch
from playbook.errors import ConfigError, LayoutError
from playbook.layout import Layout
from playbook.model.fp4 import FP4
from playbook.model.fp8 import use_fp8
from playbook.model.linear import linear_layers
from playbook.model.transformer import Transformer
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.planning.job import Job
from playbook.planning.memory import predict
from playbook.planning.parameters import copies_of_blocks
from playbook.planning.peak import RunSizes
from playbook.planning.pipeline_memory import StageTerms
from playbook.planning.recipes import RECIPES
from playbook.planning.terms import total
from playbook.precision.recipes import load_fp8
from playbook.shapes import load
from playbook.training.data import own_tokens
from playbook_book.instruments.kept_activations import KeptActivations
from playbook_book.instruments.measured import SavedActivations

LLAMA = BLOCKS["llama"].replace(hidden=64, heads=4, kv_heads=2, ffn=96, layers=3, max_seq=128, vocab=37)
GPT = BLOCKS["gpt"].replace(hidden=64, heads=2, layers=4, max_seq=64, vocab=37, dropout=0.0)
EXPERTS = LLAMA.replace(moe={"experts": 4, "top_k": 2, "ffn": 32, "shared_experts": 1, "dense_layers": 1})
LATENT = LLAMA.replace(
    heads=4, kv_heads=4, mla={"q_rank": 32, "kv_rank": 32, "nope_dim": 16, "rope_dim": 32, "value_dim": 16}
)
SHAPES = {"llama": LLAMA, "gpt": GPT, "experts": EXPERTS, "latent": LATENT}
NAMES = (
    "nvfp4",
    "nvfp4,wide=0",
    "nvfp4,square=off,hadamard=off,wide=0.5",
    "mxfp4",
    "mxfp4,square=off,first=1",
)


def job_of(shape, name: str, recompute: str = "none", recipe: str = "fp32") -> Job:
    layout = Layout(micro_batch=2, recompute=recompute)
    return Job(shape, layout, seq=32, recipe=RECIPES[recipe].with_fp8(name), device="cpu")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_predicted_activations_are_the_measured_ones(shape, name):
    for recompute, recipe in (
        ("none", "fp32"),
        ("mlp", "autocast"),
        ("full:1", "fp32"),
        ("core_attn", "autocast"),
    ):
        sizes, model = (
            RunSizes(job_of(SHAPES[shape], name, recompute, recipe)),
            Transformer(SHAPES[shape], recompute=recompute),
        )
        use_fp8(model, name)
        x, y = tokens(SHAPES[shape], 2, 32)
        with (
            torch.autocast("cpu", torch.bfloat16, recipe == "autocast"),
            SavedActivations(model, (x, y)) as saved,
        ):
            model.loss(x, y)
        terms = StageTerms.of(sizes)
        kinds = SHAPES[shape].blocks(again=sizes.layout.blocks_again, wide=sizes.job.wide)
        told = sum(count * total(terms.saved[kind]) for kind, count in kinds.items())
        assert told + total(terms.embedding) + total(terms.head) == saved.bytes, (recompute, recipe)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_predicted_copies_are_those_that_are_made(shape, name):
    model, job = Transformer(SHAPES[shape]), job_of(SHAPES[shape], name)
    use_fp8(model, name)
    storages = {}
    for layer in linear_layers(model):
        for tensor in layer.products.copies(layer.weight) if isinstance(layer.products, FP4) else ():
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    parts = copies_of_blocks(
        SHAPES[shape], SHAPES[shape].blocks(wide=job.wide), load_fp8(name), RunSizes(job).make
    )
    assert sum(part.value for part in parts) == sum(storages.values())


def kept_by(runs: list[tuple], seq: int, name: str) -> list[int]:
    """In a rank: the most bytes that each run keeps for backward, in a pipeline of a step, else of a forward pass."""
    torch.set_num_threads(1)
    found = []
    with launch.process_group():
        for shape, text in runs:
            mesh, prepare = Mesh(Layout.parse(text)), partial(use_fp8, recipe=name)
            layout, case = mesh.layout, Case(shape, mesh.layout.recompute, seq=seq, prepare=prepare)
            engine = parallelize(case.model(), mesh, case.make())
            x, y = (t[: 2 * layout.grad_acc] for t in case.batch(0))
            x, y, where = own_tokens(x, y, mesh, layout.token_placement)
            if layout.pp > 1:
                with KeptActivations(engine.pipeline) as pipeline:
                    engine.accumulate(x, y, 2, where)
                found.append(pipeline.peak)
                continue
            with SavedActivations(engine.model, (x, y) if where is None else (x, y, where)) as saved:
                engine.model.loss(x, y, where)
            found.append(saved.bytes)
        return [*found, mesh.index("pp")]


def test_what_ranks_keep(ranks):
    """W that waits needs dy and what is kept of x."""
    runs = [
        (LLAMA, "tp=2"), (LATENT, "tp=2,sp"), (GPT, "tp=2,sp,recompute=full:1"), (LLAMA, "cp=2"), (EXPERTS, "tp=2,sp"),
        (GPT, "pp=2,grad_acc=2,schedule=zb-h1"), (LLAMA.replace(layers=4), "pp=2,grad_acc=3,schedule=1f1b"),
    ]  # fmt: skip
    for name in ("nvfp4", "nvfp4,square=off,hadamard=off,wide=0.3,first=1"):
        for *found, place in ranks(kept_by, runs, 64, name, ranks=2).values:
            for (shape, text), kept in zip(runs, found, strict=True):
                layout = Layout.parse(f"{text},micro_batch=2")
                recipe = RECIPES["fp32"].with_fp8(name)
                told = predict(shape, layout, seq=64, recipe=recipe, device="cpu")
                assert kept == told.stages[place if layout.pp > 1 else 0].activations, (name, text, place)


def test_messages_of_a_step(ranks):
    """Of every block, those in higher precision too; with sp a rank's tokens are whole blocks."""
    two = [
        (LLAMA, "tp=2,sp", {}), (LATENT, "tp=2,sp,recompute=full", {}), (GPT, "tp=2,grad_acc=2", {}),
        (LLAMA, "dp=2,zero=3,grad_acc=2", {}), (LLAMA, "cp=2,recompute=full:1", {}), (EXPERTS, "dp=2,ep=2", {}),
        (EXPERTS, "tp=2,sp,recompute=moe", {}), (GPT, "pp=2,grad_acc=4,schedule=dualpipe", {}),
    ]  # fmt: skip
    one_wide = [(shape if shape.moe else shape.replace(layers=2), *how) for shape, *how in two]
    check(ranks, one_wide, 2, fp8="nvfp4", seq=64)
    check(ranks, two[1::3], 2, fp8="nvfp4,hadamard=off,square=off,wide=0.3,first=1", seq=64)
    four = [(LLAMA, "tp=2,sp,cp=2", {}), (GPT.replace(layers=2), "tp=2,pp=2,zero=3,grad_acc=2", {})]
    check(ranks, four, 4, fp8="nvfp4", seq=64)
    wide = LLAMA.replace(layers=2, hidden=128, heads=4, kv_heads=4, ffn=128)
    check(ranks, [(wide, "tp=2,sp", {}), (wide, "cp=2,recompute=full", {})], 2, fp8="mxfp4", seq=128)


def test_four_bits_keep_less_than_eight():
    shape = load("llama3-8b")
    sizes = {
        name: predict(shape, Layout.parse("tp=2,sp"), seq=4096, recipe=RECIPES["bf16-mixed"].with_fp8(name))
        for name in ("blockwise", "nvfp4,wide=0", "nvfp4")
    }
    kept = {name: report.stages[0].activations for name, report in sizes.items()}
    assert kept["nvfp4,wide=0"] < kept["nvfp4"] < kept["blockwise"]


@pytest.mark.parametrize(
    ("shape", "layout", "name", "sentence"),
    [
        (LLAMA.replace(ffn=90), "", "nvfp4", "mlp up has 90 outputs, but nvfp4 has blocks of 16"),
        (LLAMA, "tp=2", "mxfp4", "attention keys has 16 outputs on each of tp=2 ranks, but mxfp4 has blocks of 32"),
        (LLAMA, "cp=2", "nvfp4", "seq=40 in 2 parts for each of cp=2 ranks is 10, but nvfp4 has blocks of 16 tokens"),
        (EXPERTS, "dp=2,ep=2,etp=1,tp=2,sp", "nvfp4", "etp=1 cannot be had with nvfp4 and experts"),
        (EXPERTS, "cp=2,ep=2", "nvfp4", "cp=2 cannot be had with nvfp4 and experts"),
        (LLAMA.replace(layers=1), "", "nvfp4", "layers is 1, but nvfp4 keeps 1 in higher precision"),
    ],
)  # fmt: skip
def test_what_has_no_whole_blocks_is_refused(shape, layout, name, sentence):
    with pytest.raises((ConfigError, LayoutError), match=sentence):
        Job(
            shape,
            Layout.parse(layout),
            seq=40 if "cp=2" in layout and shape is LLAMA else 64,
            recipe=RECIPES["fp32"].with_fp8(name),
        ).check()
