"""A batch script for Slurm: any ``playbook`` command, or a script of one's own, as the ranks of many nodes.

Slurm starts one torchrun on each node, and torchrun a rank for each of its GPUs. The torchruns meet on the first node
of the job (the c10d rendezvous) and count the ranks through all nodes.

A job that is to go on later (``requeue``, ``array``) is warned before its time is up. Slurm's warning goes to the batch
shell alone, as USR1; the shell has Slurm send USR1 to all processes of all nodes. Ranks of ``playbook train`` save and
leave, with status 0; torchrun must take no notice, for of SIGUSR1 it would die, and SIGTERM, which comes when another
job needs the nodes, it would pass to ranks that have had it already.

A job is sent with sbatch. What has become of it is what sacct says; and squeue, of one that has only just been sent, or
where the cluster keeps no accounts.
"""

from __future__ import annotations

import math
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from playbook._checks import check_fields, told
from playbook.errors import LaunchError

_TIME = re.compile(r"\d+-\d+(:\d+){0,2}|\d+(:\d+){0,2}")
_NAME = re.compile(r"[\w.,:@+/-]+")
_SIGNAL = re.compile(r"((R|B|RB):)?\w+(@\d+)?")
_WARNING = re.compile(r"R?B:(?:SIG)?USR1@(\d+)")
_SWITCHES = re.compile(rf"\d+(@({_TIME.pattern}))?")
#: States of a job that has ended, as sacct and squeue write them.
ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
    *("REVOKED", "TIMEOUT"),
}


