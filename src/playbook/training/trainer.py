"""The trainer of the whole book: forward, backward, clip, step; the same loop on one device and on many."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.profiler import record_function

from playbook._interrupt import deferred
from playbook.errors import ConfigError
from playbook.model.ops import Ops
from playbook.model.transformer import Transformer
from playbook.parallel.engine import Engine
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import apply_layout
from playbook.registry import lab
from playbook.seeding import derive_seed
from playbook.shapes import load
from playbook.training.checks import check_device, check_fit
from playbook.training.config import TrainConfig
from playbook.training.data import Corpus, TokenBatches, own_tokens
from playbook.training.loss_scale import LossScale
from playbook.training.optimizer import adamw, state_formats, warmup_cosine


class Log(Protocol):
    """Takes one record per step; ``close`` says how the run ended."""

    def start(self, header: dict[str, Any]) -> None: ...
    def step(self, record: dict[str, Any]) -> None: ...
    def close(self, outcome: str) -> None: ...


class Guard(Protocol):
    """Asked of every step, before its update, whether to make it (``training.guard``); what it knows can be saved."""

    def accepts(self, loss: float, norm: float) -> bool: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class StepResult:
    """One optimizer step.

    ``loss`` is the mean over all tokens of the global batch, in nats; ``grad_norm`` the global norm before clipping;
    ``seconds`` includes data, forward, backward and update. ``loss_scale`` is what the loss was multiplied by before
    backward. A step whose gradients overflowed, or that a guard did not accept, was ``skipped``: no weight changed.
    """

    step: int
    loss: float
    grad_norm: float
    lr: float
    seconds: float
    tokens: int
    loss_scale: float = 1.0
    skipped: bool = False


class Trainer:
    """Trains a model on token batches as a TrainConfig says, one optimizer step at a time.

    With a ``mesh`` it is one of many ranks, each with its share of every batch. Instruments stand ``around`` a step.
    """

    def __init__(
        self, model: Transformer, batches: TokenBatches, config: TrainConfig, mesh: Mesh | None = None
    ):
        self.model, self.batches, self.config, self.mesh = model, batches, config, mesh
        self.device = next(model.parameters()).device
        options: dict[str, Any] = {
            "lr": config.lr,
            "betas": (config.beta1, config.beta2),
            "weight_decay": config.weight_decay,
            "offload": config.offload,
            "formats": state_formats(config.moments, config.masters),
            "kernel": model.ops.adamw,
        }
        make = partial(adamw, **options)
        self.engine = apply_layout(model, mesh, make) if mesh else Engine.on_one_device(model, make)
        if config.optimizer == "muon":
            lab("train", "muon")(self.engine, config, **options)
        self.replica = (mesh.index("dp"), mesh.size("dp")) if mesh else (0, 1)
        self.loss_scale: LossScale | None = None
        if config.dtype == "float16":
            given = config.loss_scale, config.initial_loss_scale, config.loss_scale_window
            self.loss_scale = LossScale.named(*given)
        self.around: Callable[[int], AbstractContextManager[object]] = lambda step: nullcontext()
        self.step_count = 0
        #: Batches that were passed over: step ``i`` has the batch ``i + skipped``.
        self.skipped = 0
        #: Whether the run ends after this step, though steps remain.
        self.leaving = False
        self.guard: Guard | None = None

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of what this rank updates; of several, the first."""
        return self.engine.optimizers[0]

    def step(self) -> StepResult:
        """One global batch: gradients, clipping, update. Deterministic in (seed, step)."""
        start = time.perf_counter()
        step, config = self.step_count, self.config
        lr = self._set_learning_rate(step)
        with record_function("data"):
            inputs, targets, positions = self._batch(step)
        self._seed_dropout(step)
        scale = self.loss_scale.value if self.loss_scale else 1.0
        with self.around(step):
            self.engine.zero_grad()
            given = inputs, targets, len(inputs) // config.grad_acc, positions
            loss = self.engine.accumulate(*given, dtype=getattr(torch, config.autocast), loss_scale=scale)
            with record_function("optimizer"):
                norm, updated = self._clip_and_update(loss, scale)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.step_count += 1
        seconds = time.perf_counter() - start
        tokens = self.config.global_batch * self.config.seq
        return StepResult(step, loss.item(), norm, lr, seconds, tokens, scale, not updated)

    def run(self, log: Log | None = None, progress: bool = False) -> list[StepResult]:
        """All the steps of the config, logged as they happen.

        A KeyboardInterrupt ends the run cleanly: the log says so, and the exception carries the results so far in its
        ``results`` attribute.
        """
        results: list[StepResult] = []
        outcome = "failed"
        if log:
            header = {"config": self.config.to_json(), "model": asdict(self.model.shape)}
            log.start({**header, "torch": torch.__version__})
        try:
            for result in self._progress() if progress else self:
                with deferred():  # Ctrl-C does not come between a result and its record
                    results.append(result)
                    if log:
                        log.step(asdict(result))
            for one in self.engine.sets:
                one.wait()  # replicas that have trained apart become one model
            outcome = "left" if self.leaving else "finished"
        except KeyboardInterrupt as interrupt:
            outcome = "interrupted"
            interrupt.results = results  # type: ignore[attr-defined]
            raise
        finally:
            if log:
                log.close(outcome)
        return results

    def __iter__(self) -> Iterator[StepResult]:
        """Steps that remain."""
        while self.step_count < self.config.steps and not self.leaving:
            yield self.step()

    def _progress(self) -> Iterator[StepResult]:
        from tqdm.auto import tqdm

        with tqdm(total=self.config.steps, initial=self.step_count, unit="step", dynamic_ncols=True) as bar:
            for result in self:
                bar.set_postfix(loss=f"{result.loss:.3f}", tokens_s=f"{result.tokens / result.seconds:.0f}")
                bar.update()
                yield result

    def _batch(self, step: int) -> tuple[Tensor, Tensor, Any]:
        """This rank's samples, and of these its tokens."""
        lengths: list[Any]
        inputs, targets, *lengths = self.batches.batch(step + self.skipped, *self.replica)
        if self.device.type == "cuda":  # from pinned memory the host need not wait for the copy
            inputs, targets = inputs.pin_memory(), targets.pin_memory()
        inputs, targets = (t.to(self.device, non_blocking=True) for t in (inputs, targets))
        if lengths:  # of packed documents
            return lab("documents", "own")(inputs, targets, *lengths, self.config.micro, self.mesh)
        if self.mesh is None:
            return inputs, targets, None
        return own_tokens(inputs, targets, self.mesh, self.config.layout.token_placement)

    def _seed_dropout(self, step: int) -> None:
        """Ranks that have the same tokens drop the same elements of them; others, with other tokens, drop others."""
        of = f"dropout {step}"
        for axis in ("dp", "cp", "tp", "pp"):
            index = self.mesh.index(axis) if self.mesh else 0
            if index and (axis != "tp" or self.config.layout.sp):
                of += f" {'replica' if axis == 'dp' else axis} {index}"
        seeded = torch.default_generator if self.device.type == "cpu" else torch  # which notes stack traces
        seeded.manual_seed(derive_seed(self.config.seed, of))

    def _set_learning_rate(self, step: int) -> float:
        c = self.config
        assert c.min_lr is not None
        assert c.warmup is not None
        lr = warmup_cosine(step, peak=c.lr, minimum=c.min_lr, warmup=c.warmup, steps=c.steps)
        for optimizer in self.engine.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
        return lr

    def _clip_and_update(self, loss: Tensor, loss_scale: float) -> tuple[float, bool]:
        """The norm of the gradients of the loss itself, and whether the step was made."""
        norm = self.engine.clip(self.config.grad_clip or float("inf"), loss_scale).item()
        updated = self.loss_scale is None or self.loss_scale.update(norm)
        updated = updated and (self.guard is None or self.guard.accepts(loss.item(), norm))
        if updated:
            self.engine.step()
        else:
            self.engine.skip()
        return norm, updated


