"""The command of the README with fewer steps: a real run on real text."""

import json
import shutil
from pathlib import Path

import pytest

from playbook.cli import main


def test_the_tiny_model_learns_pythons_documentation(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sizes = ["--global-batch", "8", "--seq", "32", "--device", "cpu", "--json", "--quiet"]
    assert main(["train", "--model", "tiny", "--steps", "40", *sizes]) == 0
    losses = json.loads(capsys.readouterr().out)["losses"]
    assert losses[0] == pytest.approx(5.6, abs=0.15)
    assert sum(losses[-10:]) / 10 < 3.1  # letters drawn by their frequency alone: 3.3


def test_a_run_that_was_stopped_goes_on_from_its_checkpoint(tmp_path, capsys, monkeypatch):
    """In the command's own process, then on ranks with another layout, saving in the background."""
    monkeypatch.chdir(tmp_path)
    shape = '{"layers": 2, "hidden": 16, "heads": 2, "ffn": 24, "vocab": 256, "max_seq": 16}'
    common = [
        "train",
        "--model",
        shape,
        "--global-batch",
        "4",
        "--seq",
        "8",
        "--warmup",
        "1",
        "--device",
        "cpu",
    ]
    common += ["--quiet", "--json"]

    def losses(*flags: str) -> tuple[int, list[float], str]:
        status = main([*common, *flags])
        out = capsys.readouterr()
        assert status == 0, out.err
        found = json.loads(out.out)
        assert min(found["peak_bytes"]) > 0 or not found["losses"]
        return found["first_step"], found["losses"], out.err

    saved = ["--checkpoint", "c", "--every", "2", "--steps", "6"]
    first, whole, _ = losses(*saved)
    assert first == 0
    shutil.rmtree(tmp_path / "c" / "step-00000006")
    first, again, said = losses(*saved, "--resume")
    assert (first, again) == (4, whole[4:])
    assert f"resumes after step 4, from {Path('c', 'step-00000004')}" in said
    for name in ("step-00000004", "step-00000006"):
        shutil.rmtree(tmp_path / "c" / name)
    first, again, _ = losses(*saved, "--resume", "--async", "--keep", "1", "--layout", "dp=2,zero=3")
    assert (first, again) == (2, pytest.approx(whole[2:], rel=1e-6))
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["step-00000006"]
    assert losses(*saved, "--resume")[:2] == (6, [])

    assert main(["checkpoint", "show", "c", "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["checkpoints"]
    assert (shown["step"], shown["ranks"]) == (6, 2)
    assert main(["checkpoint", "verify", "c"]) == 0
    assert "1 of 1 whole" in capsys.readouterr().err
    file = next((tmp_path / "c" / "step-00000006").glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1])
    assert main(["checkpoint", "verify", "c"]) == 1
    assert f"is not whole: {file.name} has" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--keep 2", "keep is 2, but there is no checkpoint folder: give --checkpoint DIR"),
        ("--checkpoint c --every 0", "every is 0, but must be at least 1"),
        ("--checkpoint c --keep -1", "keep is -1, but must be at least 1"),
        ("--checkpoint file", "checkpoint is 'file', which is a file: give a folder"),
        ("--max-restarts 2", "max_restarts is 2, but there is no checkpoint folder: give --checkpoint DIR"),
        ("--max-restarts -1", "max_restarts must be at least 0, got -1"),
        (
            "--log old.jsonl",
            "log 'old.jsonl' exists already, and would be overwritten: give another name, or go on with --resume",
        ),
    ],
)
def test_flags_of_checkpoints_that_cannot_be(flags, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("old.jsonl").write_text("precious\n")
    assert main(["train", "--quiet", *flags.split()]) == 2
    assert f"playbook train: {sentence}" in capsys.readouterr().err
    assert Path("old.jsonl").read_text() == "precious\n"
