"""Scaling laws: the loss of a model of N parameters after D tokens, and how to spend a compute budget C = 6·N·D.

Kaplan et al. 2020 (arXiv 2001.08361) and Hoffmann et al. 2022 (arXiv 2203.15556, "Chinchilla") measured such laws;
Besiroglu et al. 2024 (arXiv 2404.10102) fitted Hoffmann's again, and Pearce & Song 2024 (arXiv 2406.12907) explain most
of the difference between Kaplan's and Hoffmann's: Kaplan does not count the embedding. A law holds for one data set,
tokenizer and recipe; losses are in nats per token, and those of two papers do not compare.
:mod:`playbook_book.scaling_fits` fits laws to measurements. Standard library only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from playbook._checks import check_fields, check_positive, unknown
from playbook.errors import ConfigError
from playbook.planning.flops import step_flops
from playbook.shapes import ModelShape
from playbook_book.training_time import FLOPS_PER_PARAMETER

#: FLOPs per parameter and token where full recomputation adds a forward pass.
FLOPS_WITH_RECOMPUTATION = FLOPS_PER_PARAMETER + 2
#: Which parameters N counts: all; those that are multiplied by (no embedding unless it is the head, no positions); or
#: Kaplan's, with neither embedding nor head.
COUNTS = ("all", "products", "body")
#: 10^15 FLOP/s for a day, the unit of Kaplan et al.
PETAFLOP_DAY = 1e15 * 24 * 3600


@dataclass(frozen=True)
class Allocation:
    """What a run spends its compute on: N ``parameters``, D ``tokens``."""

    parameters: float
    tokens: float

    def __post_init__(self) -> None:
        for name in ("parameters", "tokens"):
            object.__setattr__(self, name, check_positive(name, getattr(self, name), ConfigError))

    @classmethod
    def at_ratio(cls, compute: float, ratio: float = 20.0) -> Allocation:
        """``compute`` FLOPs at ``ratio`` tokens per parameter: N = √(C/6r). The 20 is Chinchilla's 1.4T / 70B."""
        share = check_positive("compute", compute, ConfigError) / FLOPS_PER_PARAMETER
        parameters = math.sqrt(share / check_positive("ratio", ratio, ConfigError))
        return cls(parameters, share / parameters)

    @property
    def compute(self) -> float:
        """C = 6·N·D, in FLOPs."""
        return FLOPS_PER_PARAMETER * self.parameters * self.tokens

    @property
    def ratio(self) -> float:
        """Tokens per parameter, D/N."""
        return self.tokens / self.parameters


