"""Cut models in odd hands: frozen, in 16 bits, fetched lazily, padded, saved and trained on, asked twice."""

from __future__ import annotations

import copy
from unittest import mock

import pytest
import torch
from helpers import BLOCKS
from parallel_runs import Case, Run, on_one_device, on_ranks, train

from playbook import launch
from playbook.errors import LayoutError
from playbook.layout import Layout
from playbook.layout.tokens import MaskBlock
from playbook.model.attend import OnlineSoftmax, attend, flash
from playbook.model.transformer import Transformer
from playbook.parallel import zero
from playbook.parallel.mesh import Mesh, all_gather
from playbook.parallel.parallelize import parallelize
from playbook.parallel.placement import whole
from playbook.parallel.tensor import shard_tensors
from playbook.training.config import TrainConfig
from playbook.training.data import load_corpus, own_tokens
from playbook.training.trainer import make_trainer


def drawn() -> list[torch.Tensor]:
    with launch.process_group():
        model = Transformer(BLOCKS["gpt"].replace(heads=4, hidden=24, dropout=0.5), seed=3)
        shard_tensors(model, Mesh(Layout(tp=2)), whole(model))
        torch.manual_seed(0)
        q = torch.zeros(1, 2, 6, 6)
        return [model.blocks[0].attention.core(q, q, torch.ones_like(q), 0.5, True), torch.rand(3)]


def test_a_cut_model_drops_other_weights_in_each_ranks_heads(ranks):
    (heads, stream), (others, other_stream) = ranks(drawn, ranks=2).values
    assert not torch.equal(heads, others)
    assert torch.equal(stream, other_stream)


@pytest.mark.parametrize("by", [attend, flash])
def test_blocks_of_16_bits_merge_in_fp32(by):
    q = torch.randn(1, 2, 4, 8, dtype=torch.bfloat16)
    found = OnlineSoftmax(by)
    for k in range(2):
        found.add(MaskBlock(0, 4, 2 * k, 2 * k + 2), q, q, q)
    assert found.out.dtype == found.lse.dtype == torch.float32
    assert found.result(q.dtype)[0].dtype == q.dtype


RUNS = [("tp=2", {}), ("tp=2,sp", {"tensor_overlap": "chunked"}), ("cp=2", {})]


def in_16_bits(case: Case, weights: bool) -> float:
    torch.set_num_threads(1)
    worst = 0.0
    with launch.process_group():

        def step(engine, mesh=None):
            x, y, where = own_tokens(*case.batch(0), mesh, "zigzag") if mesh else (*case.batch(0), None)
            engine.zero_grad()
            loss = engine.accumulate(x, y, 24, where, dtype=torch.float32 if weights else torch.bfloat16)
            return torch.stack([loss, engine.clip(1.0).float()])

        expected = step(case.engine())
        for text, options in RUNS:
            mesh = Mesh(Layout.parse(text).replace(**options))
            found = step(parallelize(case.model(), mesh, case.make()), mesh)
            worst = max(worst, float((found / expected - 1).abs().max()))
    return worst


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("weights", [True, False])
def test_16_bits(ranks, block, weights):
    shape = BLOCKS[block].replace(hidden=24, heads=4, kv_heads=2 if block == "llama" else None, ffn=52)
    case = Case(shape, dtype=torch.bfloat16 if weights else torch.float32, recompute="selective")
    assert max(ranks(in_16_bits, case, weights, ranks=2).values) < 5e-3


class Late:
    """A gather whose result is there only once somebody has waited."""

    def __init__(self, whole, own, group):
        self.whole, self.result = whole, torch.empty_like(whole)
        all_gather(self.result, own.clone(), group)

    def wait(self):
        self.whole.copy_(self.result)


def lazily(case: Case, text: str) -> Run:
    torch.set_num_threads(1)
    late = mock.patch.object(zero, "all_gather", lambda whole, own, group, async_op: Late(whole, own, group))
    with launch.process_group(), late:
        lazily = {"gather": "lazily", "bucket": 600, "first_bucket": 600}
        mesh = Mesh(Layout.parse(text).replace(**lazily))
        engine = parallelize(case.model(), mesh, case.make())
        return train(case, engine, mesh=mesh)


@pytest.mark.parametrize(("block", "text"), [("llama", "tp=2,dp=2,zero=1"), ("gpt", "dp=3,zero=1")])
def test_no_weight_is_read_before_its_gather_is_over(ranks, block, text):
    shape = BLOCKS[block].replace(hidden=24, heads=4, kv_heads=2 if block == "llama" else None, ffn=52)
    case = Case(shape, steps=2)
    alone = on_one_device(case)
    for run in ranks(lazily, case, text, ranks=Layout.parse(text).world_size).values:
        assert run.error(alone) < 1e-5


