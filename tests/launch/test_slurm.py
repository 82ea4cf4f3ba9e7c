"""The script for Slurm: what it asks for, what it runs, and real runs of it on nodes that are this machine."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import two_agents
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from launch.fake_slurm import free_job_id
from leftovers import remaining, signed_in
from torch.distributed import run as torchrun

from playbook.cli import main
from playbook.launch import LaunchError, warm
from playbook.launch.logs import read_json_log
from playbook.launch.slurm import SlurmJob, sbatch_script

FAKE = Path(__file__).with_name("fake_slurm.py")
#: A torchrun whose ranks need not import PyTorch again.
FORKED = Path(__file__).parents[1] / "forked_torchrun.py"
EVERYTHING = SlurmJob(
    nodes=3, gpus_per_node=4, cpus_per_gpu=6, time="2-12:30:00", job_name="big-run", partition="a,b", account="me",
    setup=("umask 022", "export GREETING='it is {here}'"), container="nvcr.io#nvidia/pytorch:25.01-py3",
    logs="my logs/of today", requeue=True, array=3, max_restarts=2, signal="B:USR1@300", switches="1@12:00:00",
    exclusive=True,
)  # fmt: skip
ODD = [
    "two words",
    "",
    "it's",
    'a "quote"',
    "$HOME `id` $(id)",
    "a\\b",
    "*",
    "--",
    "{x}",
    "two\nlines",
    "ü → 🙂",
    "-m",
]


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
@pytest.mark.parametrize("command", [["train", "--model", '{"layers": 1}'], ["work.py", *ODD]])
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
    script = sbatch_script(["train"], SlurmJob(requeue=True)).replace("sleep 5", "sleep 0.01")
    arguments_of_torchrun(script, "requeue 12345\n", WARN="1")
    arguments_of_torchrun(script)


ARGUMENTS = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), max_size=5)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arguments=ARGUMENTS)
@example(arguments=ODD)
def test_every_argument_arrives_as_it_was_given(arguments_of_torchrun, arguments):
    told = arguments_of_torchrun(sbatch_script(["train", *arguments], EVERYTHING))
    assert told[9:] == ["-m", "--", "playbook", "train", *arguments]


@pytest.fixture
def submit(tmp_path, monkeypatch) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Submits a script in ``tmp_path`` to the fake Slurm; ``logs/JOB/node-N.log`` is there afterwards."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sbatch", "scancel", "scontrol", "srun"):
        (programs / name).write_text(f"#!{sys.executable}\n{FAKE.read_text()}")
        (programs / name).chmod(0o755)
    # What is 5 s there is a blink here.
    (programs / "sleep").write_text(f"#!/bin/sh\nexec {shutil.which('sleep')} 0.2\n")
    (programs / "sleep").chmod(0o755)
    path = [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
    env = {
        **os.environ,
        "PATH": os.pathsep.join(path),
        "PYTHONPATH": os.pathsep.join([warm.python_path(), str(FAKE.parents[1])]),
        "FAKE_JOB_ID": str(free_job_id(3)),
        "CUDA_VISIBLE_DEVICES": "",
        "TMPDIR": str(programs),
    }

    def run(script: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["sbatch"], input=script, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600
        )
        assert list(programs.glob("torchelastic*")) == []
        return done

    return run


def logs(folder: Path) -> list[str]:
    """The output of each node."""
    return [path.read_text() for path in sorted(folder.glob("logs/*/node-*.log"))]


@pytest.mark.slow
def test_a_node_whose_rank_fails_ends_the_job_on_all_nodes(submit, tmp_path):
    (tmp_path / "work.py").write_text(
        "import os, time\nfrom leftovers import sign_in\nsign_in('.')\n"
        "if os.environ['RANK'] == '1':\n    raise ValueError('bad shape')\ntime.sleep(1000)\n"
    )
    done = submit(sbatch_script(["work.py"], SlurmJob(nodes=2, gpus_per_node=1)))
    assert done.returncode == 1
    assert "ValueError: bad shape" in logs(tmp_path)[1]
    assert "ValueError" not in logs(tmp_path)[0]
    assert len(signed_in(tmp_path)) == 2
    assert remaining(signed_in(tmp_path)) == []


WORK = """
import json, os, signal, sys, time
from pathlib import Path
from leftovers import sign_in

