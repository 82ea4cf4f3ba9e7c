"""GPT-2, Llama, Mixtral, Qwen 3 and DeepSeek-V3 as Hugging Face builds them, with our weights: the same logits."""

import dataclasses

import pytest
import torch
from helpers import DEEPSEEK, GPT, LLAMA, MIXTRAL, tokens

from playbook.model.transformer import Transformer
from playbook.training.convert import write_folder
from playbook_book.bench.experts import looped

transformers = pytest.importorskip("transformers")


def experts(number, top_k, qwen=False):
    """Mixtral's experts; or Qwen 3's, whose weights do not add up to 1."""
    moe = {"experts": number, "top_k": top_k, "ffn": 20, "normalized": not qwen}
    return MIXTRAL.replace(moe=moe, qk_norm=qwen)


def deepseek(scale, q_rank):
    """Latent attention, sigmoid scores with biases, groups of experts, a shared expert, a dense first layer."""
    return DEEPSEEK.replace(
        moe=dataclasses.replace(DEEPSEEK.moe, scale=scale),
        mla=dataclasses.replace(DEEPSEEK.mla, q_rank=q_rank),
    )


SHAPES = {
    "GPT2LMHead": [GPT],
    "LlamaForCausalLM": [LLAMA],
    "MixtralForCausalLM": [experts(5, 2), experts(8, 1), experts(4, 4)],
    "Qwen3MoeForCausalLM": [experts(5, 2, True), experts(8, 1, True), experts(4, 4, True)],
    "DeepseekV3ForCausalLM": [deepseek(scale, rank) for scale in (1.0, 2.5) for rank in (10, None)],
}


def with_large_weights(shape) -> Transformer:
    """So that routers decide: with the usual deviation of 0.02 all experts score alike."""
    model = Transformer(shape)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.mul_(5)
        for name, bias in model.named_buffers():
            if (
                name.endswith("router.bias") and shape.moe.scores == "sigmoid"
            ):  # biases that change the choice
                bias.copy_(torch.linspace(-0.2, 0.2, len(bias)))
    return model


def theirs(ours: Transformer, folder):
    """What transformers makes of our weights in a folder of theirs."""
    state = ours.state_dict()

    def fill(boxes):
        for name, offsets, target in boxes:
            box = tuple(slice(at, at + size) for at, size in zip(offsets, target.shape, strict=True))
            target.copy_(state[name.partition("/")[2]][box])

    write_folder(ours.shape, fill, torch.float32, folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder)


@pytest.mark.parametrize(
    ("kind", "number"), [(k, n) for k, found in SHAPES.items() for n in range(len(found))]
)
def test_logits(kind, number, tmp_path):
    shape = SHAPES[kind][number]
    ours = with_large_weights(shape)
    model = theirs(ours, tmp_path / "model")
    assert type(model).__name__.startswith(kind)
    x, _ = tokens(shape, 2, 17)
    torch.testing.assert_close(ours(x), model(x).logits, atol=1e-5, rtol=1e-4)


def test_experts_in_turn_give_the_same():
    ours = with_large_weights(deepseek(2.5, None))
    y = torch.randn(2, 17, ours.shape.hidden, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(looped(ours.blocks[-1].mlp, y), ours.blocks[-1].mlp(y), atol=1e-6, rtol=1e-5)
