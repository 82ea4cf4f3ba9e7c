"""What a live model says of its own shapes and borders."""

from functools import partial

import pytest
from helpers import LLAMA

from playbook import launch
from playbook.errors import ConfigError, LayoutError
from playbook.layout import Layout
from playbook.model.transformer import Transformer
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.planning.communication import ring_bytes_sent
from playbook.training.optimizer import adamw
from playbook_book.instruments.shape_table import live_shapes, shape_table

SHAPE = LLAMA.replace(vocab=61)  # odd: padded to 62
B, S, H, V, D = 2, 12, SHAPE.hidden, SHAPE.vocab, SHAPE.qk_dim


def tables(layouts):
    return {text: live_shapes(SHAPE, text, batch=B, seq=S) for text in layouts}


def test_shapes_and_borders_of_tensor_and_sequence_parallelism():
    found = launch.run(tables, ["tp=2", "tp=2,sp"], ranks=2, backend="gloo")[0].value
    for text, here, into, out in (("tp=2", S, "f", "f*"), ("tp=2,sp", S // 2, "g", "g*")):
        t = found[text]
        assert t["norm 1"].into.local == t["residual 2"].out.local == (B, here, H)
        assert t["q"].out.local == (B, S, SHAPE.heads * D // 2)
        assert t["attention core"].out.local == (B, SHAPE.heads // 2, S, D)
        assert t["down"].into.local == (B, S, SHAPE.ffn_dim // 2)
        assert t["head"].out.local == (B, S, 31)
        assert str(t["head"].out) == "(b, s, v/2)"
        assert t["q"].weight == (SHAPE.heads * D // 2, H)
        assert [t[r].border for r in ("embedding", "q", "k", "out", "gate", "up", "down", "head", "loss")] == [
            out, into, "", out, into, "", out, into, "",
        ]  # fmt: skip
    whole = ring_bytes_sent("all_reduce", B * S * H, 4, 2, rank=0)
    assert found["tp=2"]["q"].sent() == found["tp=2"]["out"].sent() == whole
    half = whole // 2
    assert [e.kind for e in found["tp=2,sp"]["q"].backward] == ["all_gather", "reduce_scatter"]
    assert [e.sent for e in found["tp=2,sp"]["q"].backward] == [half, half]
    assert found["tp=2,sp"]["out"].sent() == whole
    assert not found["tp=2"].after
    (norms,) = found["tp=2,sp"].after  # two in each block, and the last
    assert norms.payload == (2 * SHAPE.layers + 1) * H * 4
    shown = found["tp=2,sp"]
    assert "all-gather + reduce-scatter" in str(shown)
    assert f"then all-reduce, {norms.sent:,} B" in str(shown.table(sent=True))
    assert "(b,&nbsp;s/2,&nbsp;h)" in shown._repr_html_()
    assert "all&#8209;gather + reduce&#8209;scatter" in shown._repr_html_()


def test_shapes_with_context_parallelism_beside_it():
    t = launch.run(live_shapes, SHAPE, "tp=2,cp=2,sp", batch=B, seq=11, ranks=4, backend="gloo")[0].value
    assert t["norm 1"].into.local == (B, 3, H)  # 11 tokens are padded to 12
    assert (str(t["norm 1"].out), str(t["q"].out)) == ("(b, s/4, h)", "(b, s/2, a·d/2)")
    assert t["q"].out.shared == ("tokens", "heads")
    core = t["attention core"]
    sends = [[e.group for e in events if e.kind == "send"] for events in (core.forward, core.backward)]
    assert sends == [["cp"], ["cp", "cp"]]  # keys and values; then they and their gradients
    assert (core.border, t["q"].border, t["out"].border) == ("", "g", "g*")


def refused():
    with launch.process_group():
        mesh, model = Mesh(Layout()), Transformer(SHAPE, recompute="full")
        make = partial(adamw, lr=0.1, betas=(0.9, 0.9), weight_decay=0.0)
        return shape_table(parallelize(model, mesh, make))


def test_what_it_refuses():
    with pytest.raises(LayoutError, match="sp splits"):
        live_shapes(SHAPE, "sp")
    with pytest.raises(ConfigError, match="recompute is 'full'"):
        refused()
