"""The trials of ``python -m benchmarks.faults``: which run, which fault and when, and what the run should say of it.

A trial follows from the seed and its number alone, so that any of them can be repeated by itself.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults.injector import KINDS, STATUS, WORDS
from playbook.layout import Layout

_DENSE = {"layers": 2, "hidden": 16, "heads": 2, "vocab": 256, "max_seq": 64, "dropout": 0.0}
_EXPERTS = {**_DENSE, "ffn": 32, "moe": {"experts": 4, "top_k": 2, "ffn": 8}}
#: Layouts that are trained: every technique, on two to four ranks, and runs with states of their own beside the weights.
CASES: tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...] = (
    ("dp=2", _DENSE, ()),
    ("dp=2", {**_DENSE, "dropout": 0.1}, ("--dtype", "float16", "--initial-loss-scale", "1e6")),
    ("dp=2", _DENSE, ("--weights", "bfloat16", "--dtype", "bfloat16")),
    ("dp=3", _DENSE, ()),
    ("dp=3,zero=1", _DENSE, ()),
    ("dp=2,zero=2", _DENSE, ()),
    ("dp=3,zero=3", _DENSE, ()),
    ("tp=2,sp", _DENSE, ()),
    ("cp=2", _DENSE, ()),
    ("pp=2", _DENSE, ()),
    ("dp=2,ep=2,zero=1", _EXPERTS, ()),
    ("dp=2,tp=2,zero=1", _DENSE, ()),
    ("dp=2,pp=2", _DENSE, ()),
    ("cp=2,tp=2", _DENSE, ()),
)
STEPS = 16
#: What happens to files of a checkpoint after its run was killed.
DAMAGES = ("truncated", "flipped", "missing", "foreign manifest", "torn manifest")
#: Kinds of trials: the faults of ``injector.py``, and files that are damaged between two runs.
ALL = (*KINDS, "torn file")
_BEFORE_A_STEP = ("sys.exit", "out of memory", "full disk", "slow rank", "flipped bit")
#: Seconds that a rank waits for one that is stopped.
TIMEOUT = 6.0


@dataclass(frozen=True)
class Trial:
    """A run and its fault. ``restarts`` are allowed; ``damage`` is for torn files alone."""

    index: int
    kind: str
    case: int
    rank: int
    moment: str
    step: int
    number: int
    amount: int
    times: int
    every: int
    keep: int | None
    background: bool
    restarts: int
    damage: str | None = None

    @property
    def layout(self) -> Layout:
        return Layout.parse(CASES[self.case][0])

    def arguments(self, folder: Path) -> list[str]:
        """Of ``playbook``: the run, with its checkpoints and its log in ``folder``."""
        saving = ["--checkpoint", str(folder / "checkpoints"), "--every", str(self.every)]
        saving += ["--keep", str(self.keep)] if self.keep else []
        saving += ["--async"] if self.background else []
        saving += ["--max-restarts", str(self.restarts)] if self.restarts else []
        saving += ["--timeout", str(TIMEOUT)] if self.kind == "SIGSTOP" else []
        saving += ["--check-replicas", "2", "--on-spike", "stop"] if self.kind == "flipped bit" else []
        return [*quiet(self.case), *saving, "--log", str(folder / "log.jsonl")]

    def fault(self, folder: Path) -> dict[str, Any]:
        """What ``injector.Fault`` is made of, but for the launcher's process."""
        names = ("rank", "moment", "step", "number", "amount", "times")
        kind = "SIGKILL" if self.kind == "torn file" else self.kind
        own = {name: getattr(self, name) for name in names}
        return {"kind": kind, **own, "folder": str(folder), "checkpoints": str(folder / "checkpoints")}

    @property
    def allowed(self) -> int:
        """How many steps may be taken again: since the last save, or the one before where it was still being written."""
        saves = (2 if self.background else 1) + (self.kind == "torn file")
        return saves * self.every

    def expected(self) -> str | None:
        """A regular expression of what is said of this fault, with rank and cause; None where there is nothing to say."""
        rank = f"rank {self.rank}"
        return {
            "SIGKILL": f"{rank} was killed by SIGKILL",
            "SIGTERM": f"{rank} was killed by SIGTERM",
            "SIGSTOP": f"{rank} did not (arrive|say).*it is stopped|{rank} has not written its part",
            "exception": rf"{rank} (failed: |\()RuntimeError: {re.escape(WORDS)}",
            "sys.exit": f"{rank} failed: SystemExit: {STATUS}",
            "os._exit": f"{rank} ended with status {STATUS} and without a result",
            "out of memory": f"out of memory at step .* of {rank}:",
            "full disk": f"{rank}\\b.*(File too large|may write no files)",
            "dropped connection": r"rank \d.*(lost|connection|Connection|Broken pipe)",
            "flipped bit": f"weights of .*{rank}\\b",
            "Ctrl-C": "interrupted",
            "SIGTERM of the launcher": "interrupted|saved and left, as asked",
            "torn file": "is not whole|is damaged|has a damaged manifest|has no manifest",
        }.get(self.kind)

    def told(self) -> dict[str, Any]:
        """For a report: what is enough to know it by."""
        return {
            "index": self.index,
            "kind": self.kind,
            "layout": " ".join([CASES[self.case][0], *CASES[self.case][2]]),
            "rank": self.rank,
            "moment": f"{self.moment} {self.number} of step {self.step}",
            "restarts": self.restarts,
            "times": self.times,
            "saving": f"every {self.every}, keep {self.keep}{', background' if self.background else ''}",
            **({"damage": self.damage} if self.damage else {}),
        }


