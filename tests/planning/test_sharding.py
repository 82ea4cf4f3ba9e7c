"""What a rank keeps and sends under ZeRO: identities that hold for any sizes."""

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playbook.layout import Layout
from playbook.planning.memory import predict
from playbook.planning.recipes import PRECISIONS
from playbook.planning.sharding import UnitSize, kept, share_of
from playbook.shapes import load
from playbook_book.replica_traffic import traffic

UNITS = st.lists(
    st.builds(UnitSize, st.integers(0, 10**6), st.booleans(), st.integers(0, 10**5)), min_size=1, max_size=6
)
REPLICAS = st.integers(1, 64)


@given(UNITS, REPLICAS, st.integers(0, 3), st.sampled_from(sorted(PRECISIONS)))
def test_shares_hold_everything_and_little_more(units, replicas, zero, precision):
    """N shares are enough for all parameters, and the padding is below N for each vector that is cut."""
    share, whole = share_of(units, replicas, zero), sum(u.parameters + u.experts for u in units)
    cuts = 2 * (len(units) if zero == 3 else 1)  # dense ones and experts
    assert whole <= share * replicas <= whole + cuts * (replicas - 1)
    held, states = kept(units, replicas, zero, PRECISIONS[precision]), PRECISIONS[precision]
    cut = {1: ("optimizer",), 2: ("optimizer", "gradients"), 3: ("optimizer", "gradients", "parameters")}
    each = {
        "parameters": states.parameters,
        "gradients": states.gradients,
        "optimizer": states.master + states.optimizer,
    }
    for kind, size in each.items():
        there = getattr(held, kind)
        if kind in cut.get(zero, ()):
            assert there == size * share
        else:
            assert size * whole <= there <= size * (whole + cuts * (replicas - 1))
    assert held.total == held.parameters + held.gradients + held.optimizer


@given(UNITS, REPLICAS)
def test_each_stage_keeps_no_more_than_the_one_before(units, replicas):
    """But for padding, which ZeRO-3 has for every unit."""
    totals = [kept(units, replicas, zero, PRECISIONS["bf16-mixed"]).total for zero in range(4)]
    slack = 16 * 2 * (len(units) + 1) * replicas
    assert all(after <= before + slack for before, after in itertools.pairwise(totals))


@given(
    st.integers(1, 10**6),
    st.integers(1, 64),
    st.integers(1, 8),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
)
def test_traffic_in_units_of_the_model(each, replicas, grad_acc, weight_bytes, gradient_bytes):
    """Ψ a multiple of N: 2Ψ, 2Ψ, (1 + G)Ψ, and 3GΨ or, where nothing is gathered twice, 2GΨ; times (N − 1)/N."""
    psi, part = each * replicas, Fraction(replicas - 1, replicas)
    options = {"weight_bytes": weight_bytes, "gradient_bytes": gradient_bytes, "grad_acc": grad_acc}
    of = [traffic([UnitSize(psi)], replicas, zero, **options) for zero in range(4)]
    weights, gradients = part * psi * weight_bytes, part * psi * gradient_bytes
    assert of[0].total == 2 * gradients == of[0].all_reduce
    assert (of[1].reduce_scatter, of[1].all_gather) == (gradients, weights)
    assert (of[2].reduce_scatter, of[2].all_gather) == (grad_acc * gradients, weights)
    assert (of[3].reduce_scatter, of[3].all_gather) == (grad_acc * gradients, 2 * grad_acc * weights)
    kept_whole = traffic([UnitSize(psi)], replicas, 3, **options, reshard=False)
    assert kept_whole.all_gather == grad_acc * weights


def test_units_of_a_model():
    """Embedding and head are needed once: 3Ψ less the two of them; a tied table is gathered once for both ends."""
    for name, ends in (("llama3-8b", 2 * 128256 * 4096 + 4096), ("llama3.2-1b", 128256 * 2048 + 2048)):
        shape = load(name)
        units = predict(shape, Layout(dp=8, zero=3), seq=128).stages[0].counts.units
        assert sum(unit.parameters for unit in units) == shape.num_parameters
        assert sum(unit.parameters for unit in units if not unit.again) == ends
        assert len(units) == shape.layers + (1 if shape.tied else 2)
        sent = traffic(units, 8, 3)
        assert sent.total == Fraction(7, 8) * 2 * (3 * shape.num_parameters - ends)


@pytest.mark.parametrize("zero", range(4))
def test_one_replica_keeps_all_and_sends_nothing(zero):
    units = [UnitSize(7), UnitSize(5, again=False)]
    assert kept(units, 1, zero, PRECISIONS["fp32"]).total == 12 * 16
    assert traffic(units, 1, zero).total == 0


def test_experts_have_fewer_replicas():
    """8 ranks, experts over 4 of them: each expert has 2 copies, so a share of them is half of what a rank has."""
    units = [UnitSize(80, experts=100)]
    assert share_of(units, 8, 1, experts=2) == 10 + 50
    assert kept(units, 8, 1, PRECISIONS["bf16-mixed"], experts=2).optimizer == 12 * 60