@dataclass(frozen=True)
class Law:
    """L(N, D) = E + A/N^α + B/D^β, in nats per token (Hoffmann et al. 2022, section 3.3).

    ``entropy`` is E, the loss that no model and no amount of data goes below; ``a`` and ``alpha`` are A and α, what a
    finite model adds; ``b`` and ``beta`` are B and β, what finite data add. Raises :class:`ConfigError` unless all are
    above 0.
    """

    entropy: float
    a: float
    b: float
    alpha: float
    beta: float
    source: str = ""

    def __post_init__(self) -> None:
        check_fields(self, ConfigError)
        for name in ("entropy", "a", "b", "alpha", "beta"):
            check_positive(name, getattr(self, name), ConfigError)

    def loss(self, parameters: float, tokens: float) -> float:
        """The loss of ``parameters`` trained on ``tokens``, in nats per token."""
        run = Allocation(parameters, tokens)
        of_size, of_data = math.pow(run.parameters, self.alpha), math.pow(run.tokens, self.beta)
        return self.entropy + self.a / of_size + self.b / of_data

    @property
    def exponents(self) -> tuple[float, float]:
        """N grows as C^(β/(α+β)) along the frontier, D as C^(α/(α+β)) (Hoffmann et al. 2022, equation 4)."""
        both = self.alpha + self.beta
        return self.beta / both, self.alpha / both

    def optimum(self, compute: float) -> Allocation:
        """The N and D of least loss for ``compute`` FLOPs: N = G·(C/6)^(β/(α+β)), G = (αA/βB)^(1/(α+β)).

        There α·A/N^α = β·B/D^β: another per cent of compute gains as much in N as in D.
        """
        share = check_positive("compute", compute, ConfigError) / FLOPS_PER_PARAMETER
        scale = (self.alpha * self.a / (self.beta * self.b)) ** (1 / (self.alpha + self.beta))
        parameters = scale * share ** self.exponents[0]
        return Allocation(parameters, share / parameters)

    def cheapest(self, loss: float) -> Allocation:
        """The N and D that reach ``loss`` (nats per token, above E) with least compute: :meth:`optimum` inverted."""
        more = self._reducible(loss)
        for_model, for_data = (share * more for share in self.exponents)
        return Allocation((self.a / for_model) ** (1 / self.alpha), (self.b / for_data) ** (1 / self.beta))

    def tokens_for(self, loss: float, parameters: float) -> float:
        """D with which ``parameters`` reach ``loss``; :class:`ConfigError` where no number of tokens is enough."""
        model = self.a * check_positive("parameters", parameters, ConfigError) ** -self.alpha
        if (rest := self._reducible(loss) - model) <= 0:
            raise ConfigError(
                f"loss must be above {self.entropy + model:.4g}, what {parameters:.4g} parameters reach with "
                f"unlimited data, got {loss}"
            )
        return math.pow(self.b / rest, 1 / self.beta)

    def at_ratio(self, loss: float, ratio: float) -> Allocation:
        """The N and D = ``ratio``·N that reach ``loss``; more tokens per parameter than :meth:`cheapest` over-train."""
        more, r = self._reducible(loss), check_positive("ratio", ratio, ConfigError)
        low, high = -50.0, 200.0  # of ln N; the loss falls as N grows
        while high - low > 1e-13 * max(1.0, abs(high)):
            middle = (low + high) / 2
            reached = self.a * math.exp(-self.alpha * middle) + self.b * (r * math.exp(middle)) ** -self.beta
            low, high = (middle, high) if reached > more else (low, middle)
        parameters = math.exp((low + high) / 2)
        return Allocation(parameters, r * parameters)

    def overtraining(self, shrink: float) -> tuple[float, float]:
        """(tokens, compute) relative to the optimum, for the same loss from ``shrink`` times the optimal parameters.

        With m = ``shrink``: D/D* = ((1 − a·m^−α)/(1 − a))^(−1/β), where a = β/(α+β), and C/C* = m·D/D*. Neither depends
        on the loss. Raises :class:`ConfigError` at and below m = a^(1/α), where no number of tokens is enough.
        """
        share, rest = self.exponents
        left = 1 - share * check_positive("shrink", shrink, ConfigError) ** -self.alpha
        if left <= 0:
            least = share ** (1 / self.alpha)
            raise ConfigError(f"shrink must be above {least:.4g}, where tokens run to infinity, got {shrink}")
        tokens = (left / rest) ** (-1 / self.beta)
        return tokens, shrink * tokens

    def without_embedding(self, parameters: float, embedding: float = 47491.0) -> tuple[float, float]:
        """(compute, exponent) where ``parameters`` *without* the embedding are optimal, both counted as Kaplan counts.

        Pearce & Song 2024 take N = n + ω·n^(1/3) for all parameters, with ω = 47491 (``embedding``) from Hoffmann's
        models. The compute is 6·n·D in FLOPs, the exponent d ln n / d ln(6·n·D). As n grows it tends to β/(α+β), but over
        the sizes that Kaplan measured, 768 to 1.5 billion, it is 0.70 to 0.75 on average, depending on the constants:
        near Kaplan's 0.73, from Hoffmann's form of the law.
        """
        n = check_positive("parameters", parameters, ConfigError)
        omega = check_positive("embedding", embedding, ConfigError)
        total, slope = n + omega * n ** (1 / 3), 1 + omega / 3 * n ** (-2 / 3)
        bend = -2 / 9 * omega * n ** (-2 / 3) / slope  # n·N''/N'
        gain = self.alpha * self.a * total ** (-self.alpha - 1) * n * slope
        tokens = (self.beta * self.b / gain) ** (1 / self.beta)
        exponent = 1 / (1 + ((self.alpha + 1) * n * slope / total - 1 - bend) / self.beta)
        return FLOPS_PER_PARAMETER * n * tokens, exponent

    def _reducible(self, loss: float) -> float:
        if check_positive("loss", loss, ConfigError) <= self.entropy:
            raise ConfigError(f"loss must be above the law's entropy, {self.entropy:g}, got {loss}")
        return loss - self.entropy


