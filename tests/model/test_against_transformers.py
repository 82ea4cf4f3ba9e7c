"""GPT-2 and Llama as Hugging Face builds them, with our weights: the same logits. Needs transformers."""

import pytest
import torch
from helpers import GPT, LLAMA, tokens

from playbook.model.transformer import Transformer

transformers = pytest.importorskip("transformers")


def test_llama_logits():
    config = transformers.LlamaConfig(
        vocab_size=LLAMA.vocab, hidden_size=LLAMA.hidden, intermediate_size=LLAMA.ffn, num_hidden_layers=LLAMA.layers,
        num_attention_heads=LLAMA.heads, num_key_value_heads=LLAMA.kv_heads, rms_norm_eps=LLAMA.norm_eps,
        max_position_embeddings=LLAMA.max_seq, tie_word_embeddings=False,
    )  # fmt: skip
    ours, theirs = Transformer(LLAMA), transformers.LlamaForCausalLM(config)
    names = {"attention.q": "self_attn.q_proj", "attention.k": "self_attn.k_proj", "attention.v": "self_attn.v_proj",
             "attention.out": "self_attn.o_proj", "mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj",
             "mlp.down": "mlp.down_proj", "norm1": "input_layernorm", "norm2": "post_attention_layernorm"}  # fmt: skip
    state = {"model.embed_tokens.weight": ours.embedding.weight, "model.norm.weight": ours.final_norm.weight,
             "lm_head.weight": ours.head.weight}  # fmt: skip
    for i, block in enumerate(ours.blocks):
        parameters = dict(block.named_parameters())
        for mine, other in names.items():
            state[f"model.layers.{i}.{other}.weight"] = parameters[f"{mine}.weight"]
    theirs.load_state_dict(state)
    x, _ = tokens(LLAMA, 2, 17)
    torch.testing.assert_close(ours(x), theirs(x).logits, atol=1e-5, rtol=1e-4)


def test_gpt2_logits():
    config = transformers.GPT2Config(
        vocab_size=GPT.vocab, n_embd=GPT.hidden, n_layer=GPT.layers, n_head=GPT.heads, n_positions=GPT.max_seq,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    ours, theirs = Transformer(GPT), transformers.GPT2LMHeadModel(config)
    state = {"transformer.wte.weight": ours.embedding.weight, "lm_head.weight": ours.embedding.weight,
             "transformer.wpe.weight": ours.position_embedding.weight}  # fmt: skip
    for kind in ("weight", "bias"):
        state[f"transformer.ln_f.{kind}"] = getattr(ours.final_norm, kind)
        for i, block in enumerate(ours.blocks):
            a, prefix = block.attention, f"transformer.h.{i}."
            # GPT-2 keeps q, k and v in one matrix, and all its matrices transposed.
            qkv = torch.cat([getattr(m, kind) for m in (a.q, a.k, a.v)])
            state[f"{prefix}attn.c_attn.{kind}"] = _t(qkv)
            state[f"{prefix}attn.c_proj.{kind}"] = _t(getattr(a.out, kind))
            state[f"{prefix}mlp.c_fc.{kind}"] = _t(getattr(block.mlp.up, kind))
            state[f"{prefix}mlp.c_proj.{kind}"] = _t(getattr(block.mlp.down, kind))
            state[f"{prefix}ln_1.{kind}"] = getattr(block.norm1, kind)
            state[f"{prefix}ln_2.{kind}"] = getattr(block.norm2, kind)
    theirs.load_state_dict(state)
    x, _ = tokens(GPT, 2, 17)
    torch.testing.assert_close(ours(x), theirs(x).logits, atol=1e-5, rtol=1e-4)


def _t(x):
    return x.mT if x.dim() == 2 else x
