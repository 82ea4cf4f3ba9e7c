"""What a training run is told: one frozen dataclass, checked before anything is built."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from playbook._checks import check_fields, divisors, told
from playbook.errors import ConfigError, LayoutError
from playbook.layout import Layout, recomputed
from playbook.layout.fields import MASTERS, MOMENTS, OPTIMIZERS
from playbook.layout.stages import check_microbatches
from playbook.layout.tokens import OF_DOCUMENTS
from playbook.precision.recipes import load_fp8
from playbook.registry import lab
from playbook.training.loss_scale import DYNAMIC, check_scale

DTYPES = ("float32", "bfloat16", "float16")
ATTENTION = ("sdpa", "reference")
KERNELS = ("torch", "fused")
DOCUMENTS = ("joined", "packed")
#: The largest number of steps, samples or tokens.
MOST = 2**31 - 1


@dataclass(frozen=True)
class TrainConfig:
    """Sizes are samples for the batches and tokens for ``seq``; learning rates are per step of AdamW.

    In ``weights`` of float32 another ``dtype`` is autocast's; in 16 bits the optimizer keeps masters. In float16 the loss
    is scaled by ``loss_scale``, a number, or dynamic: from ``initial_loss_scale`` on, doubled by ``loss_scale_window``
    steps in a row without overflow, halved by one that overflows and is skipped. What is None is filled in. Micro-batches
    and recomputation may be said here or in the layout; afterwards both say the same. Raises ConfigError for what cannot
    run.
    """

    steps: int = told(200, "optimizer steps", most=MOST)
    global_batch: int = told(16, "samples per optimizer step", most=MOST)
    micro_batch: int | None = told(None, "samples per pass (default: a rank's; in a pipeline 1)", most=MOST)
    seq: int = told(256, "tokens per sample", most=MOST)
    documents: str = told(
        "joined", "windows of one long text, or its documents packed into rows", choices=DOCUMENTS
    )
    lr: float = told(1e-3, "peak learning rate", least=0)
    min_lr: float | None = told(None, "learning rate at the end (default: a tenth of the peak)", least=0)
    warmup: int | None = told(None, "warm-up steps (default: a twentieth of the steps)", least=0, most=MOST)
    weight_decay: float = told(0.1, "AdamW's decay of matrices", least=0)
    beta1: float = told(0.9, "how much of AdamW's first moment stays", least=0, below=1)
    beta2: float = told(0.95, "how much of its second moment stays", least=0, below=1)
    grad_clip: float = told(1.0, "largest gradient norm; 0 turns clipping off", least=0)
    dtype: str = told("float32", "what matrix products run in", choices=DTYPES)
    recompute: str | None = told(None, "what is computed again (default: the layout's, none)")
    attention: str = told("sdpa", "fused kernels, or the formula written out", choices=ATTENTION)
    seed: int = told(0, "of weights, data order and dropout", least=0, most=MOST)
    device: str | None = told(None, "cpu or cuda (default: cuda when there is one)")
    layout: Layout = dataclasses.field(default_factory=Layout)
    weights: str = told("float32", "or the 16 bits of dtype, with masters in the optimizer", choices=DTYPES)
    optimizer: str = told("adamw", "or muon, for the matrices of blocks alone", choices=OPTIMIZERS)
    muon_lr: float | None = told(None, "Muon's peak learning rate (default: the same)", least=0)
    offload: bool = told(False, "keep masters and moments in CPU memory")
    compile: bool = told(False, "hand each block to torch.compile")
    kernels: str = told("torch", "norms, activations, attention and loss: PyTorch's or ours", choices=KERNELS)
    fp8: str = told(
        "", "linear layers in FP8: delayed, tensorwise, rowwise, blockwise, mxfp8; FP4: nvfp4, mxfp4"
    )
    moments: str = told("fp32", "format of AdamW's moments; fp8: E4M3 and FP16", choices=tuple(MOMENTS))
    masters: str = told("fp32", "what the masters of 16-bit weights are kept in", choices=MASTERS)
    loss_scale: float | str = told(DYNAMIC, "what the loss is multiplied by in float16: dynamic, or a number")
    initial_loss_scale: float = told(2.0**16, "the first dynamic scale")
    loss_scale_window: int = told(2000, "steps without overflow, then a dynamic scale doubles", most=MOST)

    def __post_init__(self) -> None:
        self._take_from_layout()
        fill(self, "micro_batch", self._default_micro_batch())
        fill(self, "min_lr", self.lr / 10 if isinstance(self.lr, int | float) else 0.0)
        fill(self, "warmup", max(1, self.steps // 20) if isinstance(self.steps, int) else 1)
        check_fields(self, ConfigError)
        recomputed(self.recompute or "none")
        self._check_batch()
        self._check_precision()
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
        fill(self, "recompute", self.layout.recompute)
        if self.layout.recompute != Layout.recompute:
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
        schedule = self.layout.own_schedule
        return 1 if schedule is None else max(1, share // max(1, schedule.microbatches))

    def _check_pipeline(self) -> None:
        try:
            check_microbatches(self.layout, self.grad_acc)
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
            share = f"global_batch={batch}"
            if dp > 1:
                share = f"the {batch // dp} samples of each of dp={dp} ranks"
            raise ConfigError(
                f"micro_batch is {self.micro_batch}, but must divide {share}: one of "
                f"{', '.join(map(str, valid if len(valid) <= 12 else [*valid[:6], '…', *valid[-5:]]))}"
            )
        if self.layout.grad_acc not in (Layout.grad_acc, self.grad_acc):
            raise ConfigError(
                f"grad_acc is {self.layout.grad_acc} in the layout, but global_batch={batch} over dp={dp} ranks in "
                f"micro-batches of {self.micro} makes {self.grad_acc}: leave it out, or change the batch"
            )

    def _check_precision(self) -> None:
        if self.optimizer == "muon" or self.muon_lr is not None or self.layout.muon != Layout.muon:
            lab("muon", "check")(self)
        if self.masters != "fp32" and self.weights == "float32":
            raise ConfigError(f"masters are {self.masters}, but weights of float32 have none: leave it out")
        if self.weights not in ("float32", self.dtype):
            raise ConfigError(
                f"weights are {self.weights}, so dtype must be {self.weights}, too, not {self.dtype}"
            )
        self._check_loss_scale()
        if self.documents == "packed" or self.layout.placement in OF_DOCUMENTS:
            lab("documents", "check")(self)
        if self.layout.method:
            self.layout.method.check_run(self)
        if self.fp8:
            load_fp8(self.fp8)
            self._check_fp8()
        if self.compile and self.layout.tp * self.layout.cp * self.layout.pp > 1:
            raise ConfigError(
                f"compile is on, but blocks talk in the middle with layout {self.layout}: leave it out"
            )
        if self.compile and self.kernels == "fused":
            raise ConfigError("compile is on, but kernels are fused already: take compile or kernels=fused")

    def _check_fp8(self) -> None:
        if self.compile:
            raise ConfigError(f"compile is on, but fp8={self.fp8} has products of its own: leave one out")
        if self.layout.tensor_overlap == "chunked":
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
        return vars(self) | {"layout": self.layout.to_json()}

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
