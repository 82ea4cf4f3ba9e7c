"""The command line as a user meets it: real signals, one sentence for every mistake."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from playbook import cli, doctor
from playbook.cli import main
from playbook.commands.flags import whole
from playbook.commands.train import _default_log, _report
from playbook.commands.training import Outcome
from playbook.launch.logs import JsonLog, read_json_log
from playbook.layout import Layout
from playbook.planning.traffic import by_axis, traffic
from playbook.shapes import load

SMALL = json.dumps(
    {
        "layers": 1,
        "hidden": 16,
        "heads": 2,
        "vocab": 256,
        "max_seq": 64,
        "positions": "rotary",
        "norm": "rmsnorm",
    }
)
COMMAND = [sys.executable, "-m", "playbook"]


@pytest.fixture
def train_here(tmp_path, monkeypatch, capsys):
    """The same in this process, in a folder of its own: what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(*flags, model=SMALL, sizes=("--seq", "16", "--global-batch", "4")):
        status = main(["train", "--model", model, *sizes, "--device", "cpu", *flags])
        printed = capsys.readouterr()
        assert status == 0, printed.err
        return printed

    return run


def test_json_is_one_object_on_stdout_and_the_rest_on_stderr(tmp_path, train_here):
    result = json.loads(train_here("--steps", "3", "--json").out)
    assert set(result) >= {"losses", "grad_norms", "tokens_per_s", "peak_bytes", "bytes_sent"}
    assert len(result["losses"]) == len(result["grad_norms"]) == 3
    assert result["losses"][0] == pytest.approx(5.55, abs=0.3)  # about ln 256
    assert result["tokens_per_s"] > 0
    assert len(result["peak_bytes"]) == 1
    assert result["peak_bytes"][0] > 0
    logs = list((tmp_path / "runs").glob("*.jsonl"))
    assert len(logs) == 1
    assert [r["loss"] for r in read_json_log(logs[0])] == result["losses"]


def test_kernels_that_are_interpreted_say_so(train_here):
    """What they compute is PyTorch's: ``tests/parallel/test_fused.py``."""
    small = ("--steps", "1", "--json", "--quiet")
    fused = train_here(*small, "--kernels", "fused", sizes=("--seq", "4", "--global-batch", "1"))
    assert isinstance(json.loads(fused.out)["losses"][0], float)
    assert "interpreted" in fused.err
    assert "interpreted" not in train_here(*small).err


