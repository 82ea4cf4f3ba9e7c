"""One or two torchruns on this machine whose ranks are killed again and again, while they train and while they save.

python tests/two_agents.py --kills 40 --seed 1 --ranks 1 [--agents 1]    prints how many were killed, and what came out
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from playbook.cli import main as playbook
from playbook.launch.logs import read_json_log
from playbook.launch.processes import free_port
from playbook.launch.warm import python_path

#: What a rank runs: the first one waits, at each of its moments, until a rank has been killed.
RANK = """
import os, sys, time
from pathlib import Path
from playbook.cli import main
from playbook.launch.logs import JsonLog
from playbook.training import checkpoint

folder, moments = Path(sys.argv[1]), sys.argv[2].split(",")

def wait(moment):
    if os.environ["RANK"] == "0" and moment in moments and not (folder / moment).exists():
        (folder / moment).touch()
        while not (folder / f"{moment}-killed").exists():
            time.sleep(0.005)

def patch(owner, name, moment):
    act = getattr(owner, name)
    def patched(*args):
        wait(moment(*args))
        return act(*args)
    setattr(owner, name, patched)

def step_of(path):
    return int(path.name.split(".")[1].removeprefix("step-"))

patch(checkpoint, "write", lambda saved, path, rank: f"write-{step_of(path)}")
patch(checkpoint, "commit", lambda own, whole, ranks: f"commit-{step_of(own)}")
patch(JsonLog, "step", lambda log, record: f"step-{record['step']}")
sys.exit(main(sys.argv[3:]))
"""
MODEL = '{"layers":2,"hidden":16,"heads":2,"vocab":256,"max_seq":64,"dropout":0.0}'


@dataclass
class Killed:
    """What came out of a run: ``(step, loss, norm)`` of all records, and how ranks were killed."""

    steps: list[tuple[int, float, float]]
    statuses: list[int]
    while_saving: int = 0
    by_agent: list[int] = field(default_factory=list)
    said: str = ""


class Agents:
    """One torchrun for each of ``nodes``, with ``ranks`` ranks each; ``needed`` go on without the others."""

    def __init__(
        self, folder: Path, train: list[str], ranks: int, moments: list[str], nodes: int, needed: int
    ):
        self.folder, self.log, port = folder, folder / "run.jsonl", free_port()
        checkpoints = ["--checkpoint", str(folder / "c"), "--every", "2", "--keep", "3", "--resume"]
        torchrun = [sys.executable, str(Path(__file__).with_name("forked_torchrun.py"))]
        torchrun += [f"--nproc-per-node={ranks}", f"--nnodes={needed}:{nodes}"]
        (folder / "rank.py").write_text(RANK)
        torchrun += [f"--max-restarts={len(moments) + 2}", "--rdzv-backend=c10d", "--rdzv-id=killed"]
        torchrun += [f"--rdzv-endpoint=127.0.0.1:{port}", f"--log-dir={folder}"]
        own = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "TOGETHER": str(nodes)}
        self.agents = []
        for node in range(nodes):
            # An agent that is gone is noticed after keep_alive_interval · keep_alive_max_attempt seconds.
            place = [f"--rdzv-conf=is_host={int(node == 0)},last_call_timeout=2,keep_alive_interval=1"]
            place += [f"--local-addr=127.0.0.{node + 1}"]
            command = [*torchrun, *place, "--", str(folder / "rank.py")]
            command += [str(folder), ",".join(moments), "train", *train, *checkpoints]
            command += ["--log", str(self.log), "--quiet", "--device", "cpu"]
            env = {**os.environ, **own, "PYTHONPATH": python_path(), "CUDA_VISIBLE_DEVICES": ""}
            with open(folder / f"agent-{node}.log", "wb") as out:
                self.agents.append(
                    subprocess.Popen(
                        command, env=env, cwd=folder, stdout=out, stderr=out, start_new_session=True
                    )
                )

    def running(self) -> bool:
        """Whether all are there."""
        return all(agent.poll() is None for agent in self.agents)

    def ranks(self, node: int) -> list[int]:
        """The processes of its ranks."""
        agent = self.agents[node].pid
        found = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
        return [int(pid) for pid in found if b"rank.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def end(self) -> str:
        """Wait for them, and return what they and their ranks said."""
        try:
            for agent in self.agents:
                agent.wait(300)
        finally:
            for agent in self.agents:
                if agent.poll() is None:
                    agent.terminate()
                    agent.wait(60)
        return "".join(path.read_text() for path in sorted(self.folder.glob("agent-*.log")))


def killed(
    folder: Path,
    train: list[str],
    ranks: int,
    steps: int,
    kills: int,
    seed: int,
    nodes: int = 2,
    lost: str = "",
) -> Killed:
    """Train, and kill a rank of any agent ``kills`` times: every second time while a checkpoint is written.

    At the moment ``lost`` the second agent and its ranks are killed, and do not come back.
    """
    chance = random.Random(seed)
    moments = []
    for number, step in enumerate(sorted(chance.sample(range(1, steps // 2), kills))):
        moments.append(
            f"step-{2 * step}" if number % 2 else f"{chance.choice(['write', 'commit'])}-{2 * step}"
        )
    every = [*moments, *([lost] if lost else [])]
    agents = Agents(folder, [*train, "--steps", str(steps)], ranks, every, nodes, 1 if lost else nodes)
    found = Killed([], [], by_agent=[0] * nodes)
    for moment in every:
        while agents.running() and not (folder / moment).exists():
            time.sleep(0.005)
        if moment == lost:
            for pid in [*agents.ranks(1), agents.agents[1].pid]:
                os.kill(pid, signal.SIGKILL)
        elif agents.running():
            node = chance.randrange(nodes)
            os.kill(chance.choice(agents.ranks(node)), signal.SIGKILL)
            found.by_agent[node] += 1
            found.while_saving += bool(list(folder.glob("c/.step-*")))
        (folder / f"{moment}-killed").touch()
    found.said = agents.end()
    found.statuses = [agent.returncode for agent in agents.agents]
    found.steps = [(r["step"], r["loss"], r["grad_norm"]) for r in read_json_log(agents.log)]
    return found


def quiet(folder: Path, train: list[str], steps: int) -> list[tuple[int, float, float]]:
    """The same run without a fault, on ranks of this process."""
    log = folder / "quiet.jsonl"
    flags = ["--steps", str(steps), "--log", str(log), "--quiet", "--device", "cpu"]
    assert playbook(["train", *train, *flags]) == 0
    return [(r["step"], r["loss"], r["grad_norm"]) for r in read_json_log(log)]


def train_flags(layout: str) -> list[str]:
    """A small model in this layout."""
    return ["--model", MODEL, "--layout", layout, "--seq", "16", "--global-batch", "4"]


def main() -> None:
    """Kill as often as asked, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layout", default="dp=2,zero=3")
    parser.add_argument("--ranks", type=int, default=1, help="of each agent")
    parser.add_argument("--agents", type=int, default=2)
    args = parser.parse_args()
    steps, train, begin = args.kills * 4, train_flags(args.layout), time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        expected = quiet(folder, train, steps)
        found = killed(folder, train, args.ranks, steps, args.kills, args.seed, args.agents)
    same = set(found.steps) == set(expected)
    print(
        f"{sum(found.by_agent)} ranks killed, {found.by_agent} by agent, {found.while_saving} while saving, "
        f"{len(found.steps) - steps} steps done again, statuses {found.statuses}, losses and norms "
        f"{'the same, bit for bit' if same else 'DIFFER'}, {time.monotonic() - begin:.0f} s"
    )
    if not same or any(found.statuses):
        print(
            "\n".join(line for line in found.said.splitlines() if "playbook" in line or "older one" in line)
        )


if __name__ == "__main__":
    main()