sign_in(".")
rank, first, asked = os.environ["RANK"], os.environ["SLURM_RESTART_COUNT"] == "0", []
names = "WORLD_SIZE GROUP_RANK LOCAL_RANK SLURM_NODEID SLURMD_NODENAME MASTER_ADDR GREETING OMP_NUM_THREADS"
found = json.dumps([int(rank), [os.environ[name] for name in names.split()], sys.argv[1:]])
os.write(1, f"FOUND {found}\\n".encode())  # at one go: ranks of a node share a log, and print writes line ends apart
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, lambda number, frame: asked.append(signal.Signals(number).name))
Path(f"listens-{rank}").touch()
if first and rank == "0":  # the word comes once
    while len(list(Path(".").glob("listens-*"))) < 4:
        time.sleep(0.01)
    Path("bin", "preempt").touch()
state = Path(f"state-{rank}")
begun = done = int(state.read_text()) if state.exists() else 0
while not asked if first else done < 100:
    done += 1
    state.write_text(str(done))
    time.sleep(0.01)
time.sleep(0.2)
os.write(1, f"FROM {begun} TO {done} {set(asked)}\\n".encode())
"""


@pytest.mark.slow
def test_ranks_of_two_nodes_that_are_asked_save_and_leave_and_the_next_job_goes_on(submit, tmp_path):
    """Another job needs the nodes."""
    (tmp_path / "work.py").write_text(WORK)
    setup = ('export GREETING="it\'s $((6 * 7))"',)
    job = SlurmJob(nodes=2, gpus_per_node=2, cpus_per_gpu=3, setup=setup, requeue=True, max_restarts=2)
    done = submit(sbatch_script(["work.py", *ODD], job))
    texts = logs(tmp_path)
    assert done.returncode == 0, (done.stderr, texts)
    for node, host, text in zip((0, 1), ("127.0.0.1", "127.0.0.2"), texts, strict=True):
        found = sorted(map(json.loads, re.findall("^FOUND (.*)$", text, re.MULTILINE)))
        own = ["4", str(node), "{}", str(node), host, "127.0.0.1", "it's 42", "3"]
        assert found == [
            [2 * node + i, [word.format(i) for word in own], ODD] for i in (0, 1) for _ in range(2)
        ]
        left, gone_on = (
            re.findall(rf"FROM (\d+) TO (\d+) {who}", text) for who in ("{'SIGTERM'}", r"set\(\)")
        )
        assert [begun for begun, _ in left] == ["0", "0"]
        assert sorted(gone_on) == sorted((done, str(max(100, int(done)))) for _, done in left)
        # Of the ranks' program: torchrun prints one of its own when the other node is late at its exit barrier.
        assert 'work.py", line' not in text
    assert len(signed_in(tmp_path)) == 8
    assert remaining(signed_in(tmp_path)) == []


TRAINS = """
import json, signal, sys, time
from pathlib import Path

if Path("c").exists():
    Path("told").write_text(json.dumps(sys.argv[1:]))
    sys.exit(0)
from playbook.cli import main
from playbook.launch.logs import JsonLog

write = JsonLog.step

def step(log, record):
    write(log, record)
    if record["step"] == 5:
        Path("bin/warn").touch()
        while signal.getsignal(signal.SIGUSR1) != signal.SIG_IGN:  # until this rank has been asked
            time.sleep(0.01)

JsonLog.step = step
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_training_that_was_asked_to_leave_goes_on_to_the_same_losses_bit_for_bit(
    submit, tmp_path, monkeypatch
):
    """In the next job of an array, which is told the same, after which the rest is cancelled. It goes on here, since
    torch is loaded. What several ranks do that are asked is in tests/training/test_leaving.py."""
    train, steps = two_agents.train_flags(""), 9
    (tmp_path / "work.py").write_text(TRAINS)
    (tmp_path / "bin" / "torchrun").write_text(f"#!{sys.executable}\n{FORKED.read_text()}")
    (tmp_path / "bin" / "torchrun").chmod(0o755)
    more = f"--steps {steps} --device cpu --quiet --log run.jsonl --checkpoint c --resume".split()
    job = SlurmJob(nodes=1, gpus_per_node=1, cpus_per_gpu=1, array=3)
    done = submit(sbatch_script(["work.py", "train", *train, *more], job))
    texts = logs(tmp_path)
    assert done.returncode == 0, (done.stderr, texts)
    assert (tmp_path / "bin" / "cancelled").exists()
    assert len(texts) == 2
    assert "saved and left, as asked, after 6 steps" in texts[0]
    told = json.loads((tmp_path / "told").read_text())
    assert told == ["train", *train, *more]
    monkeypatch.chdir(tmp_path)
    assert main(told) == 0
    found = [(r["step"], r["loss"], r["grad_norm"]) for r in read_json_log(tmp_path / "run.jsonl")]
    assert found == two_agents.quiet(tmp_path, train, steps)


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
