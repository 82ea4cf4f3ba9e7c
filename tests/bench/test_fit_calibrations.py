"""The script that fits calibrations: it finds what was planted, and says how good a constant is."""

import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean, quantiles

import pytest

from playbook.bench import records
from playbook.hardware import load_accelerator
from playbook.layout import Layout
from playbook.planning.calibration import Calibration, from_table, load_calibration
from playbook.planning.jobs import run_of
from playbook_book.published import TABLES, Measured

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import tomllib

import fit_calibrations


@pytest.fixture(scope="module")
def fit():
    whole = fit_calibrations.FITS["megatron-2021-a100"]
    return replace(whole, keys=("matmul.bf16", "bandwidth", "intra"))


@pytest.fixture(scope="module")
def planted(fit):
    """Narayanan's table as it would be on a slower machine."""
    slow = Calibration("slow", **{**fit.given, "matmul": {"bf16": 0.6}, "bandwidth": 0.45, "intra": 0.5})
    rows = list(TABLES["narayanan"]())
    return [replace(row, seconds=fit_calibrations.predicted(row, slow)) for row in rows]


def test_what_was_planted_is_found(fit, planted):
    known = dict.fromkeys(fit_calibrations.KNOWN, 100.0)  # nothing is known beforehand
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit_calibrations, "KNOWN", known)
        found = fit_calibrations.fitted(fit, planted)
    assert found.reached("bf16") == pytest.approx(0.6, rel=0.02)
    assert found.bandwidth == pytest.approx(0.45, rel=0.05)
    assert found.intra == pytest.approx(0.5, rel=0.05)
    assert fit_calibrations.errors(planted, found).mean < 0.003


def test_without_data_what_was_known_stays(fit):
    found = fit_calibrations.fitted(fit, [])
    assert (found.reached("bf16"), found.bandwidth, found.intra) == pytest.approx((0.87, 0.75, 1.0))


@pytest.mark.parametrize("name", fit_calibrations.FITS)
def test_a_fit_gives_what_the_framework_keeps(name):
    """Which no fit finds: a calibration that is written anew has it all the same."""
    fit = fit_calibrations.FITS[name]
    shipped = load_calibration(name, load_accelerator(fit.given["accelerator"]))
    again = from_table(
        name, tomllib.loads(fit_calibrations.toml(name, fit, fit_calibrations.fitted(fit, [])))
    )
    assert (again.kernels, again.keeps) == (shipped.kernels, shipped.keeps)


def test_the_best_constant_is_exact_where_all_rows_reach_the_same():
    rows = [
        replace(row, seconds=fit_calibrations.ideal_seconds(row) / 0.4) for row in TABLES["korthikanti"]()
    ]
    assert fit_calibrations.constant(rows).worst < 1e-3


def test_a_sweep_is_read_and_judged(tmp_path):
    path = tmp_path / "sweep.csv"
    head = "model,nodes,gpus,dp,tp,pp,zero,mbs,grad_acc,gbs,seq,status,mfu_pct,tok_s_gpu,mem_gb,note\n"
    rows = [
        "8B,1,8,4,2,1,1,1,64,256,4096,ok,43.0,7000,65.2,", "8B,1,8,1,8,1,0,8,32,256,4096,ok,35.6,5900,60.1,",
        "8B,1,8,8,1,1,0,4,8,256,4096,oom_or_crash,,,,", "8B,1,8,1,1,64,0,4,64,256,4096,oom_or_crash,,,,",
    ]  # fmt: skip
    path.write_text(head + "\n".join(rows) + "\n")
    found = list(fit_calibrations.sweep(path))
    assert found[0].seconds == pytest.approx(256 * 4096 / 7000 / 8)
    assert found[2].seconds == 0
    report = fit_calibrations.sweep_report(
        found, fit_calibrations.fitted(fit_calibrations.FITS["torchtitan-h100"], [])
    )
    assert report["rows"] == 4
    assert report["right about memory"] >= 0.5
    assert report["timed"] <= 2


