"""A training run as a whole: in this process, as one of torchrun's ranks, or on ranks that it launches itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from playbook.errors import ConfigError, PlaybookError
from playbook.instruments.step_costs import StepCosts
from playbook.launch.logs import JsonLog, ManyLogs, end_json_log, open_log, read_json_log
from playbook.shapes import ModelShape
from playbook.training.checks import check_device, check_fit
from playbook.training.config import TrainConfig
from playbook.training.data import Corpus, load_corpus
from playbook.training.guard import SpikeGuard
from playbook.training.replica_check import ReplicaCheck
from playbook.training.saving import Checkpoints, Saving
from playbook.training.trainer import Log, StepResult, Trainer, default_device, make_trainer

#: Seconds that a rank waits for the others in a collective before it gives up.
PATIENCE = 600.0
_NO_LIMIT = 365 * 86400.0  # of a launch: a training run takes the time that it takes
_EVERY = 5.0  # seconds between two lines of progress


@dataclass(frozen=True)
class Run:
    """What is trained on which text as which config says, and where its numbers go.

    ``data`` is a path, or None for the default corpus; ``logs`` are paths (``launch.logs.open_log``); ``watch`` makes
    further logs where steps are taken, and ``saving`` says when checkpoints are made. ``on_spike`` is a policy of
    ``training.guard``; replicas are compared every ``check_replicas`` steps, and ranks every ``watch_ranks``
    (``instruments.stragglers``). ``announcement`` is said when all is ready.
    ``folder`` is where ranks leave what their launcher wants to know in any case. A rank that has waited ``patience``
    seconds for others gives up.
    """

    shape: ModelShape
    config: TrainConfig
    data: str | None = None
    logs: tuple[str, ...] = ()
    progress: bool = False
    watch: Callable[[], Log] | None = None
    saving: Saving | None = None
    on_spike: str | None = None
    check_replicas: int | None = None
    watch_ranks: int | None = None
    announcement: str = ""
    folder: str | None = None
    patience: float = PATIENCE


@dataclass(frozen=True)
class Outcome:
    """The steps that were taken, the peak of each rank in bytes, and what the first rank sent in a step, by axis.

    ``bytes_sent`` are those of the second step, or the mean of all where steps differ (`StepCosts`); losses and norms of
    replicas that train apart are what ``decentralized/strategies.py`` says. ``first_step`` is the first of them: not 0
    for a run that goes on from a checkpoint. One that ``left`` was asked to, and has saved where it is. Of a step that
    was taken again only the last result is here.
    """

    results: list[StepResult]
    peak_bytes: list[int]
    bytes_sent: dict[str, int] = field(default_factory=dict)
    interrupted: bool = False
    first_step: int = 0
    left: bool = False
    recovered: dict[str, Any] = field(default_factory=dict)


def check(run: Run) -> tuple[Corpus, str]:
    """The text and the device of a run. Raises ConfigError or DataError for what every rank would refuse."""
    from playbook.launch import group

    corpus = load_corpus(run.data)
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", run.config.layout.world_size))
    check_fit(run.shape, corpus, run.config)
    on_cpu = ranks > 1 and group.backend(ranks) == "gloo"
    if on_cpu and run.config.device == "cuda":
        raise ConfigError(
            f"device is 'cuda', but {ranks} ranks here have {group.gpus()} GPUs: leave it out, or say cpu"
        )
    _check_method(run)
    device = run.config.device or ("cpu" if on_cpu else default_device())
    check_device(run.shape, device, ranks)
    return corpus, device


def _check_method(run: Run) -> None:
    """Raise ConfigError for what a method of few messages (``decentralized/methods.py``) cannot have beside it."""
    method = run.config.layout.method
    if method is None:
        return
    if run.saving:
        raise ConfigError(
            f"checkpoint is {run.saving.folder!r}, but data_parallel={method.text} keeps on every rank what a checkpoint "
            "does not hold (what was not sent, or weights and moments of its own): leave one of them out"
        )
    for name, why in (
        ("check_replicas", "replicas differ on purpose"),
        ("on_spike", "each rank has a norm of its own"),
    ):
        if method.apart and (value := getattr(run, name)):
            raise ConfigError(
                f"{name} is {value!r}, but with data_parallel={method.text} {why}: leave one of them out"
            )


def train_here(run: Run) -> Outcome:
    """Train in this process, the only one. Ctrl-C ends the run early."""
    with memory_errors(lambda: "while the model is built: choose a smaller one"):
        trainer = make_trainer(run.shape, load_corpus(run.data), run.config)
    with Requests(run.saving is not None) as requests:
        watchers = _watchers(run, trainer, requests)
        first, costs = trainer.step_count, StepCosts(trainer)
        try:
            results = _steps(run, trainer, ManyLogs([*logs_of(run), *watchers]), run.progress)
        except KeyboardInterrupt as interrupt:
            so_far = getattr(interrupt, "results", [])
            return Outcome(so_far, [costs.peak_bytes], {}, interrupted=True, first_step=first)
    return Outcome(_once(results), [costs.peak_bytes], first_step=first, left=trainer.leaving)


def train_rank(run: Run) -> Outcome:
    """Train as one of many ranks, which torchrun or ``train_on_ranks`` has started. The first one keeps the logs."""
    import torch.distributed as dist

    from playbook import launch
    from playbook.parallel.mesh import Mesh

    requests = Requests(run.saving is not None and run.folder is None, run.folder)
    group = launch.process_group(min(run.patience, _NO_LIMIT))
    with _refusals(run), requests, group as world:
        mesh = Mesh(run.config.layout)
        with memory_errors(lambda: "while the model is built: choose a smaller one"):
            trainer = make_trainer(run.shape, load_corpus(run.data), run.config, mesh)
        watchers = _watchers(run, trainer, requests)
        first, costs = trainer.step_count, StepCosts(trainer)
        logs: list[Log] = logs_of(run) if world.rank == 0 else []
        if world.rank == 0 and run.progress:
            logs.append(ProgressLines(run.config.steps))
        if run.folder:
            logs.append(_Record(Path(run.folder), costs, world.rank))
        results = _steps(run, trainer, ManyLogs([*logs, *watchers]), progress=False)
        peaks: list[Any] = [None] * world.size
        dist.all_gather_object(peaks, costs.peak_bytes)
    return Outcome(_once(results), peaks, costs.bytes_sent, first_step=first, left=trainer.leaving)


def train_on_ranks(run: Run, restarts: int = 0) -> Outcome:
    """Launch the ranks of the layout and train on them; what they print is passed on to stderr.

    Where a rank fails, all begin again from the newest checkpoint, up to ``restarts`` times. Ctrl-C ends them, and the
    run with the steps taken so far. Raises ``launch.RankError`` for a rank that failed, and PlaybookError for what a rank
    refused.
    """
    from playbook import launch

    before: list[StepResult] = []
    with Requests(run.saving is not None) as requests:
        for left in reversed(range(restarts + 1)):
            try:
                outcome = _launch(run, before, requests)
                kept = [result for result in before if result.step < outcome.first_step]
                first = kept[0].step if kept else outcome.first_step
                return replace(outcome, results=kept + outcome.results, first_step=first)
            except launch.RankError as error:
                if not left or requests.asked():
                    raise
                print(
                    f"{error}\nall ranks begin again from the newest checkpoint; restarts left: {left - 1}",
                    file=sys.stderr,
                )
                assert run.saving is not None
                run = replace(run, saving=replace(run.saving, resume=True))
    raise AssertionError("the last attempt returns or raises")


def _launch(run: Run, steps: list[StepResult], requests: Requests) -> Outcome:
    """One attempt. Where it fails, ``steps`` has what was done until then in the place of what it repeated."""
    from playbook import launch

    with tempfile.TemporaryDirectory(prefix="playbook-train-") as name:
        folder = Path(name)
        run = replace(run, folder=name)
        requests.pass_on(name)
        outcome = "failed"
        try:
            with contextlib.redirect_stdout(sys.stderr):
                ranks = launch.run(
                    train_rank, run, ranks=run.config.layout.world_size, timeout=_NO_LIMIT, echo="stream"
                )
            return ranks[0].value
        except KeyboardInterrupt:
            outcome = "interrupted"
            return _so_far(folder, run.config.layout.world_size)
        except launch.RankError:
            if (refusal := folder / "refused").exists():
                raise ConfigError(refusal.read_text()) from None
            done = _so_far(folder, run.config.layout.world_size)
            steps[:] = (
                [*(r for r in steps if r.step < done.first_step), *done.results] if done.results else steps
            )
            raise
        finally:
            for path in run.logs:  # rank 0 may have had no time to say how it ended
                end_json_log(path, outcome)


def _steps(run: Run, trainer: Trainer, logs: Log, progress: bool) -> list[StepResult]:
    def cure() -> str:
        return (
            f"at step {trainer.step_count} with micro_batch={trainer.config.micro} and seq={trainer.config.seq} on "
            f"{trainer.device}{f' of rank {trainer.mesh.rank}' if trainer.mesh else ''}: make one of them smaller, or "
            "recompute activations (--recompute full)"
        )

    with memory_errors(cure):
        return trainer.run(logs, progress)


def _watchers(run: Run, trainer: Trainer, requests: Requests) -> list[Log]:
    """What looks after each step, in this order; a run that is to go on from a checkpoint does so first."""
    found: list[Log] = []
    saves = Checkpoints(run.saving, trainer, requests.asked) if run.saving else None
    if run.check_replicas:
        saved = run.saving.every if run.saving else None
        found.append(ReplicaCheck(run.check_replicas, trainer, saved))
    if run.on_spike:
        trainer.guard = guard = SpikeGuard(run.on_spike, trainer, saves)
        found.append(guard)
    if run.watch_ranks:
        from playbook.instruments.stragglers import RankWatch

        found.append(RankWatch(run.watch_ranks, trainer))
    if saves:
        found.append(saves)
    if saves and saves.saving.resume:
        path = saves.resume()
        where = f"resumes after step {trainer.step_count}, from {path}"
        if saves.rank == 0:
            print(where if path else "no checkpoint yet: begins at step 0", file=sys.stderr, flush=True)
    return found


def _once(results: list[StepResult]) -> list[StepResult]:
    """The last result of each step: a run that went back has taken some again."""
    return sorted({result.step: result for result in results}.values(), key=lambda result: result.step)


class Requests:
    """Within, SIGTERM and SIGUSR1 ask a run to save and leave; the second one does what the first would have done before.

    But not to one of torchrun's ranks: a cluster tells every process, and torchrun its ranks once more.
    A launcher passes on to its ranks what it was asked, by a file in their ``folder``: these have no handlers.
    """

    def __init__(self, wanted: bool, folder: str | None = None):
        main = threading.current_thread() is threading.main_thread()
        self.signals = (signal.SIGTERM, signal.SIGUSR1) if wanted and main else ()
        self.file = Path(folder, "leave") if folder else None
        self.before: dict[int, Any] = {}
        self.noted = False

    def __enter__(self) -> Requests:
        self.before = {n: signal.signal(n, self._note) or signal.SIG_DFL for n in self.signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self.before.items():
            signal.signal(number, before)
        self.before = {}

    def _note(self, *_: object) -> None:
        self.noted = True
        for number, before in self.before.items():
            signal.signal(number, signal.SIG_IGN if launched() else before)
        if self.file:
            self.file.touch()

    def pass_on(self, folder: str) -> None:
        """Tell the ranks that look into this folder, from now on."""
        self.file = Path(folder, "leave")
        if self.noted:
            self.file.touch()

    def asked(self) -> bool:
        """Whether it was asked for."""
        return self.noted or bool(self.file and self.file.exists())


def logs_of(run: Run) -> list[Log]:
    """The logs that a run keeps, once its announcement is made."""
    more = run.saving is not None and run.saving.resume
    logs = [open_log(path, more) for path in run.logs] + ([run.watch()] if run.watch else [])
    if run.announcement:
        print(run.announcement, file=sys.stderr, flush=True)
    return logs


@contextlib.contextmanager
def memory_errors(cure: Callable[[], str]) -> Iterator[None]:
    """Turn any way of running out of memory into one sentence: when it happened, and what helps."""
    import torch

    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch's own are RuntimeErrors, on a CPU without a class
        known = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not known and "allocate memory" not in str(error):
            raise
        raise ConfigError(f"out of memory {cure()}") from error


@contextlib.contextmanager
def _refusals(run: Run) -> Iterator[None]:
    """Leave the sentence of an error that the user can act on where the launcher finds it."""
    try:
        yield
    except PlaybookError as error:
        if run.folder:
            part = Path(run.folder, f"refused-{os.getpid()}")
            with contextlib.suppress(OSError):  # the disk is full
                part.write_text(str(error))
                part.rename(part.with_name("refused"))
        raise


class ProgressLines:
    """A log that tells on stderr how far a run is, a line every few seconds: for ranks, which have no terminal."""

    def __init__(self, steps: int):
        self.steps, self.told = steps, time.monotonic()

    def start(self, header: dict[str, Any]) -> None:
        pass

    def step(self, record: dict[str, Any]) -> None:
        now, done = time.monotonic(), record["step"] + 1
        if done not in (1, self.steps) and now < self.told + _EVERY:
            return
        self.told = now
        speed = f"{record['tokens'] / record['seconds']:,.0f} tokens/s"
        print(f"step {done} of {self.steps}: loss {record['loss']:.3f}, {speed}", file=sys.stderr, flush=True)

    def close(self, outcome: str) -> None:
        pass


class _Record:
    """What the launcher of a rank wants to know if the run ends early: rank 0's steps, and each rank's peak."""

    def __init__(self, folder: Path, costs: StepCosts, rank: int):
        self.costs, self.path, self.told = costs, folder / f"{rank}.json", 0
        self.steps = JsonLog(folder / "steps.jsonl") if rank == 0 else None

    def start(self, header: dict[str, Any]) -> None:
        pass

    def step(self, record: dict[str, Any]) -> None:
        if self.steps:
            self.steps.step(record)
        if self.costs.peak_bytes != self.told:
            self.told = self.costs.peak_bytes
            part = self.path.with_suffix(".part")
            part.write_text(json.dumps({"peak": self.told, "sent": self.costs.bytes_sent}))
            part.replace(self.path)

    def close(self, outcome: str) -> None:
        if self.steps:
            self.steps.close(outcome)


def _so_far(folder: Path, ranks: int) -> Outcome:
    steps = folder / "steps.jsonl"
    records = read_json_log(steps) if steps.exists() else []
    results = [StepResult(**{k: v for k, v in r.items() if k != "event"}) for r in records]
    told = [json.loads(path.read_text()) for r in range(ranks) if (path := folder / f"{r}.json").exists()]
    sent = told[0]["sent"] if told else {}
    first = results[0].step if results else 0
    return Outcome(_once(results), [rank["peak"] for rank in told], sent, interrupted=True, first_step=first)


def launched() -> bool:
    """Whether this process is a rank already."""
    return "RANK" in os.environ
