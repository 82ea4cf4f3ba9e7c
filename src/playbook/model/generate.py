"""Text out of a model: one token at a time, each drawn from the model's own prediction."""

from __future__ import annotations

import torch
from torch import Tensor

from playbook.errors import ConfigError
from playbook.model.transformer import Transformer


@torch.no_grad()
def generate(
    model: Transformer,
    prompt: Tensor,
    new_tokens: int,
    *,
    temperature: float = 1.0,
    seed: int = 0,
    context: int | None = None,
) -> Tensor:
    """The prompt (b, s) and ``new_tokens`` more: (b, s + new_tokens).

    The logits are divided by ``temperature`` before the softmax: below 1 the likely becomes likelier, 0 always takes
    the likeliest. The model sees the last ``context`` tokens, at most ``max_seq`` (filled in): a model trained on short
    samples is lost at positions it has never seen. Dropout is off while it runs. Nothing is cached, so every new token
    costs a forward pass over that context. Draws come from ``seed`` on the CPU: the same on every device. Raises
    ConfigError for an empty prompt, a negative number of tokens or temperature, or a context below 1.
    """
    context = min(model.shape.max_seq if context is None else context, model.shape.max_seq)
    _check(prompt, new_tokens, temperature, context)
    generator = torch.Generator().manual_seed(seed)
    was_training = model.training
    model.eval()
    tokens = prompt
    for _ in range(new_tokens):
        logits = model(tokens[:, -context:])[:, -1]  # (b, vocab): what comes after the last token
        tokens = torch.cat([tokens, _choose(logits, temperature, generator)], dim=1)
    model.train(was_training)
    return tokens


def _choose(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """One token per row: (b, vocab) -> (b, 1)."""
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    weights = torch.softmax(logits.float() / temperature, dim=-1)
    return torch.multinomial(weights.cpu(), 1, generator=generator).to(logits.device)


def _check(prompt: Tensor, new_tokens: int, temperature: float, context: int) -> None:
    if prompt.dim() != 2 or prompt.shape[1] == 0:
        raise ConfigError(
            f"prompt has shape {tuple(prompt.shape)}, but must be (samples, tokens) with at least one token"
        )
    for field, value in (("new_tokens", new_tokens), ("temperature", temperature)):
        if value < 0:
            raise ConfigError(f"{field} is {value}, but must be at least 0")
    if context < 1:
        raise ConfigError(f"context is {context}, but must be at least 1")