def sweep_of(calibration, stalled=()):
    """Runs that took as long as predicted with a calibration; those ``stalled`` 0.5 s longer for each micro-batch."""
    llama = {
        "layers": 16,
        "hidden": 2048,
        "heads": 32,
        "ffn": 8192,
        "vocab": 32000,
        "gated": True,
        "max_seq": 4096,
    }
    for layout in (
        "dp=8,zero=1",
        "dp=4,tp=2,sp",
        "dp=2,tp=2,pp=2,sp",
        "dp=2,pp=4,zero=1",
        "tp=8,sp",
        "dp=1,pp=8",
    ):
        job = {
            "model": llama, "cluster": "h100-8", "gpus": 8, "layout": layout, "micro_batch": 1, "global_batch": 64,
            "seq": 4096,
        }  # fmt: skip
        run = run_of({**job, "calibration": calibration})
        more = 0.5 * (run.layout.grad_acc + run.layout.pp - 1) * (layout in stalled)
        yield Measured("sweep", layout, job, run.seconds + more)


def test_a_square_has_the_fastest_run_and_the_one_that_is_predicted_to_be():
    calibration = fit_calibrations.fitted(fit_calibrations.FITS["nanotron-h100"], [])
    rows = sorted(sweep_of(calibration), key=lambda row: row.seconds)
    (calm,) = fit_calibrations.squares(rows, calibration)
    assert calm["measured best"]["layout"] == calm["predicted best"]["layout"] == rows[0].name
    assert calm["predicted best"]["predicted"] == pytest.approx(rows[0].seconds)
    late = [
        replace(rows[0], seconds=1000.0),
        *rows[1:-1],
        replace(rows[-1], seconds=0.0),
    ]  # the last did not run
    (found,) = fit_calibrations.squares(late, calibration)
    assert found["measured best"] == {"layout": rows[1].name, "seconds": rows[1].seconds}
    assert (found["predicted best"]["layout"], found["predicted best"]["seconds"]) == (rows[0].name, 1000.0)
    assert (found["nodes"], found["ran"]) == (1, len(rows) - 1)
    assert "twin's best" not in found
    pair = [replace(rows[0], name=f"dp=8,zero={zero},micro_batch=1", seconds=1.0 + zero) for zero in (0, 1)]
    (twins,) = fit_calibrations.squares([*rows, *pair], calibration)
    assert twins["twin's best"] == {"layout": pair[1].name, "seconds": 2.0, "twin": 1.0}


def test_recorded_squares_are_what_the_calibration_predicts_today():
    (record,) = records("published-squares")
    names = {"sweep 1B", "sweep 8B"}
    assert {(s["table"], s["nodes"]) for s in record["squares"]} == {
        (n, 2**i) for n in names for i in range(7)
    }
    for square in record["squares"]:
        said = square["predicted best"]
        layout, _, micro_batch = said["layout"].rpartition(",micro_batch=")
        job = fit_calibrations.sweep_job(
            square["table"].split()[1], layout, int(micro_batch), 8 * square["nodes"], 256, 4096
        )
        run = run_of({**job, "calibration": "nanotron-h100"})
        assert run.step(limit=False).seconds == pytest.approx(said["predicted"], rel=1e-6)
        assert said["seconds"] >= square["measured best"]["seconds"] <= square["twin's best"]["seconds"]


