"""What chapters read of recorded kernels: the newest GPU's rows, put together from its pieces, or predictions."""

import json

from playbook_book import recorded

NEW, OLD = "2026-11-23T01:00:00+00:00", "2026-11-20T01:00:00+00:00"


def write(
    folder,
    name,
    date,
    seconds,
    gpu="NVIDIA H200",
    kernel="rms_norm",
    triton="3.6.0",
    kind="kernels",
    agrees=True,
    clock=None,
):
    made = {"date": date, "gpu": gpu, "torch": "2.11.0", "triton": triton}
    made |= {} if clock is None else {"sm_mhz": clock}
    timed = {
        "name": "ours", "ours": True, "seconds": seconds, "timing": "graph", "roofline": 0.5, "of_copy": None,
        "error": 1e-3, "agrees": agrees,
    }  # fmt: skip
    case = {
        "kernel": kernel, "size": "16 × 32", "dtype": "bfloat16", "direction": "both", "flops": 4 * 10**9,
        "bytes": 10**9, "contenders": [timed, {"name": "Liger", "ours": False, "missing": "it is not installed"}],
    }  # fmt: skip
    record = {"provenance": made, "copy_bytes_per_s": 4e12 if gpu else None, "cases": [case]}
    (folder / f"{name}-{kind}.json").write_text(json.dumps(record), encoding="utf-8")


def test_without_a_run_on_a_gpu_rows_are_predicted_and_say_so(tmp_path):
    write(tmp_path, "cpu", NEW, 0.1, gpu=None)
    for run in (recorded.kernels(tmp_path), recorded.fp8(tmp_path)):
        assert run.heading.startswith(
            "Predicted for one NVIDIA H200, not measured: no run on a GPU is recorded here."
        )
        assert "Measured" not in run.heading
        assert "`" not in run.heading  # it is printed, and nothing renders Markdown there
        assert {row.timing for row in run.rows} == {"predicted"}
        assert all(0.2 < row.roofline < 1 for row in run.rows)
        assert all(row.error is None and not row.date for row in run.rows)
    fields = ("kernel", "size", "dtype", "direction", "contender", "flops", "ours")
    known = {tuple(getattr(row, name) for name in fields) for row in recorded.kernels().rows}
    told = {tuple(getattr(row, name) for name in fields) for row in recorded.kernels(tmp_path).rows}
    assert told <= known  # under the names by which a record will replace them


def test_rows_of_the_newest_run_from_all_its_pieces(tmp_path):
    write(tmp_path, "h200-norms", OLD, 0.004)
    write(tmp_path, "h200-matmul", OLD, 0.5, kernel="matmul")
    write(tmp_path, "h200", NEW, 0.002)
    write(tmp_path, "h200-earlier-triton", OLD, 9.0, kernel="elu", triton="3.5.0")
    write(tmp_path, "a100", OLD, 9.0, gpu="NVIDIA A100", kernel="swiglu")
    write(tmp_path, "cpu", "2026-11-24", 9.0, gpu=None)
    run = recorded.kernels(tmp_path)
    assert run.heading == "Measured on one NVIDIA H200, 2026-11-23, PyTorch 2.11.0, Triton 3.6.0."
    assert run.copy_gbps == 4000
    assert {(row.kernel, row.seconds, row.date) for row in run.rows} == {
        ("rms_norm", 0.002, "2026-11-23"),
        ("matmul", 0.5, "2026-11-20"),
    }
    (row,) = run.of("rms_norm", direction="both", size="16 × 32")
    assert (row.tflops, row.gbps, row.roofline, row.of_copy, row.ours) == (2.0, 500.0, 0.5, None, True)
    assert run.of("rms_norm", "forward") == run.of("swiglu") == []


def test_a_wrong_result_is_not_shown(tmp_path):
    write(tmp_path, "h200", OLD, 0.004)
    write(tmp_path, "h200-again", NEW, 0.001, agrees=False)
    write(tmp_path, "h200-matmul", NEW, 0.5, kernel="matmul", agrees=False)
    run = recorded.kernels(tmp_path)
    assert [(row.kernel, row.seconds) for row in run.rows] == [("rms_norm", 0.004)]


def test_fp8_is_read_likewise(tmp_path):
    write(tmp_path, "h200-blockwise", OLD, 0.004, kernel="blockwise", kind="fp8")
    write(tmp_path, "h200-again", NEW, 0.1, kind="fp8")
    assert not recorded.kernels(tmp_path).date
    run = recorded.fp8(tmp_path)
    assert [row.seconds for row in run.of("blockwise")] == [0.004]


def test_a_heading_tells_the_clocks_that_were_watched(tmp_path):
    write(tmp_path, "h200", OLD, 0.004)
    write(tmp_path, "h200-matmul", NEW, 0.5, kernel="matmul", clock=1755.0)
    write(tmp_path, "h200-loss", NEW, 0.5, kernel="cross_entropy", clock=1980.0)
    found = recorded.kernels(tmp_path).heading
    assert found.startswith("Measured on one NVIDIA H200, SM clock up to 1,755 to 1,980 MHz, 2026-11-23, ")