def quiet(case: int) -> list[str]:
    """The command of a case without checkpoints: whose losses all its trials must have."""
    layout, shape, flags = CASES[case]
    model = ["--model", json.dumps(shape), "--layout", layout, *flags]
    sizes = ["--steps", str(STEPS), "--seq", "16", "--global-batch", "12", "--micro-batch", "2"]
    return ["train", *model, *sizes, "--device", "cpu", "--quiet", "--json"]


def draw(seed: int, index: int) -> Trial:
    """The trial of this number."""
    chance = random.Random(f"faults {seed} {index}")
    kind = ALL[index % len(ALL)]
    cases = [i for i, case in enumerate(CASES) if kind != "flipped bit" or case[0] in ("dp=3", "dp=2,pp=2")]
    case = chance.choice(cases)
    layout = Layout.parse(CASES[case][0])
    every, step = chance.choice([1, 2, 3, 5]), chance.randrange(STEPS)
    moments = ["start", "step", "soon", "soon", "save", "save", "save"]
    if kind in ("exception", "dropped connection"):
        moments = ["step", "save"]
    elif kind in _BEFORE_A_STEP:
        moments = ["step"]
    moment = chance.choice(moments)
    if kind == "torn file":
        moment, step = "step", chance.randrange(every * 2 + 1, STEPS)
    if kind in ("flipped bit", "full disk"):
        step = chance.randrange(1, STEPS - 2)
    if moment == "save":
        step = chance.randrange(1, STEPS // every) * every if every > 1 else step
        step -= every > 1  # the save is after this step
    restarts = 0 if kind == "torn file" else chance.choice([0, 1, 1, 2])
    return Trial(
        index,
        kind,
        case,
        rank := chance.randrange(layout.world_size),
        moment,
        step,
        number={"soon": chance.randrange(60), "save": chance.randrange(5 if rank else 14)}.get(moment, 0),
        amount=chance.randrange(20_000) if kind == "full disk" else chance.randrange(20, 100) if kind == "slow rank"
        else chance.randrange(1 << 20),
        times=chance.choice([1, 1, 2]) if restarts and kind != "SIGSTOP" else 1,
        every=every,
        keep=chance.choice([None, None, 1, 2]),
        background=chance.random() < 0.5,
        restarts=restarts,
        damage=chance.choice(DAMAGES) if kind == "torn file" else None,
    )  # fmt: skip


def damage(folder: Path, how: str, chance: random.Random) -> str | None:
    """Spoil the newest checkpoint; its name, or None where there is none to spoil."""
    found = sorted(folder.glob("step-*"))
    if not found:
        return None
    newest, manifest = found[-1], found[-1] / "manifest.json"
    file = chance.choice(sorted(newest.glob("*.safetensors")))
    if how == "missing":
        file.unlink()
    elif how == "truncated":
        with file.open("rb+") as one:
            one.truncate(chance.randrange(file.stat().st_size))
    elif how == "flipped":
        with file.open("rb+") as one:
            at = chance.randrange(file.stat().st_size)
            one.seek(at)
            byte = one.read(1)[0]
            one.seek(at)
            one.write(bytes([byte ^ 1 << chance.randrange(8)]))
    elif how == "torn manifest":
        with manifest.open("rb+") as one:
            one.truncate(chance.randrange(manifest.stat().st_size - 2))
    else:  # of a save of other weights
        told = json.loads(manifest.read_text())
        other = json.loads((found[0] / "manifest.json").read_text())
        if len(found) == 1:
            other["files"] = [{**file, "crc32": file["crc32"] ^ 1} for file in told["files"]]
        manifest.write_text(json.dumps(other))
    return newest.name
