"""The script for Slurm: what it asks for, and what it runs. Slurm itself is in test_real_slurm.py."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable

import pytest
from helpers import ODD_WORDS
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch.distributed import run as torchrun

from playbook.cli import main
from playbook.launch import LaunchError
from playbook.launch.slurm import SlurmJob, sbatch_script

EVERYTHING = SlurmJob(
    nodes=3, gpus_per_node=4, cpus_per_gpu=6, time="2-12:30:00", job_name="big-run", partition="a,b", account="me",
    setup=("umask 022", "export GREETING='it is {here}'"), container="nvcr.io#nvidia/pytorch:25.01-py3",
    logs="my logs/of today", requeue=True, array=3, max_restarts=2, signal="B:USR1@300", switches="1@12:00:00",
    exclusive=True,
)  # fmt: skip


def test_what_it_asks_slurm_for():
    script = sbatch_script(["train"], EVERYTHING)
    assert script.startswith("#!/bin/bash\n#SBATCH ")
    header, _, _ = script.partition("\n\n")
    assert header.splitlines()[1:] == [
        "#SBATCH --job-name=big-run",
        "#SBATCH --nodes=3",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --cpus-per-task=24",
        "#SBATCH --time=2-12:30:00",
        "#SBATCH --partition=a,b",
        "#SBATCH --account=me",
        "#SBATCH --signal=B:USR1@300",
        "#SBATCH --switches=1@12:00:00",
        "#SBATCH --array=1-3%1",
        "#SBATCH --exclusive",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
    ]
    plain = sbatch_script(["train"], SlurmJob())
    assert not re.search(
        "partition|account|signal|requeue|open-mode|container|array|trap|switches|exclusive", plain
    )
    assert plain.count("#SBATCH") == 6
    for later in (SlurmJob(requeue=True), SlurmJob(array=2)):
        assert "#SBATCH --signal=B:USR1@120\n" in sbatch_script(["train"], later)
    assert "#SBATCH --signal=TERM@9\n" in sbatch_script(["train"], SlurmJob(signal="TERM@9"))


@pytest.mark.parametrize("job", [SlurmJob(), EVERYTHING, SlurmJob(requeue=True), SlurmJob(array=2)])
@pytest.mark.parametrize("command", [["train", "--model", '{"layers": 1}'], ["work.py", *ODD_WORDS]])
def test_bash_accepts_it_and_shellcheck_has_no_complaint(tmp_path, job, command):
    script = tmp_path / "job.sh"
    script.write_text(sbatch_script(command, job))
    assert subprocess.run(["bash", "-n", script], capture_output=True, text=True).stderr == ""
    if shutil.which("shellcheck"):  # 2016: $HOME in single quotes, which is what was asked for
        done = subprocess.run(["shellcheck", "--exclude=SC2016", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def arguments_of_torchrun(tmp_path_factory) -> Callable[[str], list[str]]:
    """Runs a script with programs that do nothing, and returns what torchrun was called with."""
    folder = tmp_path_factory.mktemp("nothing")
    programs = {
        "scontrol": 'if [ "$1" = requeue ]; then echo "$@"; else echo node-a; echo node-b; fi',
        "scancel": "",
        "srun": 'while [ "$1" != bash ]; do shift; done\nexport SLURM_NODEID=0 SLURMD_NODENAME=node-a\nexec "$@"',
        "torchrun": 'printf "%s\\0" "$@" > "$ARGUMENTS"; if [ $WARN ]; then kill -USR1 $PPID; sleep 0.1; fi',
    }
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    env = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "ARGUMENTS": str(folder / "arguments"),
        "SLURM_JOB_ID": "12345",
        "SLURM_JOB_NODELIST": "node-[a-b]",
        "SLURM_NNODES": "2",
        "SLURM_ARRAY_JOB_ID": "12345",
    }

    def run(script: str, says: str = "", **more: str) -> list[str]:
        (folder / "job.sh").write_bytes(script.encode())
        command = ["bash", folder / "job.sh"]
        done = subprocess.run(
            command, check=True, env=env | more, cwd=folder, timeout=300, stdout=subprocess.PIPE
        )
        assert done.stdout.decode() == says
        return (folder / "arguments").read_bytes().decode().split("\0")[:-1]

    return run


def test_what_torchrun_is_told(arguments_of_torchrun):
    job = SlurmJob(nodes=2, gpus_per_node=4, max_restarts=5)
    told = arguments_of_torchrun(sbatch_script(["train", "--steps", "3"], job))
    assert told == [
        "--nnodes=2",
        "--nproc-per-node=4",
        "--max-restarts=5",
        "--rdzv-backend=c10d",
        "--rdzv-id=12345",
        "--rdzv-endpoint=node-a:22345",
        "--rdzv-conf=is_host=1",
        "--local-addr=node-a",
        "--log-dir=logs/12345",
        *["-m", "--", "playbook", "train", "--steps", "3"],
    ]
    for command, rest in ((["src/work.py", "--log", "a"], ["src/work.py", "--log", "a"]), (["train", "--log", "a"],
                          ["playbook", "train", "--log", "a"])):  # fmt: skip
        read = torchrun.parse_args(arguments_of_torchrun(sbatch_script(command, job)))
        assert (read.module, read.log_dir) == (rest[0] == "playbook", "logs/12345")
        assert [read.training_script, *read.training_script_args] == rest


def test_a_shell_that_is_warned_sends_its_job_back_to_the_queue_once_its_ranks_have_left(
    arguments_of_torchrun,
):
    script = sbatch_script(["train"], SlurmJob(requeue=True))
    arguments_of_torchrun(script, "requeue 12345\n", WARN="1")
    arguments_of_torchrun(script)


ARGUMENTS = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), max_size=5)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arguments=ARGUMENTS)
@example(arguments=ODD_WORDS)
def test_every_argument_arrives_as_it_was_given(arguments_of_torchrun, arguments):
    told = arguments_of_torchrun(sbatch_script(["train", *arguments], EVERYTHING))
    assert told[9:] == ["-m", "--", "playbook", "train", *arguments]


def test_the_command_prints_the_script_and_json_holds_it(capsys):
    flags = "--nodes 2 --gpus-per-node 4 --cpus-per-gpu 2 --time 30 --job-name a --partition p --account me "
    flags += "--setup 'source v' --setup 'x y' --container i --logs l --requeue --array 2 --max-restarts 3 "
    flags += "--signal B:USR1@9 --switches 2 --exclusive"
    command = ["train", "--model", "tiny", "--layout", "dp=8", "--checkpoint", "c", "--resume"]
    job = SlurmJob(
        2, 4, 2, "30", "a", "p", "me", ("source v", "x y"), "i", "l", True, 2, 3, "B:USR1@9", "2", True
    )
    for separator in ([], ["--"]):
        assert main(["slurm", *shlex.split(flags), *separator, *command]) == 0
        assert capsys.readouterr().out == sbatch_script(command, job)
    assert main(["slurm", "--json", "--nodes", "2", "--", *command[:3]]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["script"] == sbatch_script(command[:3], SlurmJob(nodes=2))
    assert (printed["nodes"], printed["ranks"], printed["command"]) == (2, 16, command[:3])


def test_help_has_the_defaults(capsys):
    with pytest.raises(SystemExit):
        main(["slurm", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    job = SlurmJob()
    for value in (job.nodes, job.gpus_per_node, job.cpus_per_gpu, job.time, job.job_name, job.logs):
        assert f"(default: {value})" in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("", "command is missing: name a playbook command, such as train, or a script.py"),
        ("--", "command is missing"),
        ("-- tarin --model tiny", "unknown command 'tarin'; did you mean train?"),
        ("-- slurm -- train", "unknown command 'slurm'; known: bench, calibrate, checkpoint, doctor"),
        ("-- train --modle tiny", "playbook train: unrecognized arguments: --modle tiny"),
        ("-- bench", "playbook bench: the following arguments are required: WHAT"),
        ("-- train --layout dp=2", "layout is 'dp=2', which needs 2 ranks, but the nodes have 8 GPUs"),
        ("--nodes 0 -- train", "nodes must be at least 1, got 0"),
        ("--nodes two -- train", "argument --nodes: invalid int value: 'two'"),
        ("--gpus-per-node -1 -- train", "gpus_per_node must be at least 1, got -1"),
        ("--cpus-per-gpu 0 -- train", "cpus_per_gpu must be at least 1, got 0"),
        (
            "--time tomorrow -- train",
            "time is 'tomorrow', but must be minutes, hours:minutes:seconds or days-hours",
        ),
        ("--job-name 'a b' -- train", "job_name is 'a b', but must be one word"),
        ("--partition 'a\n#SBATCH' -- train", r"partition is 'a\n#SBATCH', but must be one word"),
        ("--account '' -- train", "account is '', but must be one word"),
        (
            "--requeue -- train --resume",
            "requeue is True, but training would begin at step 0 again: give train --c",
        ),
        ("--array 2 -- train --checkpoint c", "array is 2, but training would begin at step 0 again"),
        ("--max-restarts 1 -- train", "max_restarts is 1, but training would begin at step 0 again"),
        ("--array 0 -- train", "array must be at least 1, got 0"),
        ("--max-restarts -1 -- train", "max_restarts must be at least 0, got -1"),
        (
            "--switches some -- train",
            "switches is 'some', but must be how many, and how long to wait for them",
        ),
        (
            "--requeue --signal TERM@9 -- train",
            "signal is 'TERM@9', but a job that goes on later needs B:USR1@",
        ),
        ("--signal @9 -- train", "signal is '@9', but must be a signal and how many seconds before the end"),
        ("--setup 'a\nb' -- train", r"setup is 'a\nb', but must be one line of shell"),
        ("--logs logs/%j -- train", "logs is 'logs/%j', but must be the path of a folder, without %"),
        ("--container ' ' -- train", "container is ' ', but must name an image"),
        ("--nods 2 -- train", "unrecognized arguments: --nods"),
    ],
)
def test_bad_input_is_answered_in_one_sentence(capsys, arguments, sentence):
    try:
        status = main(["slurm", *shlex.split(arguments)])
    except SystemExit as end:  # argparse
        status = end.code
    printed = capsys.readouterr()
    assert (status, printed.out) == (2, "")
    assert re.match(f"playbook( \\w+)?: ({re.escape(sentence)})|{re.escape(sentence)}", printed.err)
    assert printed.err.count("\n") == 1


def test_an_argument_that_no_command_can_have():
    with pytest.raises(LaunchError, match="NUL"):
        sbatch_script(["train", "a\0b"], SlurmJob())
