"""Layers with a state in place of attention: what backward needs, what they compute, and what layouts they allow."""

import sys

import pytest
import torch
import transformers
from torch.autograd import Function

from playbook.errors import LayoutError, ShapeError
from playbook.hardware import load as load_cluster
from playbook.layout import Layout
from playbook.model.ops import TORCH_OPS
from playbook.model.transformer import Transformer
from playbook.planning.flops import step_flops
from playbook.planning.job import Job
from playbook.planning.memory import predict
from playbook.planning.peak import RunSizes
from playbook.planning.simulator import simulate
from playbook.planning.traffic import by_axis, traffic
from playbook.shapes import ModelShape, load
from playbook_book.instruments.measured import SavedActivations

SIZES = {
    "layers": 4, "hidden": 64, "heads": 4, "vocab": 96, "ffn": 96, "gated": True, "activation": "silu", "norm": "rmsnorm",
    "positions": "rotary", "bias": False, "windows": (-1, -1, -1, 0),
}  # fmt: skip
STATE = {"heads": 4, "head_dim": 16, "state": 8, "groups": 2}
RULES = ("mamba2", "delta", "kda", "lightning", "convolution")


def hybrid(rule="delta", **changes):
    return ModelShape(**{**SIZES, "recurrent": {**STATE, "rule": rule}, **changes})


# ---- what autograd keeps, beside transformers' own modules


def kernel(make):
    """A kernel by what it gives and what its source says that it saves, ``make(*tensors)``."""

    class Kernel(Function):
        @staticmethod
        def forward(ctx, *tensors):
            given, saved = make(*tensors)
            ctx.save_for_backward(*saved)
            return given

    return Kernel.apply


def causal_conv1d(x, weight, bias=None, **_):
    """causal_conv1d_interface.py: CausalConv1dFn saves x and the weight, and activates again in backward."""
    return kernel(lambda x, weight: (torch.empty_like(x), (x, weight)))(x, weight)


def gated_delta_rule(q, k, v, g, beta, **_):
    """fla/ops/gated_delta_rule/chunk.py: q and k normalised, their norms, v, sums of g, beta, and A of 64 columns."""

    def make(q, k, v, g, beta):
        row = q.shape[:2]
        sums, inverse = torch.empty(g.shape), torch.empty(*row, v.shape[2], 64, dtype=k.dtype)
        norms = [torch.empty(*row, q.shape[2]) for _ in range(2)]
        return torch.empty(v.shape), (
            torch.empty(q.shape),
            torch.empty(k.shape),
            *norms,
            v.contiguous(),
            sums,
            beta,
            inverse,
        )

    return kernel(make)(q, k, v, g, beta), None


def mamba_split_conv1d_scan_combined(
    zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D, outproj_weight, headdim, ngroups, **_
):
    """mamba_ssm/ops/triton/ssd_combined.py: the projection's output, the scan's, and the statistics of its norm."""

    def make(zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D, outproj_weight):
        batch, seq, _ = zxbcdt.shape
        scanned, rstd = torch.empty(batch, seq, len(dt_bias), headdim), torch.empty(batch * seq * ngroups)
        return torch.empty(batch, seq, outproj_weight.shape[0]), (
            zxbcdt,
            conv1d_weight,
            scanned,
            A,
            D,
            rstd,
            outproj_weight,
        )

    return kernel(make)(zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D, outproj_weight)


def gated_norm(self, x, gate):
    """fla/modules/fused_norm_gate.py: x, the gate, and a number for each row."""
    make = lambda x, gate, weight: (torch.empty_like(x), (x, gate, weight, torch.empty(x.shape[:-1])))  # noqa: E731
    return kernel(make)(x, gate, self.weight)


def norm(self, x):
    """As CUDA fuses it; PyTorch's own on CPUs keeps a copy more."""
    return TORCH_OPS.rms_norm(
        x, 1 + self.weight if type(self).__name__.startswith("Qwen3_5") else self.weight, 1e-6
    )