def test_a_loss_that_is_no_number_is_null_in_valid_json(tmp_path, train_here):
    done = train_here("--steps", "5", "--lr", "1e30", "--grad-clip", "0", "--json", "--log", "run.jsonl")

    def loads(text):
        return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))

    losses = loads(done.out)["losses"]
    assert isinstance(losses[0], float)
    assert losses[-1] is None
    assert [r.get("loss") for r in map(loads, (tmp_path / "run.jsonl").read_text().splitlines())][
        1:-1
    ] == losses
    said = [line for line in done.err.splitlines() if "no finite number" in line]
    assert len(said) == 1
    assert f"at step {losses.index(None)}: try a smaller --lr" in said[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_asked_to_end_leaves_a_readable_log(number, tmp_path, monkeypatch, capsys, handle_interrupts):
    """By a signal of its own here; that nothing is left of a run's ranks is in ``test_training_on_ranks.py``."""
    write = JsonLog.step

    def step(log, record):
        write(log, record)
        if record["step"] == 5:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(JsonLog, "step", step)
    monkeypatch.chdir(tmp_path)
    handler = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    before = signal.signal(number, handler)
    try:
        sizes = [
            "--model",
            SMALL,
            "--seq",
            "16",
            "--steps",
            "100000",
            "--global-batch",
            "4",
            "--device",
            "cpu",
        ]
        assert main(["train", *sizes, "--log", "run.jsonl", "--json"]) == 130
        assert signal.getsignal(number) == handler
    finally:
        signal.signal(number, before)
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    assert "interrupted after" in err
    steps = read_json_log(tmp_path / "run.jsonl")
    assert [r["step"] for r in steps] == list(range(6))
    assert json.loads((tmp_path / "run.jsonl").read_text().splitlines()[-1]) == {"event": "interrupted"}
    assert json.loads(out)["losses"] == [r["loss"] for r in steps]


def test_a_run_asked_to_end_before_its_first_step_says_so(capsys):
    args = argparse.Namespace(json=False, steps=5)
    assert _report(args, Outcome([], [], interrupted=True)) == 130
    assert capsys.readouterr().err == "interrupted before the first step\n"


def test_logs_of_runs_that_start_in_one_second_have_names_of_their_own():
    assert re.fullmatch(rf"runs/a-b-\d{{8}}-\d{{6}}-{os.getpid()}\.jsonl", _default_log("a/b"))


def test_several_logs_at_once(tmp_path, train_here):
    train_here("--steps", "2", "--log", "a.csv", "--log", "b.jsonl", "--quiet")
    rows = (tmp_path / "a.csv").read_text().splitlines()
    assert rows[0].startswith("step,loss,grad_norm")
    assert len(rows) == 3
    assert len(read_json_log(tmp_path / "b.jsonl")) == 2


def test_tensorboard_log(tmp_path, train_here):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train_here("--steps", "2", "--log", "board", "--quiet")
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert [e.step for e in events.Scalars("loss")] == [0, 1]


def test_without_tensorboard_the_way_to_get_it_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    flags = ["--steps", "1", "--seq", "16", "--global-batch", "4", "--device", "cpu", "--log", "board"]
    assert main(["train", "--model", SMALL, *flags]) == 2
    assert "pip install tensorboard" in capsys.readouterr().err


def test_a_toml_file_and_a_text_of_ones_own(tmp_path, train_here):
    (tmp_path / "mine.toml").write_text("layers = 1\nhidden = 8\nheads = 2\nvocab = 256\n")
    (tmp_path / "mine.txt").write_text("to be or not to be, that is the question. " * 20)
    done = train_here(
        "--data", "mine.txt", "--steps", "2", "--quiet", model="mine.toml", sizes=("--seq", "8")
    )
    assert "840 tokens of mine.txt" in done.err


BAD = {
    "heads do not divide": (["--model", '{"layers":1,"hidden":10,"heads":3,"vocab":256}'], "heads"),
    "unknown preset": (["--model", "llama9-8b"], "llama9-8b"),
    "negative size": (["--model", '{"layers":-1,"hidden":8,"heads":2,"vocab":256}'], "layers"),
    "unknown field": (["--model", '{"layers":1,"hidden":8,"heads":2,"vocab":256,"depth":3}'], "depth"),
    "broken JSON": (["--model", '{"layers":1,'], "JSON"),
    "corrupt TOML": (["--model", "broken.toml"], "broken.toml"),
    "no such TOML": (["--model", "absent.toml"], "absent.toml"),
    "no model": (["--model", ""], "unknown model ''"),
    "a list as model": (["--model", "[]"], "unknown model '[]'"),
    "a folder as model": (["--model", "folder.toml"], "directory"),
    "a binary file as model": (["--model", "binary.toml"], "not UTF-8"),
    "layers as a float": (["--model", '{"layers":1e9,"hidden":64,"heads":2,"vocab":256}'], "an integer"),
    "too many layers": (
        ["--model", '{"layers":1000000000,"hidden":64,"heads":2,"vocab":256}'],
        "at most 10000",
    ),
    "experts as a number": (["--model", '{"moe":3,"layers":1,"hidden":64,"heads":2,"vocab":256}'], "a table"),
    "hidden beyond 64 bits": (
        ["--model", f'{{"layers":1,"hidden":{10**30},"heads":2,"vocab":256}}'],
        "at most",
    ),
    "hidden beyond memory": (["--model", f'{{"layers":1,"hidden":{10**12},"heads":2,"vocab":256}}'], "GiB"),
    "positions beyond memory": (
        [
            "--model",
            '{"layers":1,"hidden":8,"heads":2,"vocab":256,"positions":"rotary","max_seq":100000000000}',
        ],
        "GiB for max_seq=100000000000 positions alone",
    ),
    "unreadable data": (["--data", "absent.txt"], "absent.txt"),
    "a folder as data": (["--data", "."], "directory"),
    "a device as data": (["--data", "/dev/zero"], "cannot be read (a device, which may have no end)"),
    "empty text": (["--data", "empty.txt"], "empty.txt"),
    "short text": (["--data", "short.txt"], "seq=256"),
    "no steps": (["--steps", "0"], "steps must be at least 1, got 0"),
    "steps in words": (["--steps", "many"], "many"),
    "micro-batch": (
        ["--global-batch", "6", "--micro-batch", "4"],
        "must divide global_batch=6: one of 1, 2, 3, 6",
    ),
    "sequence too long": (["--seq", "4096"], "max_seq=1024"),
    "dtype": (["--dtype", "fp8"], "float32, bfloat16, float16"),
    "moments": (["--moments", "fp4"], "one of fp32, bf16, fp8"),
    "masters": (["--masters", "fp16"], "weights of float32 have none"),
    "recompute": (["--recompute", "half"], "known: core_attn, full"),
    "learning rate": (["--lr", "nan"], "lr must be finite, got nan"),
    "seed": (["--seed", "-1"], "seed must be at least 0, got -1"),
    "device": (["--device", "tpu"], "cpu or cuda"),
    "layout text": (["--layout", "dq=2"], "dq"),
    "experts without a model that has some": (
        ["--layout", "dp=2,ep=2"],
        "ep must be 1 for a model without experts",
    ),
    "experts that cannot be spread": (
        ["--layout", "dp=3,ep=3", "--model", "tiny-moe", "--global-batch", "12"],
        "ep must divide moe.experts = 8 (1, 2, 4, 8), got 3",
    ),
    "more ranks with experts than ranks": (
        ["--layout", "dp=2,ep=4", "--model", "tiny-moe"],
        "ep must divide dp * cp = 2",
    ),
    "two steps without nodes": (
        ["--layout", "dp=2,ep=2", "--model", "tiny-moe", "--dispatch", "two-step"],
        "dispatch is 'two-step', which needs node",
    ),
    "a schedule of no pipeline": (
        ["--schedule", "zb-h1"],
        "the layout has no pipeline: give it pp=2 or more",
    ),
    "another schedule": (["--layout", "pp=2,schedule=afab", "--schedule", "1f1b"], "give it once"),
    "a schedule that is not there": (["--layout", "pp=2", "--schedule", "2f2b"], "schedule must be one of"),
    "too few micro-batches": (
        ["--layout", "pp=4,schedule=zb-h2", "--global-batch", "12", "--micro-batch", "2"],
        "needs at least 7 micro-batches per step; global_batch=12 over dp=1 ranks in micro-batches of 2 makes 6",
    ),
    "layers that do not add up": (["--layout", "pp=2", "--stage-layers", "3,2"], "add up to the 4 layers"),
    "chunks without a schedule for them": (["--layout", "pp=2,vpp=2"], "say schedule=interleaved"),
    "a schedule that waits for itself": (
        ["--layout", "pp=2", "--schedule", "stuck.json", "--global-batch", "1"],
        "rank 1 waits with BW of micro-batch 0 on stage 1 for F of micro-batch 0 on stage 1",
    ),
    "heads that ranks cannot share": (["--layout", "tp=3"], "tp must divide heads = 8 (1, 2, 4, 8), got 3"),
    "tokens that ranks cannot share": (
        ["--layout", "cp=4", "--seq", "66"],
        "cp must divide seq = 66 (1, 2, 3, 6, 11, 22, 33, 66), got 4",
    ),
    "tokens sharded beside no heads": (["--layout", "sp"], "it needs tp above 1, got tp = 1"),
    "heads that are not there to swap": (
        ["--layout", "tp=4,cp=4", "--context", "ulysses"],
        "cp is 4, but with context='ulysses' it must divide the 2 heads of each rank (tp=4): one of 1, 2",
    ),
    "a zigzag of swapped tokens": (
        ["--layout", "cp=2", "--context", "ulysses", "--placement", "zigzag"],
        "make it contiguous",
    ),
    "way to reach other tokens": (["--context", "rings"], "one of ring, gather, ulysses"),
    "placement": (["--placement", "stripes"], "known: contiguous, documents, greedy, zigzag"),
    "chunks of what is whole": (["--layout", "tp=2", "--tensor-overlap", "chunked"], "it needs sp"),
    "dropout over several ranks": (
        ["--model", '{"layers":1,"hidden":8,"heads":2,"vocab":256,"dropout":0.1}', "--layout", "cp=2"],
        "has dropout=0.1",
    ),
    "a batch that ranks cannot share": (
        ["--layout", "dp=3", "--global-batch", "8"],
        "global_batch is 8, but must be a multiple of dp=3",
    ),
    "a share that micro-batches do not divide": (
        ["--layout", "dp=2", "--global-batch", "12", "--micro-batch", "4"],
        "the 6 samples of each of dp=2 ranks: one of 1, 2, 3, 6",
    ),
    "micro-batch said twice": (
        ["--layout", "dp=2,micro_batch=2", "--micro-batch", "4"],
        "micro_batch is 4, but 2 in the layout: give it once",
    ),
    "a micro-batch of 1 said twice": (
        ["--layout", "dp=2,micro_batch=1", "--micro-batch", "4"],
        "micro_batch is 4, but 1 in the layout: give it once",
    ),
    "recomputation said twice": (
        ["--layout", "recompute=full", "--recompute", "selective"],
        "recompute is 'selective', but 'full' in the layout",
    ),
    "accumulation that does not fit": (["--layout", "dp=2,grad_acc=3"], "grad_acc is 3 in the layout"),
    "16-bit weights of another dtype": (["--weights", "bfloat16"], "dtype must be bfloat16"),
    "fp16 weights of another dtype": (
        ["--weights", "float16", "--dtype", "bfloat16"],
        "weights are float16, so dtype must be float16, too, not bfloat16",
    ),
    "a scale that is no word": (
        ["--dtype", "float16", "--loss-scale", "large"],
        "loss_scale is 'large', but must be a finite number above 0, or dynamic",
    ),
    "a scale of nothing": (["--dtype", "float16", "--loss-scale", "0"], "loss_scale is 0.0, but must be"),
    "a scale that is not needed": (
        ["--loss-scale", "8"],
        "loss_scale is 8.0, but dtype is float32, which needs none",
    ),
    "a first scale": (["--initial-loss-scale", "inf"], "initial_loss_scale must be finite, got inf"),
    "a window": (["--loss-scale-window", "0"], "loss_scale_window must be at least 1, got 0"),
    "way to add gradients": (["--data-parallel", "magic"], "naive, overlapped, bucketed"),
    "no bucket": (["--bucket-mb", "0"], "bucket_mb must be at least 1, got 0"),
    "log that ranks cannot write": (
        ["--layout", "dp=2", "--log", "empty.txt/run.jsonl"],
        "cannot be written",
    ),
    "log name": (["--log", "run.xml"], "run.xml"),
    "log in a file": (["--log", "plain"], "log is 'plain', but must end in .jsonl or .csv, or be a folder"),
    "log nowhere": (["--log", "empty.txt/run.jsonl"], "cannot be written"),
    "unknown flag": (["--learning", "1"], "--learning"),
}


def test_numbers_are_read_as_people_write_them():
    for text, number in {
        "8192": 8192,
        "8k": 8192,
        "16,384": 16384,
        "1e5": 100_000,
        "-1": -1,
        " 7 ": 7,
    }.items():
        assert cli._parser().parse_args(["memory", "--seq", text]).seq == number
    for text in ("8kk", "8.5", "1,92", "1e", "k", ""):
        with pytest.raises(ValueError, match="is no integer"):
            whole(text)


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_sentence_and_status_2(case, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.toml").write_text("layers = = 3\n")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "short.txt").write_text("hello")
    (tmp_path / "plain").write_text("hello")
    stuck = [[("F", 0), ("BW", 0)], [("BW", 1), ("F", 1)]]
    ranks = [[{"op": op, "stage": stage, "microbatch": 0} for op, stage in rank] for rank in stuck]
    (tmp_path / "stuck.json").write_text(json.dumps({"ranks": ranks}))
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "binary.toml").write_bytes(bytes(range(256)))
    flags, words = BAD[case]
    try:
        status = main(["train", "--device", "cpu", "--steps", "1", *flags])
    except SystemExit as end:  # argparse
        status = end.code
    out, err = capsys.readouterr()
    assert status == 2
    assert words in err
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in err


@pytest.mark.parametrize("ranks", ["2", "x"])
def test_more_ranks_than_the_layout_has(ranks, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", ranks)
    assert main(["train", "--steps", "1"]) == 2
    assert f"{ranks} ranks were launched, but the layout has 1" in capsys.readouterr().err


def test_cuda_that_is_not_there():
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert main(["train", "--device", "cuda", "--steps", "1"]) == 2


def test_a_model_larger_than_the_machine_is_refused_before_it_is_built(capsys):
    assert main(["train", "--model", "gpt3-175b", "--device", "cpu", "--steps", "1"]) == 2
    assert "needs 2,6" in capsys.readouterr().err  # 16 bytes for each of 175 billion parameters, in GiB


@pytest.mark.skipif(sys.platform != "linux", reason="limits address space")
def test_out_of_memory_says_what_to_make_smaller(tmp_path, monkeypatch, capsys):
    import resource

    monkeypatch.chdir(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**32, before[1]))
    try:
        flags = ["--model", SMALL, "--seq", "16", "--device", "cpu", "--steps", "1", "--quiet"]
        assert main(["train", *flags, "--global-batch", "2000000000"]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    err = capsys.readouterr().err
    assert "out of memory at step 0 with micro_batch=2000000000" in err
    assert "Traceback" not in err


def test_a_model_that_does_not_fit_is_refused_while_it_is_built(capsys, monkeypatch):
    import torch

    from playbook.training import trainer

    def build(*args, **options):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(trainer, "Transformer", build)
    assert main(["train", "--device", "cpu", "--steps", "1"]) == 2
    assert "out of memory while the model is built" in capsys.readouterr().err


def test_a_closed_pipe_ends_a_command_without_a_word_and_its_status_says_so():
    """As of any program that SIGPIPE ends: a run that was cut short has not succeeded."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as closed:
        done = subprocess.run(
            [*COMMAND, "schedule", "1f1b"], stdout=closed, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_a_full_disk_is_one_sentence():
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, "schedule", "1f1b"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        "playbook schedule: what it writes has no room: [Errno 28] No space left on device\n"
    )


def test_a_terminal_that_knows_ascii_alone():
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*COMMAND, "schedule", "1f1b"], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert "rank 3 ?" in done.stdout


def test_doctor_says_what_is_here(capsys):
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["tiers"]["CPU"] is True
    assert found["tiers"]["1 GPU"] == (len(found["gpus"]) >= 1)
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "Tiers of the book" in text
    assert f"Python {found['python']}" in text


def test_doctor_names_what_kernels_lack():
    found = doctor.examine()
    complete = {
        **found,
        "packages": {"torch": "2.13.0", "triton": "3.7.1"},
        "tools": {"nvcc": "nvcc"},
        "gpus": [{"capability": (9, 0)}],
    }
    assert doctor.missing(complete) == []
    bare = {
        "packages": {"torch": "2.13.0", "triton": None},
        "tools": {"nvcc": None},
        "gpus": [{"capability": (7, 5)}],
    }
    triton, nvcc, gpu = doctor.missing({**found, **bare})
    assert "Triton is not installed" in triton
    assert "nvcc is not on the path" in nvcc
    assert "GPU 0 has compute capability 7.5" in gpu
    first = doctor.missing({**complete, "packages": {"torch": None, "triton": None}})
    assert first == [f"PyTorch is not installed: you can plan, and train after {doctor.TORCH}"]


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert "train" in out
    assert "doctor" in out


def test_no_command_is_refused(capsys):
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--layout=--"],
        ["memory", "--layout=--"],
        ["schedule", "1f1b", "--rest=--"],
        ["slurm", "--setup=--", "--", "train"],
    ],
)
def test_no_flag_has_two_dashes_for_a_value(words, capsys):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    flag = next(word for word in words if word.endswith("=--"))[:-3]
    assert f"argument {flag}: -- is no value" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "said"), [
    ("memory --clster h100", "playbook memory: unrecognized arguments: --clster h100; did you mean --cluster?"),
    ("simulate --gbs=8", "playbook simulate: unrecognized arguments: --gbs=8 (see playbook simulate --help)"),
])  # fmt: skip
def test_an_unknown_flag_is_refused_by_its_command_with_the_near_ones(words, said, capsys):
    with pytest.raises(SystemExit):
        main(words.split())
    assert capsys.readouterr().err.startswith(said)


def test_what_comes_after_two_dashes_is_for_another_command(capsys):
    assert main(["slurm", "--", "mine.py", "--flag=--"]) == 0
    assert "mine.py --flag=--" in capsys.readouterr().out


def test_bench_prints_ratios_with_their_provenance(capsys):
    command = [
        "bench",
        "train",
        "--model",
        SMALL,
        "--seq",
        "16",
        "--micro-batch",
        "2",
        "--repeats",
        "1",
        "--device",
        "cpu",
    ]
    assert main([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["provenance"].keys() >= {"date", "command", "torch", "processor", "gpu"}
    for comparison in result["comparisons"].values():
        assert comparison["ratio"] == pytest.approx(comparison["ours_s"] / comparison["peer_s"])
    assert result["peak_bytes"]["full"] > 0
    assert main(command) == 0
    assert "torch.utils.checkpoint" in capsys.readouterr().out
    assert main([*command, "--seq", "0"]) == 2
    assert "seq must be at least 1, got 0" in capsys.readouterr().err


def test_memory_prints_the_contract(capsys):
    command = [
        "memory",
        "--model",
        "llama3-8b",
        "--layout",
        "dp=8,tp=2,zero=1",
        "--micro-batch",
        "1",
        "--seq",
        "4096",
    ]
    assert main([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["stages"][0].keys() >= {"params", "gradients", "optimizer", "activations", "total"}
    assert result["peak"] == result["stages"][0]["total"]
    assert main([*command, "--accelerator", "a100-40", "--explain"]) == 0
    text = capsys.readouterr().out
    assert "fits, with" in text
    assert "b·s·f·c/t" in text
    block = re.search(r"32 blocks: ([\d,]+) = 32 × ([\d,]+)$", text, re.MULTILINE)
    assert block
    assert block[1] == f"{32 * int(block[2].replace(',', '')):,}"
    assert "on 16 ranks (dp=8,tp=2,zero=1)\n" in text
    assert main(["memory", "--model", "llama3-70b", "--accelerator", "h100"]) == 0
    text = capsys.readouterr().out
    assert "parameters, on one device\n" in text
    assert "does not fit, by" in text
    assert "--advice looks for layouts that fit on as many GPUs" in text
    *parts, total = map(float, re.search(r"^stage 0 +80 +1\.00(.*)", text, re.MULTILINE)[1].split())
    assert min(parts) >= 0  # of what is alive together
    assert sum(parts) == pytest.approx(total, abs=0.03)


def test_what_advice_finds_or_does_not_comes_after_the_table(capsys):
    assert main(["memory", "--model", "llama3-70b", "--gpus", "8", "--accelerator", "h100", "--advice"]) == 2
    text, refused = capsys.readouterr()
    assert "does not fit, by" in text
    assert "nothing fits on 8 GPUs: even layout tp=8," in refused


def test_memory_takes_a_gpu_of_ones_own(capsys):
    def run(*flags):
        assert main(["memory", "--model", "gpt2", *flags]) == 0
        return capsys.readouterr().out

    own = json.loads(run("--memory", "96GB", "--reserve", "4GiB", "--json"))
    assert (own["capacity"], own["fits"], own["verdict"]) == (96 * 10**9 - 4 * 2**30, True, "fits")
    part = json.loads(run("--accelerator", "H100", "--memory", "20GiB", "--json"))
    assert part["capacity"] == 20 * 2**30
    assert "peak 2." in run("--memory", "96GB", "--reserve", "6GB")
    assert re.search(
        r"of 96\.00 GB: fits, with 9\d\.\d\d GB to spare\n$", run("--memory", "96GB", "--reserve", "6GB")
    )
    assert json.loads(run("--memory", "1GB", "--json"))["fits"] is False


def test_memory_that_is_almost_full_is_tight(capsys):
    """4 % stay free unless something else is asked for; whether it fits at all is told as well."""

    def run(*flags):
        assert main(["memory", "--model", "gpt2", *flags]) == 0
        return capsys.readouterr().out

    peak = json.loads(run("--json"))["peak"]
    for part, verdict in ((0.95, "fits"), (0.97, "tight"), (0.999, "tight"), (1.001, "does not fit")):
        memory = f"{peak / part / 1e9:.6f}GB"
        told = json.loads(run("--memory", memory, "--json"))
        assert (told["verdict"], told["fits"]) == (verdict, verdict != "does not fit")
        assert f": {verdict}, " in run("--memory", memory)
        if verdict == "tight":
            assert json.loads(run("--memory", memory, "--reserve", "0", "--json"))["verdict"] == "fits"
            own = json.loads(run("--memory", memory, "--reserve", "0.5GB", "--json"))
            assert (own["verdict"], own["fits"]) == ("tight", False)  # not beside what was asked to stay free
    memory = peak / 0.97
    words = f"tight, with {(memory - peak) / 1e9:.2f} GB to spare, which is less than the {0.04 * memory / 1e9:.2f} GB"
    assert words in run("--memory", f"{memory / 1e9:.6f}GB")


def test_memory_says_how_many_parameters_a_token_meets(capsys):
    command = ["memory", "--model", "deepseek-v3", "--layout", "dp=8,ep=8", "--seq", "4096"]
    assert main(command) == 0
    first = "deepseek-v3, 671,026,404,352 parameters, 37.6B active for each token, on 8 ranks (dp=8,ep=8)\n"
    assert capsys.readouterr().out.startswith(first)
    assert main([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["parameters"], result["active_parameters"]) == (671_026_404_352, 37_552_282_624)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--layout", "tp=3"], "tp"),
        (["--layout", "dp=0"], "dp"),
        (["--seq", "0"], "seq must be at least 1, got 0"),
        (["--layout", "micro_batch=2", "--micro-batch", "4"], "give it once"),
        (["--precision", "fp7"], "fp7"),
        (["--accelerator", "h1000"], "h1000"),
        (["--memory", "96"], "memory must be a number with its unit"),
        (["--reserve", "4GiB"], "give --accelerator or --memory with it"),
        (["--accelerator", "l4", "--reserve", "30GB"], "reserve must be below memory = 24.15 GB, got 30 GB"),
        (["--recompute", "half"], "recompute"),
        (["--model", ""], "unknown model ''"),
        (["--model", '{"layers":1000000000,"hidden":64,"heads":2,"vocab":256}'], "at most 10000"),
        (["--layout", "pp=1000000000"], "pp * vpp must be at most layers = 32"),
        (["--seq", "1" + 400 * "0"], "seq must be at most"),
    ],
)
def test_memory_refuses_in_one_sentence(flags, words, capsys):
    assert main(["memory", *flags]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("command", [["memory"], ["mesh"], ["mesh", "--rank", "0"]])
def test_plans_need_no_torch(command):
    code = (
        f"import sys; sys.modules['torch'] = None; from playbook.cli import main; sys.exit(main({command}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


MESH = ["mesh", "--model", "tiny", "--layout", "tp=2,cp=2,dp=2,pp=2,zero=1,grad_acc=4", "--seq", "64"]


def test_mesh_says_what_a_rank_is_and_sends(capsys):
    assert main([*MESH, "--rank", "5", "--per-node", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    layout = Layout.parse(MESH[4])
    assert found["coordinates"] == layout.coordinates(5)
    assert found["groups"]["pp"] == [5, 13]
    assert {axis: sum(sent.values()) for axis, sent in found["sent"].items()} == by_axis(
        traffic(load("tiny"), layout, 64, rank=5)
    )
    assert main([*MESH, "--rank", "5", "--per-node", "4"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["cp", "0", "2", "1", "5,", "7"] in lines
    assert ["dp", "1", "2", "2", "1,", "5"] in lines
    for axis in ("tp", "cp", "dp", "pp"):
        sent = found["sent"][axis]
        assert [axis, f"{sent['within']:,}", f"{sent['across']:,}"] in lines
    assert "blocks 0–1, the embedding" in " ".join(" ".join(line) for line in lines)


def test_mesh_draws_all_ranks_by_node(capsys):
    assert main(MESH) == 0
    text = capsys.readouterr().out
    assert "16 ranks (tiny" in text
    picture = [line.split() for line in text.splitlines()]
    assert ["node", "1", "rank", *map(str, range(8, 16))] in picture
    assert picture.count(["tp", *"01010101"]) == 2
    assert ["dp", "2", "8", "1"] in picture
    assert main([*MESH, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ranks"], found["nodes"], len(found["stages"])) == (16, 2, 2)
    assert found["axes"]["pp"] == {"size": 2, "groups": 8, "nodes": [2, 2]}
    assert main(["mesh", "--layout", "dp=1000", "--per-node", "16"]) == 0
    assert "59 more nodes" in capsys.readouterr().out


def test_mesh_says_which_experts_a_rank_has(capsys):
    flags = ["mesh", "--model", "tiny-moe", "--layout", "dp=8,ep=4", "--per-node", "4", "--rank", "5"]
    assert main(flags) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "experts 2–3 of 8 in each block with experts" in lines
    assert "ep 1 4 1 4, 5, 6, 7" in lines
    assert "edp 1 2 2 1, 5" in lines


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--rank", "16"], "rank must be below the layout's 16 ranks, got 16"),
        (["--rank", "-1"], "rank must be at least 0, got -1"),
        (["--per-node", "0"], "per_node must be at least 1, got 0"),
        (["--layout", "tp=3"], "tp must divide heads"),
        (["--grad-acc", "2"], "give it once"),
        (
            ["--layout", "dp=2147483647"],
            "dp * cp * tp * pp must be at most 262144, got 2147483647",
        ),
    ],
)
def test_mesh_refuses_in_one_sentence(flags, words, capsys):
    assert main([*MESH, *flags]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert len(err.strip().splitlines()) == 1
