"""``playbook train`` with a fault in it, many times in one process: what ``python -m benchmarks.faults`` drives.

A request is a line of JSON on standard input: the ``arguments`` of the command, its ``fault`` (or null), files for what
it prints (``out``, ``err``). The answer is a line with the status that the command would have ended with. The ranks of
all requests come from one warm process, so that a run of twenty steps takes less than a second.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from functools import partial
from typing import Any

from benchmarks.faults.injector import Fault, Injector
from benchmarks.faults.live import Assassin
from playbook import cli
from playbook._interrupt import STATUS, leave_at_once
from playbook.commands import training
from playbook.recovery import run as recovery

_train_rank, _Live = training.train_rank, recovery.Live


def train_rank(fault: Fault, run: training.Run) -> training.Outcome:
    """One rank of a run that has a fault in it."""
    injector = Injector(fault)
    injector.start()
    make = training.make_trainer
    training.make_trainer = lambda *args: injector.watch(make(*args))
    return training.train_rank(run)  # a rank has the real one


def answer(request: dict[str, Any]) -> int:
    """Run the command, and return its status."""
    sys.stdout.flush()
    sys.stderr.flush()
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, number)
        os.close(file)
    fault = request["fault"]
    kills = fault and "kills" in fault
    recovery.Live = (
        partial(_Live, watch=partial(Assassin, fault["kills"], fault["folder"])) if kills else _Live
    )  # type: ignore[misc]
    single = fault and not kills
    training.train_rank = partial(train_rank, Fault(**fault, launcher=os.getpid())) if single else _train_rank
    signal.signal(signal.SIGINT, signal.default_int_handler)
    leave_at_once()
    try:
        return cli.main(request["arguments"])
    except KeyboardInterrupt:
        return STATUS
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stdout.flush()
        sys.stderr.flush()


def main() -> None:
    """Answer until there are no more requests."""
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for line in requests:
        print(answer(json.loads(line)), file=answers, flush=True)
