"""``playbook simulate`` and ``playbook search`` from the command line."""

import json

import megatron_reader
import pytest

from playbook.cli import main
from playbook.layout import Layout
from playbook.planning.simulator import PARTS
from playbook.shapes import load

SIMULATE = [
    "simulate",
    "--model",
    "llama3-8b",
    "--gpus",
    "8",
    "--layout",
    "tp=2,sp,zero=1",
    "--global-batch",
    "64",
]
SEARCH = [
    "search",
    "--model",
    "llama3-8b",
    "--gpus",
    "8",
    "--global-batch",
    "32",
    "--seq",
    "4096",
    "--top",
    "3",
]


def said(capsys, *argv):
    assert main(list(argv)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def refused(capsys, *argv):
    assert main(list(argv)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_simulate_says_where_the_time_goes(capsys):
    out = said(capsys, *SIMULATE)
    assert "dp=4,tp=2,sp,zero=1,grad_acc=16" in out
    assert "MFU" in out
    assert "GB on the fullest rank of 85.5 GB: fits, with " in out
    found = json.loads(said(capsys, *SIMULATE, "--json"))
    assert (found["memory"]["fits"], found["memory"]["verdict"]) == (True, "fits")
    assert tuple(found["breakdown_s"]) == PARTS
    assert sum(found["breakdown_s"].values()) == pytest.approx(found["step_s"])


def test_every_term_is_explained(capsys):
    lines = said(capsys, *SIMULATE, "--explain").splitlines()
    found = json.loads(said(capsys, *SIMULATE, "--json"))
    blocks = [line for line in lines if line.startswith("  dense block") and "µs  " in line]
    microseconds = sum(float(line.rsplit("µs", 1)[0].split()[-1].replace(",", "")) for line in blocks)
    rest = [line for line in lines if line.startswith(("  embedding", "  head")) and "µs  " in line]
    ends = sum(float(line.rsplit("µs", 1)[0].split()[-1].replace(",", "")) for line in rest)
    # What is printed of one micro-batch adds up to the computation, but for gradients that are added up.
    total = 16 * (32 * microseconds + ends) * 1e-6
    assert 0.93 * found["breakdown_s"]["compute"] < total < found["breakdown_s"]["compute"] * 1.001
    assert any("all_gather" in line for line in lines)
    assert any("optimizer: " in line for line in lines)


def test_jobs_are_answered_line_by_line(capsys, tmp_path):
    jobs = tmp_path / "jobs.jsonl"
    good = {
        "model": "llama3-8b",
        "cluster": "h100-8",
        "gpus": 8,
        "layout": "tp=2,zero=1",
        "global_batch": 8,
        "seq": 2048,
    }
    lines = [
        json.dumps(good),
        "",
        '{"model": "llama3-8b", "clus',
        json.dumps({**good, "gpus": 0}),
        json.dumps(good),
    ]
    jobs.write_text("\n".join(lines))
    answers = [
        json.loads(line) for line in said(capsys, "simulate", "--jobs", str(jobs), "--json").splitlines()
    ]
    assert ["error" in found for found in answers] == [False, True, True, False]
    assert answers[0] == answers[3]
    assert "jobs: No such file" in refused(capsys, "simulate", "--jobs", str(tmp_path / "none.jsonl"))


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ([*SIMULATE, "--cluster", "h1000"], "unknown cluster 'h1000'"),
        ([*SIMULATE, "--cluster", '{"base": "h100-8"'], "the cluster's inline JSON cannot be read"),
        ([*SIMULATE, "--overlap", "dp=maybe"], "overlap is written dp,tp=no: 'dp=maybe' is neither"),
        ([*SIMULATE, "--reserve", "much"], "reserve"),
        (
            [*SIMULATE, "--layout", "zero=0"],
            "85.5 GB; playbook search finds layouts that fit, and --no-limit times",
        ),
        (["search", "--gpus", "8"], "global_batch is missing"),
        (["search", "--global-batch", "8"], "gpus is missing"),
        ([*SEARCH, "--tp", "1,x"], "tp must be whole numbers such as 1,2,4, got '1,x'"),
        ([*SEARCH, "--emit", "jax"], "emit must be one of megatron"),
        ([*SEARCH, "--schedules", "fast"], "unknown schedules 'fast'"),
        ([*SEARCH, "--recompute", "some"], "unknown recompute 'some'"),
        ([*SEARCH, "--zero", "4"], "unknown zero '4'"),
    ],
)
def test_bad_input_is_one_sentence(capsys, argv, sentence):
    assert sentence in refused(capsys, *argv)