def test_a_curve_has_the_fastest_run_of_each_degree_that_uses_no_other_axis(monkeypatch):
    monkeypatch.setattr(fit_calibrations, "CURVES", (("tp", "sweep", 1), ("dp", "sweep", None)))
    calibration = fit_calibrations.fitted(fit_calibrations.FITS["nanotron-h100"], [])
    rows = [
        replace(row, name=f"dp={layout.dp},tp={layout.tp},pp={layout.pp}")
        for row in sweep_of(calibration)
        for layout in [Layout.parse(row.name)]
    ]
    slower = [replace(row, seconds=2 * row.seconds) for row in rows]
    points = fit_calibrations.scaling([*slower, *rows], calibration)
    assert [(point["axis"], point["degree"]) for point in points] == [
        ("tp", 1), ("tp", 2), ("tp", 8), ("dp", 8),
    ]  # fmt: skip
    for point in points:
        assert point["measured"] == pytest.approx(point["predicted"])
        seconds = next(row.seconds for row in rows if row.name == point["layout"])
        assert point["measured"] == pytest.approx(64 * 4096 / 8 / seconds)


def test_runs_that_stalled_are_told_from_others():
    calibration = fit_calibrations.fitted(fit_calibrations.FITS["nanotron-h100"], [])
    calm = fit_calibrations.sweep_report(list(sweep_of(calibration)), calibration)
    assert calm["order of GPU seconds"] == calm["order of steps"] == pytest.approx(1)
    assert calm["median error"] == calm["regret, worst"] == calm["stalled"] == 0
    rows = list(sweep_of(calibration, stalled=("dp=8,zero=1", "dp=2,pp=4,zero=1")))
    mixed = fit_calibrations.sweep_report(rows, calibration)
    assert mixed["stalled"] == pytest.approx(2 / 6)
    assert mixed["order of GPU seconds of others"] == pytest.approx(1)
    assert mixed["order of GPU seconds"] < 0.9


def test_a_few_runs_that_stalled_do_not_bend_a_fit_with_heavy_tails(monkeypatch):
    monkeypatch.setattr(fit_calibrations, "KNOWN", {"matmul.bf16": 100.0})
    fit = replace(fit_calibrations.FITS["nanotron-h100"], keys=("matmul.bf16",))
    slow = fit_calibrations.fitted(replace(fit, given={**fit.given, "matmul": {"bf16": 0.6}}, keys=()), [])
    rows = list(sweep_of(slow, stalled=("dp=8,zero=1",)))
    found = [
        fit_calibrations.fitted(replace(fit, heavy=heavy), rows).reached("bf16") for heavy in (True, False)
    ]
    assert found[0] == pytest.approx(0.6, rel=0.01)
    assert found[1] < 0.58


def test_a_written_file_is_read_back(fit, planted):
    calibration = Calibration("fit", **fit.given)
    text = fit_calibrations.toml("mine", fit, calibration)
    again = from_table("fit", tomllib.loads(text))
    assert replace(again, source="") == replace(calibration, source="")


def test_a_stage_has_the_flops_of_its_blocks():
    """Qi et al.'s 1.5B model: three blocks of 22 on a stage in the middle, 6 samples of 1,024 tokens."""
    row = next(row for row in TABLES["qi"]() if row.name == "1.5B W")
    flops = 3 * 2 * 6 * 1024 * 12 * 2304**2
    assert fit_calibrations.ideal_seconds(row) == pytest.approx(flops / 312e12)


def test_of_steps_that_no_fit_has_seen_four_of_five_lie_in_the_interval():
    """Each table in turn: the interval that the left-out rows of all others give, and how many of its own lie in it. All
    tables count alike, however many rows they have."""
    (record,) = records("published-steps")
    tables = {name: ratios for one in record["left out"].values() for name, ratios in one.items()}
    assert len(tables) >= 10
    inside = []
    for name, own in tables.items():
        others = [q for other, ratios in tables.items() if other != name for q in quantiles(ratios, n=20)]
        least, *_, most = quantiles(others, n=10)
        inside.append(mean(least <= ratio <= most for ratio in own))
    assert 0.7 <= mean(inside) <= 0.9
    for name, ratios in record["left out"].items():
        shipped = load_calibration(name, load_accelerator("h100")).interval
        least, *_, most = quantiles([ratio for some in ratios.values() for ratio in some], n=10)
        assert shipped == pytest.approx((least, most), abs=1e-3)
