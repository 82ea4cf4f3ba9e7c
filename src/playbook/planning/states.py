"""Bytes that training keeps for each parameter, whatever the batch: weights, gradients, optimizer.

Adam keeps two fp32 averages per parameter (8 bytes). Mixed precision computes in bf16 and keeps an fp32
master copy that the optimizer updates, because a small update added to a bf16 weight is rounded away
(Micikevicius et al. 2017, arXiv 1710.03740; ZeRO, arXiv 1910.02054, section 3.1, counts the same 16 bytes).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BytesPerParameter:
    """Bytes per parameter of each kind of state."""

    parameters: int
    gradients: int
    master: int
    optimizer: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.parameters + self.gradients + self.master + self.optimizer


#: Training precisions by name, with Adam.
PRECISIONS: dict[str, BytesPerParameter] = {
    "fp32": BytesPerParameter(parameters=4, gradients=4, master=0, optimizer=8),
    "bf16-mixed": BytesPerParameter(parameters=2, gradients=2, master=4, optimizer=8),
    # Each backward pass leaves a bf16 gradient, which is then added to an fp32 one: both exist at once.
    "bf16-mixed-fp32-grads": BytesPerParameter(parameters=2, gradients=6, master=4, optimizer=8),
    # Megatron-LM's main gradients: a hook adds each bf16 gradient as soon as it is made, then frees it.
    "bf16-mixed-main-grads": BytesPerParameter(parameters=2, gradients=4, master=4, optimizer=8),
}