def default_device() -> str:
    """``cuda`` when there is one, else ``cpu``."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def make_trainer(shape, corpus: Corpus, config: TrainConfig, mesh: Any = None, kind=Trainer) -> Trainer:
    """Model, batches and trainer from a shape (anything that ``shapes.load`` takes), a corpus and a config.

    Of many ranks each makes its own, with the ``mesh`` of ``config.layout``; ``kind`` is its class.
    Raises ConfigError, before anything large is allocated, for what does not fit together.
    """
    if mesh is None and config.layout.world_size > 1:
        raise ConfigError(f"layout is {str(config.layout)!r}: on many ranks a trainer needs their mesh")
    if mesh is not None and (given := mesh.layout.of_step()) != (own := config.layout.of_step()):
        raise ConfigError(
            f"layout is {str(own)!r} in the config, but {str(given)!r} in the mesh: give both the same"
        )
    shape, device = load(shape), config.device or (default_device() if mesh is None else mesh.device)
    config.layout.check(shape, seq=config.seq)
    check_fit(shape, corpus, config)
    check_device(shape, device, int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    model = Transformer(
        shape,
        attention=config.attention,
        recompute=config.layout.recompute,
        ops=Ops.named(config.kernels),
        seed=config.seed,
        device=device,
        dtype=getattr(torch, config.weights),
    )
    if config.compile:
        compile_blocks(model)
    if config.fp8:
        lab("fp8", "layers")(model, config.fp8, seed=config.seed)
    make = lab("documents", "batches") if config.documents == "packed" else TokenBatches
    batches = make(corpus, config.global_batch, config.seq, config.seed)
    return kind(model, batches, config, mesh)


def compile_blocks(model: Transformer) -> None:
    """Hand each block's forward pass to torch.compile: blocks are alike, so the first one's code serves all.

    The module stays the one that it was: hooks that fetch weights run outside of what is compiled.
    """
    for block in model.blocks:
        block.forward = torch.compile(block.forward)
