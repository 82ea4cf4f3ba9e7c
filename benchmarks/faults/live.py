"""Trials of live recovery: replicas are killed, several in each run, at moments that are drawn; the others go on.

A trial follows from the seed and its number alone, but for where in a step a kill falls that comes some milliseconds
later. What a run gives is held to one device that sees the samples of those replicas alone that took part in each step.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.faults.campaign import Bench
from benchmarks.faults.runs import Hang, command_of, descendants
from playbook.layout import Layout
from playbook.recovery.domains import Domains
from playbook.shapes import ModelShape
from playbook.training.config import TrainConfig
from playbook.training.data import load_corpus
from playbook.training.trainer import make_trainer

_DENSE = {"layers": 2, "hidden": 16, "heads": 2, "ffn": 24, "vocab": 256, "max_seq": 32}
_EXPERTS = {**_DENSE, "moe": {"experts": 4, "top_k": 2, "ffn": 8}}
#: Layouts of two and three replicas, of one to three ranks.
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("dp=2", _DENSE),
    ("dp=3", _DENSE),
    ("dp=4,zero=1,replicate=2", _DENSE),
    ("dp=6,zero=2,replicate=3", _DENSE),
    ("dp=4,zero=3,replicate=2", _DENSE),
    ("dp=6,zero=3,replicate=2", _DENSE),
    ("dp=2,tp=2,sp,zero=1,replicate=2", _DENSE),
    ("dp=2,cp=2,zero=2,replicate=2", _DENSE),
    ("dp=2,pp=2,zero=1,replicate=2", _DENSE),
    ("dp=4,ep=2,zero=1,replicate=2", _EXPERTS),
)
STEPS, SEQ, BATCH, KILLS = 30, 16, 12, 4
#: As a step begins; after the gradients; after the vote; while state is received, or given; some milliseconds after the
#: step has begun, wherever that is.
MOMENTS = ("begin", "vote", "voted", "heal", "give", "soon", "soon", "soon")
TOLERANCE = 1e-5
PROBLEMS = {
    "hang": "did not end",
    "orphans": "left processes",
    "folders": "left temporary folders",
    "lost steps": "lost more than the step in flight",
    "wrong losses": "gave losses that differ",
    "restarted": "restarted a survivor",
    "wrong count": "miscounted the tokens that were lost",
    "unnamed": "did not name replica, rank and cause",
    "unfinished": "ended otherwise than it should",
}


@dataclass(frozen=True)
class Kill:
    """Of a rank, named by its replica and its number inside; not before ``step``, and not before the kill before it."""

    replica: int
    inside: int
    step: int
    moment: str
    milliseconds: int


@dataclass(frozen=True)
class LiveTrial:
    """A run, and who dies in it."""

    index: int
    case: int
    kills: tuple[Kill, ...]
    kind: str = "SIGKILL of a replica"

    @property
    def layout(self) -> Layout:
        return Layout.parse(CASES[self.case][0])


def draw_live(seed: int, index: int) -> LiveTrial:
    """The trial of this number."""
    chance = random.Random(f"live {seed} {index}")
    case = index % len(CASES)
    domains, kills = Domains(Layout.parse(CASES[case][0])), list[Kill]()
    for number in range(KILLS):
        moment, replica = chance.choice(MOMENTS), chance.randrange(domains.replicas)
        step = 1 + 6 * number + chance.randrange(4)
        if moment in ("heal", "give") and not (kills and (moment == "heal" or domains.replicas > 2)):
            moment = "vote"  # nobody comes back yet, or the one that gives is the last that has the weights
        if moment in ("heal", "give"):  # of the one that was killed before, or of its source
            replica, step = kills[-1].replica, kills[-1].step
            replica = replica if moment == "heal" else min({*range(domains.replicas)} - {replica})
        inside = 0 if moment == "give" else chance.randrange(domains.inside.world_size)
        kills.append(Kill(replica, inside, step, moment, chance.randrange(40)))
    return LiveTrial(index, case, tuple(kills))


# ---- in a rank


class Assassin:
    """Kills the process of a ``trainer`` where it is one of the ``kills`` turn. No replica is left without a peer that
    has the weights: that end has a test of its own."""

    def __init__(self, kills: list[dict[str, Any]], folder: str, trainer: Any):
        self.kills, self.folder = [Kill(**kill) for kill in kills], Path(folder)
        self.manager = manager = trainer.manager
        self.begin, self.commit, self.carry = manager.begin, manager.commit, manager._carry
        manager.begin, manager.commit, manager._carry = self.begins, self.commits, self.carries

    def begins(self, trainer: Any) -> None:
        self.begin(trainer)
        quorum, late = self.manager.quorum, time.monotonic() + 30
        if len(quorum.members) < self.manager.domains.replicas and trainer.step_count > quorum.step + 2:
            # A step is faster here than a process starts.
            while not self.manager.store.check([f"next/{quorum.number}"]) and time.monotonic() < late:
                time.sleep(0.01)
        self.strike("begin")
        if kill := self.due("soon"):
            threading.Timer(kill.milliseconds / 1e3, self.strike, ["soon"]).start()

    def commits(self, record: Any) -> bool:
        self.strike("vote")
        done = self.commit(record)
        self.strike("voted")
        return done

    def carries(self, verb: str, peer: int, piece: Any) -> None:
        if piece.numel() > 8:
            self.strike("heal" if verb == "recv" else "give")
        self.carry(verb, peer, piece)

    def due(self, moment: str) -> Kill | None:
        """The next kill, if it is this rank's now. One that would come with a heal comes at the next step instead when
        none is due by then. Only the quorum after that of the last kill knows who is left."""
        done, quorum = self.happened(), self.manager.quorum
        if len(done) >= len(self.kills) or quorum is None or (done and quorum.number <= int(done[-1])):
            return None
        kill, healthy, heals = self.kills[len(done)], set(quorum.members), moment in ("heal", "give")
        if heals or self.manager.step == quorum.step:  # who came has the weights once a step is committed
            healthy -= quorum.sources.keys()
        mine = (kill.replica, kill.inside) == (self.manager.replica, self.manager.inside)
        at = quorum.step if heals else self.manager.step
        late = kill.moment in ("heal", "give") and moment == "vote" and at > kill.step
        if not (mine and at >= kill.step and (kill.moment == moment or late)):
            return None
        return kill if healthy - {self.manager.replica} else None

    def happened(self) -> list[str]:
        """The quorums of the kills so far."""
        return [path.read_text() for path in sorted(self.folder.glob("happened-*"))]

    def strike(self, moment: str) -> None:
        if self.due(moment):
            part = self.folder / f"by-{os.getpid()}"
            part.write_text(str(self.manager.quorum.number))
            part.rename(self.folder / f"happened-{len(self.happened())}")
            os.kill(os.getpid(), signal.SIGKILL)


# ---- from outside


class LiveBench(Bench):
    """Such trials, one after another."""

    def drawn(self, seed: int, index: int) -> dict[str, Any]:
        return self.trial(draw_live(seed, index), seed)

    def trial(self, trial: LiveTrial, seed: int) -> dict[str, Any]:  # type: ignore[override]
        begin, folder = time.monotonic(), self.root / f"trial-{trial.index}"
        folder.mkdir()
        text, shape = CASES[trial.case]
        sizes = ["--steps", str(STEPS), "--seq", str(SEQ), "--global-batch", str(BATCH), "--timeout", "20"]
        model = ["--model", json.dumps(shape), "--layout", text, "--log", str(folder / "log.jsonl")]
        command = ["train", *model, "--live-recovery", *sizes, "--device", "cpu", "--quiet", "--json"]
        found: dict[str, Any] = {"index": trial.index, "kind": trial.kind, "layout": text, "problems": []}
        found["kills"] = [f"{k.moment} {k.step}" for k in trial.kills]
        fault = {"kills": [dataclasses.asdict(kill) for kill in trial.kills], "folder": str(folder)}
        said = ""
        try:
            status, said = self.train(command, fault, "live")
            self._leftovers(found)
            told = json.loads((self.root / "live.out").read_text()) if status == 0 else {}
            found |= {"statuses": [status], "happened": len(list(folder.glob("happened-*")))}
            self._judge_live(trial, found, told, said)
        except Hang:
            found |= {"statuses": [], "happened": len(list(folder.glob("happened-*")))}
            found["problems"].append("hang")
            found["processes"] = [command_of(pid) for pid, _ in descendants()]
            self.end_driver()
            self.remove_folders()
        found["seconds"] = round(time.monotonic() - begin, 2)
        if found["problems"]:
            found["said"] = said.replace(str(self.root), "DIR")[-3000:]
            found["command"] = f"python -m benchmarks.faults --live --seed {seed} --only {trial.index}"
        shutil.rmtree(folder, ignore_errors=True)
        return found

    def _leftovers(self, found: dict[str, Any]) -> None:
        if left := self.leftovers():
            found["problems"].append("orphans")
            found["processes"] = left
        if folders := self.remove_folders():
            found["problems"].append("folders")
            found["folders"] = folders

    def _judge_live(self, trial: LiveTrial, found: dict[str, Any], told: dict[str, Any], said: str) -> None:
        domains, happened = Domains(trial.layout), trial.kills[: found["happened"]]
        if not told or len(told["losses"]) != STEPS:
            found["problems"].append("unfinished")
            return
        members, lost = told["replicas"], [one for one in told["recoveries"] if one["kind"] == "lost"]
        found |= {"discarded": told["discarded_steps"], "lost tokens": told["lost_tokens"], "lost": len(lost)}
        found["recovered"] = len(told["recoveries"]) - len(lost)
        apart = {
            "lost steps": told["discarded_steps"] > len(happened),
            "wrong losses": self._error(trial, told) > TOLERANCE,
            "wrong count": told["lost_tokens"]
            != sum(domains.replicas - len(some) for some in members) * BATCH // domains.replicas * SEQ,
            "restarted": any(
                len(pids) > 1 + sum(kill.replica == domains.place(int(rank))[0] for kill in happened)
                for rank, pids in told["pids"].items()
            ),
            "unnamed": not all(
                f"replica {one['replica']} of {domains.replicas} is lost (rank " in said
                and "signal 9" in said
                for one in lost
            )
            or len(lost) < len(happened) - 1,  # the last may come when all steps are done
        }
        found["problems"] += [problem for problem, is_so in apart.items() if is_so]

    def _error(self, trial: LiveTrial, told: dict[str, Any]) -> float:
        """The largest relative difference of a loss or a norm to those of one device with the same samples."""
        torch.set_num_threads(1)
        replicas, shape = Domains(trial.layout).replicas, CASES[trial.case][1]
        config = TrainConfig(steps=STEPS, global_batch=BATCH, seq=SEQ, device="cpu")
        trainer, worst = make_trainer(ModelShape(**{"dropout": 0.0, **shape}), load_corpus(), config), 0.0
        batches = trainer.batches
        for step, some in enumerate(told["replicas"]):
            parts = [batches.batch(step, replica, replicas) for replica in some]
            trainer.batches = Given(*(torch.cat(rows) for rows in zip(*parts, strict=True)))  # type: ignore[assignment]
            wanted = trainer.step()
            pairs = (told["losses"][step], wanted.loss), (told["grad_norms"][step], wanted.grad_norm)
            worst = max(worst, *(abs(a / b - 1) for a, b in pairs))
        return worst


@dataclass(frozen=True)
class Given:
    """Batches of which there is one."""

    inputs: torch.Tensor
    targets: torch.Tensor

    def batch(self, *_: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs, self.targets