def test_what_cannot_run_anyhow_is_not_sent_to_search(capsys):
    assert "search" not in refused(capsys, *SIMULATE, "--layout", "ep=2")


def test_search_lists_layouts_that_can_be_simulated(capsys):
    found = json.loads(said(capsys, *SEARCH, "--json"))
    assert len(found["layouts"]) == 3
    assert found["candidates"] > found["evaluated"]
    first = found["layouts"][0]
    argv = ["--gpus", "8", "--global-batch", "32", "--seq", "4096", "--layout", first["layout"], "--json"]
    again = json.loads(said(capsys, "simulate", "--model", "llama3-8b", *argv))
    assert again["step_s"] == pytest.approx(first["step_s"], rel=0.02)
    out = said(capsys, *SEARCH)
    assert first["layout"] in out
    assert "takes " in out
    assert "% longer than" in out


def test_a_step_with_almost_no_memory_left_is_tight_and_search_leaves_it_out(capsys):
    """As a GPU has a little more than the fastest layout needs: it runs, and is not recommended."""
    first = json.loads(said(capsys, *SEARCH, "--json"))["layouts"][0]
    cluster = [
        "--cluster",
        json.dumps({"base": "h100-8", "memory_bytes": round(first["memory"]["peak"] / 0.98)}),
    ]
    where = ["--model", "llama3-8b", "--gpus", "8", "--global-batch", "32", "--seq", "4096", *cluster]
    simulate = ["simulate", *where, "--layout", first["layout"]]
    memory = json.loads(said(capsys, *simulate, "--json"))["memory"]
    assert memory == {**first["memory"], "capacity": memory["capacity"], "verdict": "tight", "fits": True}
    assert "tight, with 1.5 GB to spare, which is less than the 3.1 GB that should stay free" in said(
        capsys, *simulate
    )
    assert "GB stay free" in refused(capsys, *simulate, "--reserve", "4GB")
    found = [
        json.loads(said(capsys, *SEARCH, *cluster, *more, "--json"))["layouts"]
        for more in ([], ["--reserve", "0"], ["--reserve", "1GB"])
    ]
    assert [layouts[0]["layout"] == first["layout"] for layouts in found] == [False, True, True]
    for one in found[0]:
        assert one["memory"]["verdict"] == "fits"
        assert one["memory"]["peak"] <= 0.96 * first["memory"]["peak"] / 0.98 + 1
    assert "3.1 GB of each GPU's 76.6 GB stay free" in said(capsys, *SEARCH, *cluster)


def test_the_best_is_emitted_as_flags(capsys):
    found = json.loads(said(capsys, *SEARCH, "--json"))
    layout = Layout.parse(found["layouts"][0]["layout"])
    out = said(capsys, *SEARCH, "--emit", "megatron")
    args = megatron_reader.read(out)
    assert (args.tensor_model_parallel_size, args.global_batch_size) == (layout.tp, 32)
    assert megatron_reader.parameters(args) == load("llama3-8b").num_parameters


def test_memory_advises_what_search_finds(capsys):
    argv = [
        "memory",
        "--model",
        "llama3-70b",
        "--layout",
        "dp=32,grad_acc=16",
        "--seq",
        "4096",
        "--accelerator",
        "h100",
    ]
    found = json.loads(said(capsys, *argv, "--advice", "--json"))
    assert not found["fits"]
    best = found["advice"][0]
    searched = [
        "search",
        "--model",
        "llama3-70b",
        "--gpus",
        "32",
        "--global-batch",
        "512",
        "--seq",
        "4096",
        "--json",
    ]
    assert best["layout"] == json.loads(said(capsys, *searched))["layouts"][0]["layout"]
    assert f"{best['layout']}: {best['memory']['peak'] / 1e9:.2f} GB" in said(capsys, *argv, "--advice")
    assert "advice is about a GPU" in refused(capsys, "memory", "--advice")


def test_one_device_is_called_so(capsys):
    where = ["--model", "tiny", "--gpus", "1", "--global-batch", "1", "--seq", "8"]
    assert "(one device)" in said(capsys, "simulate", *where)
    assert said(capsys, "search", *where, "--top", "1").rstrip().endswith("one device")