@dataclass(frozen=True)
class SlurmJob:
    """What a job asks Slurm for. Raises ``LaunchError`` for a field that Slurm would not understand."""

    nodes: int = told(1, "nodes")
    gpus_per_node: int = told(8, "GPUs, and ranks, of each node")
    cpus_per_gpu: int = told(8, "CPU cores of each rank")
    time: str = told("01:00:00", "the most that the job may take, also as D-H:M:S", metavar="H:M:S")
    job_name: str = told("playbook", "what squeue calls it", metavar="NAME")
    partition: str | None = told(None, "partition of the cluster (default: the cluster's)", metavar="NAME")
    account: str | None = told(None, "who pays (default: yours)", metavar="NAME")
    setup: tuple[str, ...] = ()  # lines of shell that each node runs first
    container: str | None = told(None, "container image, where Slurm has pyxis", metavar="IMAGE")
    logs: str = told("logs", "folder for output: DIR/JOB/node-0.log and so on", metavar="DIR")
    requeue: bool = told(
        False, "back to the queue when the time is up, a node has failed or another job needs the nodes"
    )
    array: int = told(1, "so many jobs, one after another: each goes on where the one before has stopped")
    max_restarts: int = told(0, "how often torchrun starts ranks again within a job", least=0)
    signal: str | None = told(
        None,
        "signal that comes S seconds before the time is up (default: B:USR1@120 with --requeue or --array)",
        metavar="NAME@S",
    )
    switches: str | None = told(
        None, "nodes behind at most N switches, if they are free by TIME", metavar="N@TIME"
    )
    exclusive: bool = told(False, "no other job on these nodes")

    def __post_init__(self) -> None:
        check_fields(self, LaunchError)
        self._must(_TIME, "time", "minutes, hours:minutes:seconds or days-hours, such as 02:30:00")
        for name in ("job_name", "partition", "account"):
            self._must(_NAME, name, "one word of letters, digits and . , : @ + / -")
        self._must(
            _SIGNAL, "signal", "a signal and how many seconds before the end it comes, such as TERM@120"
        )
        self._must(_SWITCHES, "switches", "how many, and how long to wait for them, such as 1@12:00:00")
        if self.goes_on and not _WARNING.fullmatch(self.warning or ""):
            raise LaunchError(
                f"signal is {self.signal!r}, but a job that goes on later needs B:USR1@SECONDS: its shell, not its "
                "ranks, is warned, and asks them to save and leave"
            )
        for line in self.setup:
            if not line.strip() or "\n" in line:
                raise LaunchError(f"setup is {line!r}, but must be one line of shell")
        if not self.logs or re.search(r"[%\n]", self.logs):
            raise LaunchError(f"logs is {self.logs!r}, but must be the path of a folder, without %")
        if self.container is not None and not self.container.strip():
            raise LaunchError(f"container is {self.container!r}, but must name an image")

    @property
    def ranks(self) -> int:
        """Ranks of the job: one for each GPU."""
        return self.nodes * self.gpus_per_node

    @property
    def goes_on(self) -> bool:
        """Whether ranks are asked to save and leave before the time is up, so that a later job can go on."""
        return self.requeue or self.array > 1

    @property
    def warning(self) -> str | None:
        """The signal that comes before the time is up."""
        return self.signal or ("B:USR1@120" if self.goes_on else None)

    @property
    def minutes(self) -> int:
        """``time`` in whole minutes. Slurm reads minutes, minutes:seconds, hours:minutes:seconds, days-hours…"""
        days, dash, rest = self.time.rpartition("-")
        parts = [int(part) for part in rest.split(":")]
        parts = parts if dash or len(parts) == 3 else [0, *parts]
        hours, minutes, seconds = (*parts, 0, 0)[:3]
        return int(days or 0) * 1440 + hours * 60 + minutes + math.ceil(seconds / 60)

    def sized(self, ranks: int) -> SlurmJob:
        """The same request for so many ranks. Raises LaunchError where nodes cannot hold them evenly."""
        each = min(ranks, self.gpus_per_node)
        if ranks % each:
            raise LaunchError(
                f"{ranks} ranks are no whole number of nodes with gpus_per_node={self.gpus_per_node}"
            )
        return replace(self, nodes=ranks // each, gpus_per_node=each)

    def _must(self, pattern: re.Pattern[str], name: str, valid: str) -> None:
        value = getattr(self, name)
        if value is not None and not pattern.fullmatch(value):
            raise LaunchError(f"{name} is {value!r}, but must be {valid}")


def sbatch_script(command: Sequence[str], job: SlurmJob) -> str:
    """The text of a script for ``sbatch`` that runs ``command`` as one rank for each GPU.

    ``command`` is what follows ``playbook`` on the command line, ``["train", "--model", "llama3-8b", …]``, or a script of
    Python and its arguments, ``["work.py", …]``. Each argument arrives as it is given here, whatever it contains.
    """
    if not command or not command[0]:
        raise LaunchError("command is missing: name a playbook command, such as train, or a script.py")
    # After `--`: torchrun would take a flag of the program, such as --log, for one of its own that is cut short.
    program = ["-m", "--", "playbook", *command]
    if PurePath(command[0]).suffix == ".py":
        program = ["--", *command]
    if any("\0" in argument for argument in program):
        raise LaunchError("command holds a NUL character, which no argument of a command can")
    return _head(job) + _TEMPLATE.format(
        threads=job.cpus_per_gpu,
        logs=shlex.quote(job.logs),
        setup="".join(f"  {line}\n" for line in job.setup),
        gpus=job.gpus_per_node,
        max_restarts=job.max_restarts,
        leaving=_leaving(job),
        deaf="  trap '' USR1 TERM   # torchrun stays until its ranks have left\n" if job.goes_on else "",
        wait=_ending(job),
        background=" &" if job.goes_on else "",
        srun=" \\\n  ".join(_srun(job)),
        program=shlex.join(program),
    )


def batch_script(command: Sequence[str], job: SlurmJob) -> str:
    """The text of a script for ``sbatch`` that runs a program once, on the first node of the job."""
    return "\n".join([_head(job), *job.setup, f"exec {shlex.join(command)}", ""])


def submit(script: Path, log: Path, env: Mapping[str, str]) -> str:
    """Send a script, whose shell writes to ``log``; the id of its job. Raises LaunchError where Slurm refuses it, in its
    words, and where there is none."""
    # In a session of its own: Ctrl-C in between would leave a job of which nobody knows the id.
    command = ["sbatch", "--parsable", f"--output={str(log).replace('%', '%%')}", str(script)]
    done = _ask(command, env=env, start_new_session=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        said = lines[-1] if lines else "sbatch said nothing"
        raise LaunchError(f"the job of {script.stem} was not accepted: {said}")
    return done.stdout.strip().partition(";")[0]  # after it, the name of the cluster where there are several


def states(ids: Sequence[str]) -> dict[str, str]:
    """The states of jobs by id, "" of one that Slurm does not know any more; those of which it says nothing are left
    out. Raises LaunchError where there is no Slurm."""
    found = _rows(_ask(["sacct", "-n", "-P", "-X", "-o", "JobID,State", "-j", ",".join(ids)]).stdout)
    if missing := [one for one in ids if one not in found]:
        queue = _ask(["squeue", "-h", "-t", "all", "-o", "%i|%T", "-j", ",".join(missing)])
        if not queue.returncode or "Invalid job id" in queue.stderr:  # of a single job that is not there
            found |= dict.fromkeys(missing, "") | _rows(queue.stdout)
    return found


def _rows(text: str) -> dict[str, str]:
    """Lines such as ``12|RUNNING``, or ``12|CANCELLED by 1000``."""
    pairs = (line.split("|") for line in text.splitlines() if "|" in line)
    return {one: state.partition(" ")[0] for one, state in pairs}


def _ask(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, **options)
    except FileNotFoundError:
        raise LaunchError(
            f"{command[0]} is not on the path: Slurm jobs are submitted on a node of the cluster"
        ) from None


def _head(job: SlurmJob) -> str:
    """The top of a script: what sbatch reads, and that the shell ends at the first failure."""
    optional = {
        "partition": job.partition,
        "account": job.account,
        "signal": job.warning,
        "switches": job.switches,
        "array": f"1-{job.array}%1" if job.array > 1 else None,
    }
    requests = [
        f"--job-name={job.job_name}",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        f"--gpus-per-node={job.gpus_per_node}",
        f"--cpus-per-task={job.gpus_per_node * job.cpus_per_gpu}",
        f"--time={job.time}",
        *(f"--{name}={value}" for name, value in optional.items() if value),
        *(["--exclusive"] if job.exclusive else []),
        *(["--requeue", "--open-mode=append"] if job.requeue else []),
    ]
    return "\n".join(["#!/bin/bash", *(f"#SBATCH {one}" for one in requests), "", "set -e -o pipefail", ""])


def _leaving(job: SlurmJob) -> str:
    """What is set up so that ranks can be asked to leave."""
    if not job.goes_on:
        return ""
    return _LEAVING.format(seconds=str(job.warning).rpartition("@")[2])


def _ending(job: SlurmJob) -> str:
    """What happens once the ranks have ended, or have left because they were asked to."""
    if not job.goes_on:
        return ""
    requeue, rest = 'exec scontrol requeue "$SLURM_JOB_ID"', "exit 0   # the next job of the array goes on"
    ending = _WAIT.format(then=requeue if job.requeue else rest)
    return ending + (_REST if job.array > 1 else "") + 'exit "$status"\n'


def _srun(job: SlurmJob) -> list[str]:
    """Options of srun: it does not inherit the CPUs of a task, and must end all nodes when one has failed."""
    container = [
        f"--container-image={shlex.quote(job.container or '')}",
        '--container-mounts="$PWD"',
        '--container-workdir="$PWD"',
    ]
    return [
        f"srun --ntasks-per-node=1 --cpus-per-task={job.gpus_per_node * job.cpus_per_gpu} --kill-on-bad-exit=1",
        '--output="$logs/node-%n.log"' + (" --open-mode=append" if job.requeue else ""),
        *([" ".join(container)] if job.container else []),
    ]


_LEAVING = """
# Slurm warns this shell {seconds} s before the time is up; `scancel --batch --signal=USR1 JOB` does so at any time. It
# tells the ranks, more than once since they may not listen yet: they save and leave, and later jobs go on from there.
asked=
leave() {{
  asked=1
  while kill -0 "$step" 2> /dev/null; do
    scancel --signal=USR1 "$SLURM_JOB_ID.0" || :   # its step: of an array's job scancel says that it cannot, for 95 s
    timeout 5 tail --pid="$step" -f /dev/null || :   # five seconds, or less if it ends
  done
}}
trap leave USR1
export PET_SIGNALS_TO_HANDLE=SIGINT,SIGHUP,SIGQUIT   # of torchrun: not SIGTERM, which comes to the ranks as well
"""

_WAIT = """
step=$! status=0
wait "$step" || status=$?
# Ranks of nodes that another job needs are asked by Slurm itself, which does not requeue a job that ends in time.
if [[ -n $asked || $(scontrol show job "$SLURM_JOB_ID") =~ PreemptTime=[0-9] ]]; then
  {then}
fi
"""

_REST = """\
if [[ $status == 0 ]]; then
  scancel --state=PENDING "$SLURM_ARRAY_JOB_ID" || :   # all is done: nothing is left for the rest of the array
fi
"""

_TEMPLATE = """
# NCCL finds its way on most clusters. These show what it chose, and choose for it:
# export NCCL_DEBUG=INFO                # prints the networks, rings and trees that it uses
# export NCCL_SOCKET_IFNAME=eth0        # the network interface of the first contact
# export NCCL_IB_HCA=mlx5               # the InfiniBand adapters
# export TORCH_NCCL_DUMP_ON_TIMEOUT=1   # when a collective hangs, every rank writes down its last ones
export OMP_NUM_THREADS={threads}

# Ranks that torchrun restarts meet at a store of their own. Without this they meet in torchrun's, where the addresses of
# the attempt before still stand: "Connection refused".
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

# All nodes meet on the first, at a port that depends on the job.
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export head_node="${{hosts[0]:?scontrol names no host}}"
export port=$((20000 + SLURM_JOB_ID % 10000))

export logs={logs}/"$SLURM_JOB_ID"
mkdir -p -- "$logs"
{leaving}
# What each node does. Its own name, and whether the meeting is at its place, are said and not guessed: guesses go by
# host names, which often differ from the names in Slurm. Ranks count through the nodes in the order of their names.
# The function travels as text to the shell that srun starts on each node.
node() {{
  set -e
{setup}{deaf}  exec torchrun \\
    --nnodes="$SLURM_NNODES" --nproc-per-node={gpus} --max-restarts={max_restarts} \\
    --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$head_node:$port" \\
    --rdzv-conf="is_host=$((SLURM_NODEID == 0))" --local-addr="$SLURMD_NODENAME" \\
    --log-dir="$logs" \\
    "$@"
}}

{srun} \\
  bash -c "$(declare -f node); node \\"\\$@\\"" node \\
  {program}{background}
{wait}"""
