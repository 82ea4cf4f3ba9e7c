"""What a training run is told: one frozen dataclass, checked before anything is built."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from playbook._checks import divisors
from playbook.errors import ConfigError, LayoutError
from playbook.layout import Layout
from playbook.layout.options import MASTERS, MOMENTS, ParallelOptions
from playbook.layout.stages import check_microbatches
from playbook.precision.recipes import load_fp8
from playbook.training.loss_scale import DYNAMIC, check_scale

DTYPES = ("float32", "bfloat16", "float16")
RECOMPUTE = ("none", "selective", "full")
ATTENTION = ("sdpa", "reference")
WEIGHTS = DTYPES
KERNELS = ("torch", "fused")


@dataclass(frozen=True)
class TrainConfig:
    """Sizes are samples for the batches and tokens for ``seq``; learning rates are per step of AdamW.

    ``dtype`` is what matrix products run in. ``weights`` is what parameters are kept in: in float32 another ``dtype``
    is autocast's; in 16 bits the optimizer keeps fp32 masters, on CPU if ``offload``. In float16 the loss is scaled by
    ``loss_scale``, a number, or dynamic: from ``initial_loss_scale`` on, doubled by ``loss_scale_window`` steps in a
    row without overflow, halved by one that overflows and is skipped. ``compile`` hands every block to torch.compile,
    ``kernels`` are what computes between matrix products: PyTorch's or the book's fused ones. ``layout`` says over how
    many ranks, ``parallel`` how its techniques are carried out. ``fp8`` names the recipe (``precision/recipes.py``) that
    linear layers of blocks multiply by in FP8. A ``micro_batch`` or ``warmup`` of None is
    filled in: all that a rank has of the global batch, or one sample in a pipeline; a twentieth of the steps.
    Micro-batches and recomputation may be said here or in the layout; afterwards both say the same. ``moments`` are what
    AdamW's are kept in: fp32, bf16, or fp8 (the first in E4M3, the second in FP16); ``masters`` those of 16-bit weights.
    Raises ConfigError for what cannot run.
    """

    steps: int = 200
    global_batch: int = 16
    micro_batch: int | None = None
    seq: int = 256
    lr: float = 1e-3
    min_lr: float | None = None  # filled in: a tenth of lr
    warmup: int | None = None
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    grad_clip: float = 1.0  # 0 turns clipping off
    dtype: str = "float32"
    recompute: str = "none"
    attention: str = "sdpa"
    seed: int = 0
    device: str | None = None  # filled in: cuda when there is one
    layout: Layout = dataclasses.field(default_factory=Layout)
    parallel: ParallelOptions = dataclasses.field(default_factory=ParallelOptions)
    weights: str = "float32"
    offload: bool = False
    compile: bool = False
    kernels: str = "torch"
    fp8: str = ""  # an FP8 recipe for the products of linear layers
    moments: str = "fp32"
    masters: str = "fp32"
    loss_scale: float | str = DYNAMIC
    initial_loss_scale: float = 2.0**16
    loss_scale_window: int = 2000

    def __post_init__(self) -> None:
        self._take_from_layout()
        fill(self, "micro_batch", self._default_micro_batch())
        fill(self, "min_lr", self.lr / 10 if isinstance(self.lr, int | float) else 0.0)
        fill(self, "warmup", max(1, self.steps // 20) if isinstance(self.steps, int) else 1)
        for field in ("steps", "global_batch", "micro_batch", "seq", "loss_scale_window"):
            _require(
                self,
                field,
                _is_int(getattr(self, field)) and 1 <= getattr(self, field) < 2**31,
                "a whole number from 1 to 2147483647",
            )
        for field in ("warmup", "seed"):
            ok = _is_int(getattr(self, field)) and 0 <= getattr(self, field) < 2**31
            _require(self, field, ok, "a whole number from 0 to 2147483647")
        for field in ("lr", "min_lr", "weight_decay", "grad_clip"):
            _require(self, field, _is_finite(getattr(self, field)), "a finite number of at least 0")
        for field in ("beta1", "beta2"):
            _require(
                self,
                field,
                _is_finite(getattr(self, field)) and getattr(self, field) < 1,
                "a number from 0 up to, not including, 1",
            )
        for field, choices in (
            ("dtype", DTYPES),
            ("recompute", RECOMPUTE),
            ("attention", ATTENTION),
            ("weights", WEIGHTS),
            ("kernels", KERNELS),
            ("moments", MOMENTS),
            ("masters", MASTERS),
        ):
            _require(
                self, field, getattr(self, field) in choices, f"one of {', '.join(c for c in choices if c)}"
            )
        self._check_batch()
        self._check_precision()
        self._check_sharding()
        self._check_pipeline()
        said = {"micro_batch": self.micro, "grad_acc": self.grad_acc, "recompute": self.recompute}
        object.__setattr__(self, "layout", self.layout.replace(**said))

    def _take_from_layout(self) -> None:
        """Micro-batch and recomputation may be said in the layout; twice is fine if it is the same."""
        if self.layout.micro_batch != Layout.micro_batch:
            fill(self, "micro_batch", self.layout.micro_batch)
            self._agree("micro_batch")
        elif self.layout.grad_acc != Layout.grad_acc and _is_int(self.global_batch):
            micro_batch, rest = divmod(self.global_batch, self.layout.dp * self.layout.grad_acc)
            if not rest:
                fill(self, "micro_batch", micro_batch)
        if self.layout.recompute != Layout.recompute:
            if self.recompute == TrainConfig.recompute:
                object.__setattr__(self, "recompute", self.layout.recompute)
            self._agree("recompute")

    def _agree(self, field: str) -> None:
        mine, other = getattr(self, field), getattr(self.layout, field)
        if mine != other:
            raise ConfigError(f"{field} is {mine!r}, but {other!r} in the layout: give it once")

    def _share(self) -> Any:
        """Samples of one replica; of a batch that cannot be cut, the whole, for the checks to complain of."""
        batch, replicas = self.global_batch, self.layout.dp
        return batch // replicas if _is_int(batch) and batch >= replicas else batch

    def _default_micro_batch(self) -> Any:
        """All that a replica has; one sample in a pipeline, which is the fuller the more micro-batches there are."""
        share = self._share()
        if self.layout.pp == 1 or not _is_int(share):
            return share
        schedule = self.parallel.schedule
        return 1 if schedule is None else max(1, share // max(1, schedule.microbatches))

    def _check_pipeline(self) -> None:
        pp = self.layout.pp
        for field in ("schedule", "stage_layers"):
            if pp == 1 and getattr(self.parallel, field) is not None:
                raise ConfigError(f"{field} is given, but pp is 1: there is no pipeline, make it at least 2")
        try:
            check_microbatches(self.layout, self.grad_acc, self.parallel.schedule)
        except LayoutError as error:
            if not str(error).startswith("grad_acc"):
                raise
            raise LayoutError(
                f"{error}; global_batch={self.global_batch} over dp={self.layout.dp} ranks in micro-batches of "
                f"{self.micro} makes {self.grad_acc}"
            ) from None

    def _check_batch(self) -> None:
        batch, dp = self.global_batch, self.layout.dp
        if batch % dp:
            raise ConfigError(
                f"global_batch is {batch}, but must be a multiple of dp={dp}, a share for each rank"
            )
        if (batch // dp) % self.micro:
            valid = divisors(batch // dp)
            share = (
                f"global_batch={batch}" if dp == 1 else f"the {batch // dp} samples of each of dp={dp} ranks"
            )
            raise ConfigError(
                f"micro_batch is {self.micro_batch}, but must divide {share}: one of "
                f"{', '.join(map(str, valid if len(valid) <= 12 else [*valid[:6], '…', *valid[-5:]]))}"
            )
        if self.layout.grad_acc not in (Layout.grad_acc, self.grad_acc):
            raise ConfigError(
                f"grad_acc is {self.layout.grad_acc} in the layout, but global_batch={batch} over dp={dp} ranks in "
                f"micro-batches of {self.micro} makes {self.grad_acc}: leave it out, or change the batch"
            )

    def _check_sharding(self) -> None:
        if self.parallel.tensor_overlap == "chunked" and not self.layout.sp:
            raise ConfigError(
                "tensor_overlap is 'chunked', which takes gathers of tokens apart: it needs sp in the layout"
            )
        sharded = self.layout.tp * self.layout.cp * self.layout.pp > 1
        if self.compile and sharded:
            raise ConfigError(
                f"compile is on, but blocks talk in the middle with layout {self.layout}: leave it out"
            )

    def _check_precision(self) -> None:
        if self.masters != "fp32" and self.weights == "float32":
            raise ConfigError(f"masters are {self.masters}, but weights of float32 have none: leave it out")
        if self.weights not in ("float32", self.dtype):
            raise ConfigError(
                f"weights are {self.weights}, so dtype must be {self.weights}, too, not {self.dtype}"
            )
        self._check_loss_scale()
        if self.parallel.method:
            self.parallel.method.check_run(self)
        if self.fp8:
            load_fp8(self.fp8)
            self._check_fp8()
        if self.compile and self.kernels == "fused":
            raise ConfigError("compile is on, but kernels are fused already: take compile or kernels=fused")

    def _check_fp8(self) -> None:
        if self.compile:
            raise ConfigError(
                f"compile is on, but fp8={self.fp8} has products of its own: leave one of them out"
            )
        if self.parallel.tensor_overlap == "chunked":
            raise ConfigError(
                f"tensor_overlap is 'chunked', but with fp8={self.fp8} tokens are gathered in FP8, whole: take async"
            )

    def _check_loss_scale(self) -> None:
        check_scale("initial_loss_scale", self.initial_loss_scale)
        if self.loss_scale == DYNAMIC:
            return
        check_scale("loss_scale", self.loss_scale, f", or {DYNAMIC}")
        if self.dtype != "float16":
            raise ConfigError(
                f"loss_scale is {self.loss_scale}, but dtype is {self.dtype}, which needs none: leave it out, or take "
                "float16"
            )

    @property
    def micro(self) -> int:
        """The micro-batch, filled in."""
        assert self.micro_batch is not None
        return self.micro_batch

    @property
    def grad_acc(self) -> int:
        """Micro-batches per optimizer step on each rank: gbs = mbs · grad_acc · dp."""
        return self.global_batch // (self.micro * self.layout.dp)

    def to_json(self) -> dict[str, Any]:
        """All fields, as JSON holds them."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        parallel = {
            field.name: getattr(self.parallel, field.name) for field in dataclasses.fields(self.parallel)
        }
        if self.parallel.schedule is not None:
            parallel["schedule"] = self.parallel.schedule.to_json()
        return {**found, "layout": dataclasses.asdict(self.layout), "parallel": parallel}

    @property
    def autocast(self) -> str:
        """The dtype that autocast casts to; float32 means that nothing is cast."""
        return self.dtype if self.weights == "float32" else "float32"


def fill(config: Any, field: str, value: Any) -> None:
    """Set a field that was left at None, past the freeze."""
    if getattr(config, field) is None:
        object.__setattr__(config, field, value)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


def _require(config: Any, field: str, ok: bool, valid: str) -> None:
    if not ok:
        raise ConfigError(f"{field} is {getattr(config, field)!r}, but must be {valid}")
