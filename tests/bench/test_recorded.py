"""What chapters read of recorded kernels: the newest GPU's rows, put together from its pieces, or nothing."""

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
):
    made = {"date": date, "gpu": gpu, "torch": "2.11.0", "triton": triton}
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


def test_without_a_run_on_a_gpu_there_is_nothing(tmp_path):
    assert recorded.kernels(tmp_path) is None
    write(tmp_path, "cpu", NEW, 0.1, gpu=None)
    assert recorded.kernels(tmp_path) is None
    assert "no recorded run of these kernels on a GPU" in recorded.NO_KERNELS
    assert "`" not in recorded.NO_KERNELS  # it is printed, and nothing renders Markdown there


def test_rows_of_the_newest_run_from_all_its_pieces(tmp_path):
    write(tmp_path, "h200-norms", OLD, 0.004)
    write(tmp_path, "h200-matmul", OLD, 0.5, kernel="matmul")
    write(tmp_path, "h200", NEW, 0.002)
    write(tmp_path, "h200-earlier-triton", OLD, 9.0, kernel="elu", triton="3.5.0")
    write(tmp_path, "a100", OLD, 9.0, gpu="NVIDIA A100", kernel="swiglu")
    write(tmp_path, "cpu", "2026-11-24", 9.0, gpu=None)
    run = recorded.kernels(tmp_path)
    assert run is not None
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
    assert run is not None
    assert [(row.kernel, row.seconds) for row in run.rows] == [("rms_norm", 0.004)]


def test_fp8_is_read_likewise(tmp_path):
    write(tmp_path, "h200-blockwise", OLD, 0.004, kernel="blockwise", kind="fp8")
    write(tmp_path, "h200-again", NEW, 0.1, kind="fp8")
    assert recorded.kernels(tmp_path) is None
    run = recorded.fp8(tmp_path)
    assert run is not None
    assert [row.seconds for row in run.of("blockwise")] == [0.004]
    assert "`" not in recorded.NO_FP8
