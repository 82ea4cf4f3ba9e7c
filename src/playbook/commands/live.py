"""``playbook train --live-recovery``: the launcher keeps the logs, since any rank may die."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from typing import Any

import torch

from playbook.commands.training import Outcome, ProgressLines, Run, launched, logs_of
from playbook.errors import ConfigError
from playbook.launch.logs import ManyLogs
from playbook.recovery import run as recovery
from playbook.recovery.domains import Domains, check


def check_live(run: Run) -> None:
    """Raise ConfigError or LayoutError for what does not go with live recovery."""
    if launched():
        raise ConfigError(
            "live_recovery is on, but replaces ranks that it has launched: start it without torchrun"
        )
    for name, value in (
        ("checkpoint", run.saving and run.saving.folder),
        ("on_spike", run.on_spike),
        ("check_replicas", run.check_replicas),
        ("watch_ranks", run.watch_ranks),
    ):
        if value:
            raise ConfigError(
                f"{name} is {value!r}, but with live recovery no group has the ranks of all replicas: leave one out"
            )
    check(run.shape, run.config)


def train_live(run: Run) -> Outcome:
    """Train on ranks of which a replica may die, and tell what was lost."""
    log = ManyLogs([*logs_of(run), *([ProgressLines(run.config.steps)] if run.progress else [])])
    header = {
        "config": run.config.to_json(),
        "model": dataclasses.asdict(run.shape),
        "torch": torch.__version__,
    }
    log.start(header)
    end = "failed"
    try:
        live = recovery.Live(run.shape, run.config, run.data, run.patience)
        with contextlib.redirect_stdout(sys.stderr):  # what ranks print
            done = recovery.train(live, log)
        end = "interrupted" if done.interrupted else "finished"
    finally:
        log.close(end)
    history, replicas = done.history, Domains(run.config.layout).replicas
    lost = [event for event in history.events if event.kind == "lost"]
    if lost:
        without = sum(len(members) < replicas for members in history.members)
        print(
            f"replicas lost: {len(lost)}; steps in flight that were taken again: {history.discarded}; "
            f"steps with fewer replicas: {without}; tokens lost: {done.lost_tokens:,}",
            file=sys.stderr,
        )
    told: dict[str, Any] = {
        "replicas": [list(members) for members in history.members],
        "lost_tokens": done.lost_tokens,
        "discarded_steps": history.discarded,
        "recoveries": [dataclasses.asdict(event) for event in history.events],
        "pids": done.pids,
    }
    return Outcome(
        done.results, done.peak_bytes, done.bytes_sent, interrupted=done.interrupted, recovered=told
    )