#: Hoffmann et al. 2022, appendix D.2, as printed; with the digits of the paper's TeX source; and fitted to 240 points
#: read off a figure of theirs (Besiroglu et al. 2024), standard errors E 0.03, A 125, B 1293, α 0.02, β 0.02.
HOFFMANN = Law(1.69, 406.4, 410.7, 0.34, 0.28, "Hoffmann et al. 2022")
HOFFMANN_UNROUNDED = Law(1.6934, 406.4, 410.7, 0.3392, 0.2849, "Hoffmann et al. 2022, unrounded")
BESIROGLU = Law(1.8172, 482.01, 2085.43, 0.3478, 0.3658, "Besiroglu et al. 2024")
#: Exponents (of N, of D) of the three approaches: Hoffmann et al. 2022, table 2; Kaplan et al. 2020, table 6.
PUBLISHED_EXPONENTS: dict[str, tuple[float, float]] = {
    "Hoffmann 1: lowest training curve": (0.50, 0.50),
    "Hoffmann 2: IsoFLOP profiles": (0.49, 0.51),
    "Hoffmann 3: parametric fit": (0.46, 0.54),
    "Kaplan": (0.73, 0.27),
}


def kaplan_loss(parameters: float, tokens: float) -> float:
    """Kaplan's L(N, D) = ((N_c/N)^(α_N/α_D) + D_c/D)^α_D in nats per token, N without embeddings (2020, table 2)."""
    run = Allocation(parameters, tokens)
    return float(((6.4e13 / run.parameters) ** (0.076 / 0.103) + 1.8e13 / run.tokens) ** 0.103)


def kaplan_optimum(compute: float) -> Allocation:
    """Kaplan's N = 1.3e9·C_min^0.73 (table 6; C_min in PF-days, N without embeddings) and D = C/6N for ``compute`` FLOPs.

    C_min is the compute with small batches; at the critical batch size a run needs twice as much, so C_min = C/2: as
    Hoffmann et al. 2022, appendix D.4, read it, who name 4.68B for 10^21 FLOPs.
    """
    days = check_positive("compute", compute, ConfigError) / 2 / PETAFLOP_DAY
    parameters = 1.3e9 * days**0.73
    return Allocation(parameters, compute / (FLOPS_PER_PARAMETER * parameters))


def counted_parameters(shape: ModelShape, count: str = "all") -> int:
    """N as one of :data:`COUNTS` has it, of experts only those that a token meets."""
    if count not in COUNTS:
        raise ConfigError(unknown("count", str(count), COUNTS))
    parts = shape.parameters()
    left_out = {"all": (), "products": ("positions",), "body": ("positions", "head")}
    table = parts["embedding"] if count == "body" or (count == "products" and not shape.tied) else 0
    return shape.active_parameters - table - sum(parts.get(part, 0) for part in left_out[count])


def flops_coefficient(shape: ModelShape, seq: int, recompute: str = "none", count: str = "all") -> float:
    """What takes the place of the 6 in 6·N·D: exact FLOPs of a step per token and parameter, from ``step_flops``.

    Attention over all ``seq`` tokens, the head and recomputation are among the FLOPs; ``count`` is one of :data:`COUNTS`.
    """
    return step_flops(shape, 1, seq, recompute).hardware / seq / counted_parameters(shape, count)
