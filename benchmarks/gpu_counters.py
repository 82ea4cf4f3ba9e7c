"""Bytes that kernels really move: the counters of a GPU's memory, read by Nsight Compute, beside what formulas say.

``python benchmarks/gpu_counters.py FILE`` runs each of our kernels once, in each direction, and lists what it launched;
``counters`` has ``ncu`` watch that and puts both together. Writes that are still in the L2 cache when a kernel ends are
not counted as its own.
"""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from gpu_attention import Result, forget

from playbook.kernels.jit import launches
from playbook_book.bench.contenders import Case
from playbook_book.bench.fp8_cases import fp8_cases
from playbook_book.bench.kernels import call_of
from playbook_book.bench.product_cases import product_cases
from playbook_book.bench.row_cases import row_cases

METRICS = {"dram__bytes_read.sum": "read", "dram__bytes_write.sum": "written", "gpu__time_duration.sum": "ns"}
LIMIT = 100.0


def counters(device: str) -> Iterator[Result]:
    """``kernels``: for each case the bytes of its formula and of each launch; ``missing`` says why there are none."""
    with tempfile.TemporaryDirectory() as scratch:
        ran, log = Path(scratch) / "ran.json", Path(scratch) / "ncu.csv"
        ncu = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
        watched = [] if ncu is None or device == "cpu" else _watching(ncu, log)
        command = [*watched, sys.executable, __file__, str(ran), device]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            yield {"missing": f"it took more than {LIMIT:.0f} s", "kernels": []}
            return
        if done.returncode or not ran.is_file():
            yield {"missing": f"{(done.stdout + done.stderr).strip()[-500:]}", "kernels": []}
            return
        rows = json.loads(ran.read_text())
        if not watched:
            yield {"missing": "ncu counts where it is installed, on a GPU", "kernels": rows}
            return
        yield beside(rows, read_log(log.read_text().splitlines() if log.is_file() else ()))


def _watching(ncu: str, log: Path) -> list[str]:
    return [
        ncu, "--csv", "--log-file", str(log), "--print-units", "base", "--clock-control", "none",
        "--kernel-name-base", "function", "-k", "regex:_kernel$", "--metrics", ",".join(METRICS),
    ]  # fmt: skip


def read_log(lines: Iterable[str]) -> list[Result]:
    """Each profiled launch in order: its ``name``, bytes ``read`` and ``written``, ``ns``."""
    found: dict[str, Result] = {}
    for row in csv.DictReader(line for line in lines if line.startswith('"')):
        launch = found.setdefault(row["ID"], {"name": row["Kernel Name"]})
        launch[METRICS[row["Metric Name"]]] = float(row["Metric Value"].replace(",", ""))
    return list(found.values())


def beside(rows: list[Result], counted: list[Result]) -> Result:
    """Launches given to the cases that made them. Those of PyTorch, which are watched as well, go to nobody."""
    ours = {name for row in rows for name in row["launched"]}
    watched = [launch for launch in counted if launch["name"] in ours]
    expected = [name for row in rows for name in row["launched"]]
    if [launch["name"] for launch in watched] != expected:
        return {"missing": f"ncu saw {len(watched)} launches of {len(expected)}", "kernels": rows}
    remaining = iter(watched)
    for row in rows:
        row["launches"] = [next(remaining) for _ in row.pop("launched")]
        row["counted"] = sum(launch["read"] + launch["written"] for launch in row["launches"])
        row["ratio"] = row["counted"] / row["bytes"]
    return {"kernels": rows}


def first_cases(device: str) -> Iterator[Case]:
    """Each kernel of ours in the first of its sizes and in each dtype, but for the ladder in CUDA C++."""
    cuda, known = device == "cuda", set()
    in_fp8 = fp8_cases(cuda, cuda) if not cuda or torch.cuda.get_device_capability() >= (8, 9) else []
    for case in [*row_cases(cuda, cuda), *product_cases(cuda, cuda), *in_fp8]:
        if case.kernel != "ladder" and (case.kernel, case.dtype) not in known:
            known.add((case.kernel, case.dtype))
            yield case


def run_once(device: str) -> list[Result]:
    """Every kernel of ours, and what it launches."""
    rows = []
    for case in first_cases(device):
        one = case.contenders[0]
        for direction, (needed, _) in case.needs.items():
            call = call_of(case, one.run, direction, device)
            with launches() as found:
                call()
            names = [launch.kernel.fn.__name__ for launch in found]
            rows.append({"kernel": case.kernel, "size": case.size, "direction": direction, "bytes": needed,
                         "launched": names})  # fmt: skip
            del call
            forget(device)
    return rows


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(run_once(sys.argv[2])))
    if sys.argv[2] == "cuda":
        torch.cuda.synchronize()
