"""Slurm itself, with nodes that are this machine: a controller, a daemon for each node, and what they trust."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import slurm as slurm_tool
import terminal
from leftovers import descendants, remaining

from playbook.launch.processes import die_with_parent, free_port

#: Names that are addresses need no name server.
NODES = tuple(f"127.0.0.{number}" for number in range(1, 6))
FILES = {
    "slurm.conf": """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmctldLogFile={folder}/slurmctld.log
SlurmctldPidFile={folder}/slurmctld.pid
SlurmUser={user}
SlurmdUser={user}
SlurmdSpoolDir={folder}/spool-%n
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
AuthInfo=socket={folder}/munge.socket,cred_expire=3600
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1
KillWait=2
MinJobAge=3600
OverTimeLimit=UNLIMITED
ReturnToService=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
FirstJobId={first}
GresTypes=gpu
{nodes}
PartitionName=gpu Nodes=127.0.0.[1-2] Default=YES PreemptMode=OFF
PartitionName=low Nodes=127.0.0.[3-5] GraceTime=300
PartitionName=urgent Nodes=127.0.0.[3-5] PriorityTier=2
""",
    "gres.conf": "AutoDetect=off\nName=gpu File={folder}/gpu[0-3]\n",
    "cgroup.conf": "CgroupPlugin=cgroup/v1\n",
}


class Cluster:
    """A cluster in a folder of its own, from ``with`` to its end. ``conf`` is what clients are told as SLURM_CONF.

    Jobs ask for GPUs that are files. One that is back in the queue begins when it is told to: by itself only after
    ``cred_expire``, when what it was sent with before is worth nothing any more.
    """

    def __enter__(self) -> Cluster:
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.conf, self.daemons = self.folder / "slurm.conf", {}
        # It ends what is here when the pipe is closed, however this process ends.
        self.guard = subprocess.Popen(
            [sys.executable, __file__, str(self.folder)], stdin=subprocess.PIPE, start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Neither a process nor a file is left."""
        self.guard.communicate()
        for daemon in self.daemons.values():
            daemon.wait()

    def node(self, name: str) -> None:
        """Start the daemon of a node."""
        self._daemon(name, "slurmd", "-D", "-N", name)

    def steps(self, name: str) -> list[int]:
        """Processes through which the daemon of a node looks after jobs: each is the parent of a step's."""
        found = _started_with(f"SLURM_CONF={self.conf}", f"OF_NODE={name}")
        return [pid for pid in found if pid not in {daemon.pid for daemon in self.daemons.values()}]

    def fail(self, name: str) -> None:
        """A node goes, with all that runs on it, and Slurm learns of it now, not after SlurmdTimeout.

        It must not come back before the job has: for ten seconds the controller would go on telling it to end the job.
        """
        daemon = self.daemons.pop(name)
        gone = [*self.steps(name), daemon.pid]
        _send([*gone, *(below for pid in gone for below in descendants(pid))], signal.SIGKILL)
        daemon.wait()
        self.ask("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=gone")

    def repair(self, name: str) -> None:
        """The node is there again."""
        self.node(name)
        self.ask("scontrol", "update", f"NodeName={name}", "State=RESUME")
        self.until(lambda: self._up() == ["idle"] * len(NODES))

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
            time.sleep(0.2)  # a condition may start a program, and ask the controller

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
        found: set[int] = set()
        while len(found) <= len(NODES):
            found.add(free_port())
        ports = list(found)
        node = "NodeName={} NodeHostname=localhost Port={} CPUs=12 Gres=gpu:4"
        values = {"folder": self.folder, "port": ports[0], "first": _first_job()}
        values["nodes"] = "\n".join(map(node.format, NODES, ports[1:]))
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
        self.until(lambda: self._up() == ["idle"] * len(NODES))

    def _up(self) -> list[str]:
        assert all(daemon.poll() is None for daemon in self.daemons.values()), "\n".join(self.words())
        try:
            return self.ask("sinfo", "-h", "-N", "-p", "gpu,low", "-o", "%T").split()
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


def _started_with(*variables: str) -> list[int]:
    """Processes that were started with such variables, as NAME=VALUE."""
    wanted, found = {variable.encode() for variable in variables}, []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or is another user's
            if wanted <= set(path.read_bytes().split(b"\0")):
                found.append(int(path.parent.name))
    return found


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


def _guard(folder: Path) -> None:
    """Wait for the end of the process that has made a cluster; neither a process nor a file of it is left."""
    sys.stdin.read()
    while left := _started_with(f"SLURM_CONF={folder / 'slurm.conf'}"):
        _send(left, signal.SIGKILL)
        remaining(left, 5)
    shutil.rmtree(folder)


if __name__ == "__main__":
    _guard(Path(sys.argv[1]))