def freeze(model):
    for name, p in model.named_parameters():
        p.requires_grad_("mlp" not in name)


def check(ranks, case: Case, text: str) -> None:
    alone = on_one_device(case)
    for [run] in ranks(on_ranks, [(case, text, {})], ranks=Layout.parse(text).world_size).values:
        assert run.error(alone) < 1e-5


def test_frozen_weights_stay_frozen_in_pieces(ranks):
    case = Case(BLOCKS["gpt"].replace(hidden=24, heads=4), prepare=freeze, steps=2)
    check(ranks, case, "tp=2,sp")


def test_samples_padded_to_an_odd_number_of_tokens(ranks):
    case = Case(BLOCKS["gpt"].replace(ffn=96), steps=2, seq=7)
    check(ranks, case, "tp=3,sp")


def test_samples_as_long_as_the_table_of_positions(ranks):
    case = Case(BLOCKS["gpt"].replace(hidden=24, heads=4, max_seq=9), steps=1)
    check(ranks, case, "cp=2")


def built(layout: Layout) -> tuple:
    with launch.process_group():
        config = TrainConfig(seq=16, global_batch=4, device="cpu", layout=layout)
        shape = BLOCKS["gpt"].replace(hidden=24, heads=4, vocab=256)
        model = make_trainer(shape, load_corpus(), config, Mesh(config.layout)).model
        attention = model.blocks[0].attention
        core = attention.core
        return (
            type(core).__name__,
            getattr(core, "placement", None),
            getattr(getattr(attention.q, "region", None), "overlap", None),
        )


@pytest.mark.parametrize(
    ("text", "settings", "found"),
    [
        ("cp=2", {"context": "gather", "placement": "contiguous"}, ("GatherCore", "contiguous", None)),
        ("cp=2", {"context": "ulysses"}, ("UlyssesCore", None, None)),
        ("tp=2", {"tensor_overlap": "none"}, ("function", None, "none")),
    ],
)
def test_the_trainer_does_it_the_way_it_is_told(ranks, text, settings, found):
    assert ranks(built, Layout.parse(text).replace(**settings), ranks=2)[0].value == found


def snapshot(text: str) -> list[bool]:
    with launch.process_group():
        case = Case(BLOCKS["gpt"].replace(hidden=24, heads=4), steps=1)
        mesh = Mesh(Layout.parse(text))
        engine = parallelize(case.model(), mesh, case.make())
        train(case, engine, mesh=mesh)
        state = engine.state_dict()
        before = copy.deepcopy(state)
        train(case, engine, mesh=mesh)
        other = parallelize(case.model(), mesh, case.make())
        other.load_state_dict(state)
        train(case, other, mesh=mesh)
        pairs = [(state["model"][n], t) for n, t in before["model"].items()]
        pairs += [
            (state["optimizer"]["state"][i][k], t)
            for i, kept in before["optimizer"]["state"].items()
            for k, t in kept.items()
        ]
        return [torch.equal(a, b) for a, b in pairs]


def test_later_steps_change_no_state_dict(ranks):
    assert all(ranks(snapshot, "tp=2", ranks=2)[0].value)


def test_a_word_that_no_rank_has_is_refused(ranks):
    def work() -> list[str]:
        found = []
        with launch.process_group():
            model = Transformer(BLOCKS["llama"].replace(heads=4, kv_heads=2, ffn=52), seed=3)
            shard_tensors(model, Mesh(Layout(tp=2)), whole(model))
            good, bad = torch.zeros(1, 4, dtype=torch.long), torch.full((1, 4), model.shape.vocab)
            for x, y in ((bad, good), (good, bad), (good, -bad)):
                with pytest.raises(IndexError, match="out of range: the vocabulary has") as error:
                    model.loss(x, y)
                found.append(str(error.value))
        return found

    assert len(ranks(work, ranks=2)[0].value) == 3


def test_layouts_that_do_not_fit_the_model_are_refused_from_python_too(ranks):
    def work() -> list[str]:
        found = []
        with launch.process_group():
            for text, options, causal in (
                ("tp=4", {}, True),
                ("cp=4", {"context": "ulysses"}, True),
                ("cp=4", {}, False),
            ):
                mesh = Mesh(Layout.parse(text).replace(**options))
                case = Case(BLOCKS["gpt"].replace(hidden=24, heads=2, kv_heads=2), steps=1, causal=causal)
                with pytest.raises(LayoutError) as error:
                    train(case, parallelize(case.model(), mesh, case.make()), mesh=mesh)
                found.append(str(error.value))
        return found

    tp, swap, padded = ranks(work, ranks=4)[0].value
    assert tp == "tp must divide heads = 2 (1, 2), got 4"
    assert "it must divide the 2 heads of each rank" in swap
    assert padded == "seq is 9, but without a causal mask all tokens see the 7 that pad it: make it 16"