KERNELS = {
    "causal_conv1d_fn": causal_conv1d, "torch_chunk_gated_delta_rule": gated_delta_rule,
    "mamba2_split_conv1d_scan_combined": mamba_split_conv1d_scan_combined,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("qwen3_5_text", {"linear_num_value_heads": 8, "linear_num_key_heads": 4, "linear_key_head_dim": 16,
                          "linear_value_head_dim": 24}),
        ("olmo_hybrid", {"linear_allow_neg_eigval": False}),
        ("bamba", {"attn_layer_indices": [3], "mamba_n_heads": 8, "mamba_n_groups": 2}),
        ("lfm2", {"full_attn_idxs": [3]}),
    ],
)  # fmt: skip
def test_a_block_keeps_what_autograd_saves_in_transformers_own(kind, sizes, monkeypatch):
    """With each kernel saving what its source saves; all but the kernels is transformers' and autograd's."""
    sizes |= {
        "num_hidden_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "head_dim": 32, "intermediate_size": 320,
        "num_key_value_heads": 2, "vocab_size": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "use_cache": False,
    }  # fmt: skip
    made = transformers.AutoConfig.for_model(kind, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(made, attn_implementation="sdpa").train()
    for name, instead in KERNELS.items():
        monkeypatch.setattr(sys.modules[type(model).__module__], name, instead, raising=False)
    for module in model.modules():
        if type(module).__name__.endswith(("RMSNorm", "RMSNormGated")):
            own = gated_norm if type(module).__name__.endswith("Gated") else norm
            module.forward = own.__get__(module)
    tokens = torch.randint(512, (2, 128))
    with SavedActivations(model, inputs=(tokens,)) as saved:
        model(input_ids=tokens, labels=tokens)
    of_block = [bytes for name, bytes in saved.by_module(3).items() if name == "model.layers.1"]
    shape = load({**made.to_dict(), "architectures": [type(model).__name__]})
    sizes = RunSizes(Job(shape, Layout(micro_batch=2), seq=128, recipe="fp32", device="cpu"))
    # exp(A) and norms of 1 + weight are as large as a weight: no activations, which is all that is left.
    planned = sum(term.value for term in sizes.saved(shape.kind(1), "none"))
    assert planned <= of_block[0] <= planned + 4 * (2 * 128 + 8 + 8)


def test_a_gate_keeps_three_tensors_more():
    """Attention's output before it, itself before and after its activation; queries without norms are no view of it."""
    found = []
    for gate, normed in ((False, True), (True, True), (True, False)):
        shape = hybrid(recurrent={**STATE, "rule": "delta", "gate": gate}, qk_norm=normed)
        found.append(predict(shape, Layout(), seq=32, recipe="fp32", device="cpu").stages[0].activations)
    without = predict(hybrid(), Layout(), seq=32, recipe="fp32", device="cpu").stages[0].activations
    one = 4 * 32 * 64
    assert found[1] - found[0] == 3 * one
    assert found[2] - without == 2 * one


# ---- what is computed


def megatron(shape, tokens, seq):
    """FLOPs of a step as Megatron-LM's training.py counts them (``gdn_layer_flops``, ``mamba_layer_flops``; attention is
    counted whole here, and half there)."""
    h, of = shape.hidden, shape.recurrent
    keys, values = of.groups * of.state, of.heads * of.head_dim
    if of.rule == "delta":
        layer = h * (2 * keys + 2 * values + 2 * of.heads) + of.kernel * (2 * keys + values)
        layer = 2 * (layer + of.heads * of.head_dim**2 * 4 + h * values)
    else:
        layer = 2 * h * (2 * values + 2 * keys + of.heads) + 7 * values * of.state + 2 * values * h
    attention = (
        2 * h * shape.heads * shape.qk_dim * (3 if of.gate else 2) + 4 * h * shape.n_kv_heads * shape.qk_dim
    )
    attention += 4 * seq * shape.heads * shape.qk_dim
    states = sum(n for kind, n in shape.blocks().items() if kind.recurrent)
    each = states * layer + (shape.layers - states) * attention + 6 * shape.layers * h * shape.ffn_dim
    return 3 * tokens * (each + 2 * h * shape.vocab)


@pytest.mark.parametrize(("rule", "gate"), [("delta", True), ("delta", False), ("mamba2", False)])
def test_flops_are_those_that_megatron_counts(rule, gate):
    shape = hybrid(rule, recurrent={**STATE, "rule": rule, "state": 16, "gate": gate})
    assert step_flops(shape, 2, 48).model == megatron(shape, 96, 48)


@pytest.mark.parametrize("rule", RULES)
def test_only_attention_grows_with_the_sequence(rule):
    """A step of as many tokens in longer samples: blocks with a state cost and keep the same."""
    shape = hybrid(rule, windows=(-1,), positions="none", max_seq=1 << 16)
    short, long = (step_flops(shape, 8 * 64 // seq, seq) for seq in (64, 512))
    assert short.model == long.model
    cluster = load_cluster("h100-8", gpus=1)
    runs = [simulate(shape, Layout(micro_batch=b), cluster, seq=seq) for b, seq in ((64, 1024), (1, 65536))]
    assert runs[0].seconds == pytest.approx(runs[1].seconds, rel=0.02)
    kept = [
        predict(shape, Layout(micro_batch=b), seq=seq).stages[0].activations
        for b, seq in ((64, 1024), (1, 65536))
    ]
    assert kept[0] == kept[1]


@pytest.mark.parametrize("rule", RULES)
def test_full_recomputation_computes_all_of_a_block_again(rule):
    shape = hybrid(rule)
    forward = step_flops(shape, 2, 32)
    again = step_flops(shape, 2, 32, "full")
    assert again.recomputed == forward.forward - 2 * 64 * shape.hidden * shape.vocab
    assert (
        step_flops(shape, 2, 32, "selective").recomputed == 4 * 64 * 32 * shape.hidden
    )  # of the block that attends


# ---- layouts


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        ({"cp": 2}, "cp must be 1 for recurrent layers, whose states go from token to token, got 2"),
        ({"tp": 4}, r"tp must divide recurrent.groups = 2 \(1, 2\), got 4"),
    ],
)
def test_layouts_that_states_do_not_allow(layout, sentence):
    with pytest.raises(LayoutError, match=sentence):
        Layout(**layout).check(hybrid())


@pytest.mark.parametrize("rule", RULES)
def test_tensor_parallel_ranks_share_a_state_by_heads(rule):
    """Two ranks have all weights once, but for what is whole on both: norms, latents, the norm of a head's output."""
    shape = hybrid(rule)
    one, two = (predict(shape, Layout(tp=tp, sp=tp > 1), seq=32).stages[0] for tp in (1, 2))
    whole = 2 * 64 * 4 + 64  # norms of blocks, the last norm
    whole += 3 * 2 * 16 * 64 * (rule == "kda") + 3 * 16 * (rule in ("delta", "kda"))
    assert 2 * two.parameters == one.parameters + 2 * whole  # bytes
    sent = by_axis(traffic(shape, Layout(tp=2, sp=True), 32))
    full = by_axis(traffic(ModelShape(**{**SIZES, "windows": ()}), Layout(tp=2, sp=True), 32))
    assert sent["tp"] == full["tp"] or rule in (
        "delta",
        "kda",
    )  # latents enter too, and gradients of norms are sums


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"rule": "rwkv"},
            "recurrent.rule must be one of mamba2, delta, kda, lightning, convolution, got 'rwkv'",
        ),
        ({"groups": 3}, r"recurrent.groups must divide recurrent.heads = 4 \(1, 2, 4\), got 3"),
        ({"state": 0}, "recurrent.state must be at least 1, got 0"),
        ({"dim": 1}, "dim"),
    ],
)
def test_states_that_cannot_be(changes, sentence):
    with pytest.raises(ShapeError, match=sentence):
        hybrid(recurrent={**STATE, "rule": "delta", **changes})


def test_a_model_with_states_is_planned_and_not_trained():
    with pytest.raises(ShapeError, match="this model can be planned, but not trained: windows is"):
        Transformer(hybrid())
    assert load(hybrid().sizes()) == hybrid()
