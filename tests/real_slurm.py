"""Slurm itself, with two nodes that are this machine: a controller, a daemon for each node, and what they trust."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import slurm as slurm_tool
import terminal
from leftovers import remaining

from playbook.launch.processes import die_with_parent, free_port

#: Names that are addresses need no name server.
NODES = ("127.0.0.1", "127.0.0.2")
FILES = {
    "slurm.conf": """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmctldLogFile={folder}/slurmctld.log
SlurmctldPidFile={folder}/slurmctld.pid
SlurmUser={user}
SlurmdUser={user}
SlurmdSpoolDir={folder}/spool-%n
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0
KillWait=2
OverTimeLimit=UNLIMITED
ReturnToService=2
FirstJobId={first}
GresTypes=gpu
NodeName=127.0.0.1 NodeHostname=localhost Port={ports[1]} CPUs=12 Gres=gpu:4
NodeName=127.0.0.2 NodeHostname=localhost Port={ports[2]} CPUs=12 Gres=gpu:4
PartitionName=gpu Nodes=ALL Default=YES
""",
    "gres.conf": "AutoDetect=off\nName=gpu File={folder}/gpu[0-3]\n",
    "cgroup.conf": "CgroupPlugin=cgroup/v1\n",
}


class Cluster:
    """A cluster in a folder of its own, from ``with`` to its end. ``conf`` is what clients are told as SLURM_CONF.

    Jobs ask for GPUs that are files.
    """

    def __enter__(self) -> Cluster:
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.conf, self.daemons = self.folder / "slurm.conf", {}
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Neither a process nor a file is left."""
        for daemon in self.daemons.values():
            daemon.kill()
            daemon.wait()
        while left := self._started_with(f"SLURM_CONF={self.conf}"):
            _send(left, signal.SIGKILL)
            remaining(left, 5)
        shutil.rmtree(self.folder)

    def node(self, name: str) -> None:
        """Start the daemon of a node."""
        self._daemon(name, "slurmd", "-D", "-N", name)

    def steps(self, name: str) -> list[int]:
        """Processes through which the daemon of a node looks after jobs: each is the parent of a step's."""
        return self._started_with(f"OF_NODE={name}")

    def ask(self, *command: str) -> str:
        """What a program of Slurm prints."""
        env = {**os.environ, "SLURM_CONF": str(self.conf)}
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert not done.returncode, (command, done.stderr)
        return done.stdout

    def until(self, condition: Callable[[], object], said: Callable[[], str] = str) -> None:
        """Wait for what must come; it has five minutes."""
        limit = time.monotonic() + 300
        while not condition():
            assert time.monotonic() < limit, "\n".join([said(), *self.words()])
            time.sleep(0.05)

    def words(self) -> list[str]:
        """The logs of all daemons."""
        return [path.read_text(errors="replace") for path in self.folder.glob("*.log")]

    def _start(self) -> None:
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir()
        for number in range(4):
            (self.folder / f"gpu{number}").touch()
        (self.folder / "munge.key").write_bytes(secrets.token_bytes(64))
        (self.folder / "munge.key").chmod(0o600)
        values = {"folder": self.folder, "ports": [free_port() for _ in range(3)], "first": _first_job()}
        values["user"] = pwd.getpwuid(os.geteuid()).pw_name
        for name, text in FILES.items():
            (self.folder / name).write_text(text.format(**values))
        own = {
            "socket": "socket",
            "key-file": "key",
            "pid-file": "pid",
            "log-file": "log",
            "seed-file": "seed",
        }
        files = [f"--{option}={self.folder}/munge.{kind}" for option, kind in own.items()]
        self._daemon("munged", "munged", "--foreground", "--force", *files)
        self.until((self.folder / "munge.socket").exists)
        self._daemon("slurmctld", "slurmctld", "-D")
        for node in NODES:
            self.node(node)
        self.until(lambda: self._up() == ["idle"] * 2)

    def _up(self) -> list[str]:
        assert all(daemon.poll() is None for daemon in self.daemons.values()), "\n".join(self.words())
        try:
            return self.ask("sinfo", "-h", "-N", "-p", "gpu", "-o", "%T").split()
        except AssertionError:  # the controller does not listen yet
            return []

    def _daemon(self, name: str, program: str, *arguments: str) -> None:
        def alone() -> None:
            die_with_parent()
            terminal.listen()

        found = slurm_tool.find()
        assert found is not None
        with (self.folder / f"{name}-says.log").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                [found[program], *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=alone,
                env={**os.environ, "SLURM_CONF": str(self.conf), "OF_NODE": name}, start_new_session=True,
            )  # fmt: skip

    def _started_with(self, variable: str) -> list[int]:
        """Processes of this cluster, but its daemons, that were started with such a variable."""
        wanted, found = {f"SLURM_CONF={self.conf}".encode(), variable.encode()}, []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # it has ended, or is another user's
                if wanted <= set(path.read_bytes().split(b"\0")):
                    found.append(int(path.parent.name))
        return [pid for pid in found if pid not in {daemon.pid for daemon in self.daemons.values()}]


def _send(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _first_job() -> int:
    """A number of a job, not as in another process; the ports of it and of 20 after it are free."""
    while True:
        first = 70_000 + secrets.randbelow(9_000)
        with suppress(OSError):
            for job in range(first, first + 20):
                with socket.socket() as listener:
                    listener.bind(("", job - 50_000))
            return first
