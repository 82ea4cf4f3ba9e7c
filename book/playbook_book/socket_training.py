"""Data-parallel training over sockets: a language model in numpy, its gradients averaged by our own all-reduce.

The model is that of Bengio et al. 2003, "A neural probabilistic language model": embed the last few bytes of a text,
one hidden layer with tanh, a softmax over the next byte. All parameters are views of one flat vector, and so are the
gradients, so that a step needs a single all-reduce. No torch.
"""

from __future__ import annotations

import math

import numpy as np

from playbook.collectives.functions import all_reduce
from playbook.collectives.plans import CollectiveError
from playbook.collectives.sockets import SocketGroup
from playbook.seeding import derive_seed
from playbook.text import python_topics

#: Values of a byte, bytes of context, width of an embedding and of the hidden layer.
VOCAB, CONTEXT, EMBEDDING, HIDDEN = 256, 8, 16, 64
SHAPES: dict[str, tuple[int, ...]] = {
    "embedding": (VOCAB, EMBEDDING),
    "hidden.weight": (CONTEXT * EMBEDDING, HIDDEN),
    "hidden.bias": (HIDDEN,),
    "output.weight": (HIDDEN, VOCAB),
    "output.bias": (VOCAB,),
}
PARAMETERS = sum(map(math.prod, SHAPES.values()))


class Model:
    """The network, with its parameters and gradients in two flat vectors; ``p`` and ``g`` are views of them by name."""

    def __init__(self, seed: int = 0, dtype: type[np.floating] = np.float32):
        self.flat, self.gradient = np.zeros(PARAMETERS, dtype), np.zeros(PARAMETERS, dtype)
        self.p, self.g = _views(self.flat), _views(self.gradient)
        rng = np.random.default_rng(derive_seed(seed, "weights"))
        for name, values in self.p.items():
            if values.ndim == 2:
                fan_in = 1 if name == "embedding" else values.shape[0]
                values[:] = rng.standard_normal(values.shape) / np.sqrt(fan_in)

    def loss(self, contexts: np.ndarray, following: np.ndarray) -> float:
        """Mean cross-entropy of the bytes (b,) that follow contexts (b, c); the gradient is overwritten with its own."""
        p, g, b = self.p, self.g, len(following)
        x = p["embedding"][contexts].reshape(b, -1)  # (b, c·e)
        h = np.tanh(x @ p["hidden.weight"] + p["hidden.bias"])  # (b, h)
        logits = h @ p["output.weight"] + p["output.bias"]  # (b, VOCAB)
        logits -= logits.max(axis=1, keepdims=True)
        probabilities = np.exp(logits)
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        loss = -float(np.log(probabilities[np.arange(b), following]).mean())

        d_logits = probabilities
        d_logits[np.arange(b), following] -= 1
        d_logits /= b
        g["output.weight"][:] = h.T @ d_logits
        g["output.bias"][:] = d_logits.sum(axis=0)
        d_h = d_logits @ p["output.weight"].T * (1 - h * h)  # (b, h)
        g["hidden.weight"][:] = x.T @ d_h
        g["hidden.bias"][:] = d_h.sum(axis=0)
        g["embedding"][:] = 0
        d_x = (d_h @ p["hidden.weight"].T).reshape(b, CONTEXT, EMBEDDING)  # (b, c, e)
        np.add.at(g["embedding"], contexts, d_x)
        return loss


def _views(flat: np.ndarray) -> dict[str, np.ndarray]:
    parts = np.split(flat, np.cumsum([math.prod(shape) for shape in SHAPES.values()])[:-1])
    return {name: part.reshape(shape) for part, (name, shape) in zip(parts, SHAPES.items(), strict=True)}


def batch(text: np.ndarray, global_batch: int, seed: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Contexts (B, c) and the bytes that follow them (B,): a function of seed and step alone."""
    rng = np.random.default_rng(derive_seed(seed, f"batch {step}"))
    starts = rng.integers(len(text) - CONTEXT, size=global_batch)
    windows = text[starts[:, None] + np.arange(CONTEXT + 1)]  # (B, c + 1)
    return windows[:, :-1], windows[:, -1]


def train(
    group: SocketGroup,
    steps: int = 20,
    global_batch: int = 64,
    *,
    learning_rate: float = 0.5,
    seed: int = 0,
    dtype: type[np.floating] = np.float32,
) -> tuple[list[float], Model]:
    """Train on Python's own documentation, each rank on its slice of the global batch.

    Returns the losses of all steps, which are means over the global batch, and the model: the same on every rank, bit for
    bit. Raises :class:`CollectiveError` unless the ranks divide the global batch: a mean of means is the mean only of
    equal slices.
    """
    if global_batch % group.size:
        raise CollectiveError(
            f"global_batch must be a multiple of the {group.size} ranks, got {global_batch}"
        )
    text = np.frombuffer(python_topics(), np.uint8)
    model = Model(seed, dtype)
    mine = slice(*(global_batch * rank // group.size for rank in (group.rank, group.rank + 1)))
    losses = []
    for step in range(steps):
        contexts, following = batch(text, global_batch, seed, step)
        loss = np.array([model.loss(contexts[mine], following[mine])], dtype)
        all_reduce(model.gradient, group, op="avg")
        all_reduce(loss, group, op="avg")
        model.flat -= learning_rate * model.gradient
        losses.append(float(loss[0]))
    return losses, model
