"""Everything that only a GPU can tell, the most valuable first: in one call, or in three of eight minutes.

    python benchmarks/on_gpu.py --minutes 30
    python benchmarks/on_gpu.py --part 1                      # and 2, and 3, on the same machine
    python benchmarks/on_gpu.py --part 1 --device cpu         # the same steps, small: a rehearsal

Needs nothing but PyTorch, its Triton and this checkout; our kernels also NumPy, and tests pytest, which travels with
Liger's kernels as ``make wheels`` brings them. Each step is a process
of its own with a time limit, and writes its record, ``<gpu>-<step>.json``, as it goes: out of memory, a crash or the
limit loses what that step had not yet measured, and no other. ``<gpu>-on-gpu.json`` (of a part: ``-on-gpu-1.json``) is
written again after each step: how each of them ended, the GPU's clock and power meanwhile, and all records so far; this
one file is enough. Exits with 1 when one failed, as ``playbook bench`` does where a kernel's result is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: Tests that need a GPU and are no benchmarks: those run as steps of their own.
TESTS = (
    "tests/parallel/test_gpu.py",
    "tests/test_devices.py",
    "tests/instruments/test_stream.py",
)
#: Each kernel beside its twin, compiled and not interpreted; many small tests, for several processes.
PARITY = "tests/kernels"
#: ``bench kernels`` in pieces: whose record is whole even if the time ends, the most valuable first.
PIECES = {
    "attention": (200, "attention"),
    "matmul": (120, "matmul"),
    "loss": (120, "linear_cross_entropy,cross_entropy"),
    "norms": (150, "rms_norm,add_rms_norm,layer_norm,swiglu,rotary"),
    "others": (150, "grouped_matmul,grouped_gradient,adamw,elu,vector_add,ladder"),
}
#: ``bench fp8``, likewise.
FP8_PIECES = {
    "blockwise": (150, "blockwise"),
    "quantize": (100, "quantize,emulated"),
    "steps": (400, "steps"),
    "scales": (120, "tensorwise,rowwise"),
}
#: A model whose heads 2, 4 and 8 GPUs share out evenly, and which fits beside its peers.
SHARED = (
    '{"layers":%d,"hidden":1024,"heads":16,"kv_heads":8,"ffn":2816,"vocab":32768,"max_seq":8192,"gated":true,'
    '"activation":"silu","norm":"rmsnorm","positions":"rotary","bias":false,"tied":false}'
)
#: What can be trained in Triton's interpreter in a few seconds.
SMALLEST = (
    '{"layers":1,"hidden":16,"heads":2,"kv_heads":1,"ffn":32,"vocab":256,"max_seq":64,"gated":true,'
    '"activation":"silu","norm":"rmsnorm","positions":"rotary","bias":false,"tied":false}'
)
#: Steps of three calls: kernels; their tests, tiles and FP8; training, counters, several GPUs.
PARTS = (
    ("machine", "smoke", *(f"{piece}-kernels" for piece in PIECES)),
    ("parity", "sweep", "tests", *(f"{piece}-fp8" for piece in FP8_PIECES)),
    ("fused-trainer", "trainer", "memory", "profile", "counters", "attention", "calibration", "offload", "states",
     "train", "collectives", "parallel", "pipeline"),
)  # fmt: skip
#: Less time than this is not worth starting a step for: importing torch takes as long.
LEAST = 10.0
#: Characters of a step's output that are kept: its end.
TAIL = 6000


@dataclass(frozen=True)
class Step:
    """A command of Python's, and the seconds that it may take; ``missing`` says why it cannot run here, if it cannot."""

    name: str
    arguments: tuple[str, ...]
    seconds: float
    missing: str = ""


def main() -> int:
    """Run the steps that were asked for, as far as the time goes."""
    args = _arguments()
    end = time.monotonic() + 60 * args.minutes
    device, gpus, name = _device(args.device)
    steps = all_steps(device, gpus, args.out / name)
    unknown = set(args.only or ()) - {step.name for step in steps}
    if unknown:
        sys.exit(
            f"there is no step {', '.join(sorted(unknown))}: steps are {', '.join(s.name for s in steps)}"
        )
    part = PARTS[args.part - 1] if args.part else [step.name for step in steps]
    chosen = sorted(
        (s for s in steps if s.name in (args.only or part)), key=lambda s: [*part, s.name].index(s.name)
    )
    about = provenance(args.commit, name if device == "cuda" else None, gpus)
    if about["commit"]:
        os.environ["PLAYBOOK_COMMIT"] = about["commit"]
    elif device == "cuda":
        sys.exit(
            "git does not know this checkout's commit: say it with --commit, or nobody can tell what was measured"
        )
    bundle = args.out / f"{name}-on-gpu{f'-{args.part}' if args.part else ''}.json"
    ended = run_steps(chosen, end, bundle, about)
    return int(any(row["status"] in ("failed", "out of time") for row in ended))


def _arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--minutes", type=float, default=8.0, metavar="N", help="for everything (default: 8)")
    p.add_argument(
        "--part", type=int, choices=range(1, len(PARTS) + 1), help="the steps of one of three calls"
    )
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: a rehearsal, in small")
    p.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks/results", metavar="FOLDER", help="for records"
    )
    p.add_argument("--only", type=lambda text: text.split(","), metavar="S,…", help="these steps alone")
    p.add_argument("--commit", help="of the checkout, where git does not know it")
    return p.parse_args()


def run_steps(
    steps: Sequence[Step], end: float, summary: Path, about: dict[str, Any]
) -> list[dict[str, Any]]:
    """Run one after another until ``time.monotonic()`` is ``end``; how each ended is in ``summary`` as soon as it has."""
    ended: list[dict[str, Any]] = []
    summary.parent.mkdir(parents=True, exist_ok=True)
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    for step in steps:
        left = end - time.monotonic()
        missing = step.missing or (f"{left:.0f} s were left" if left < LEAST else "")
        print(f"\n════ {step.name}", f"left out: {missing}" if missing else "", flush=True)
        row = (
            {"status": "left out", "output": missing} if missing else run_step(step, min(step.seconds, left))
        )
        ended.append({"step": step.name, "arguments": step.arguments, **row})
        stamp(_record(step), {name: row[name] for name in ("sm_mhz", "watts") if name in row})
        if not missing:
            print(f"{row['output']}\n════ {step.name}: {row['status']} after {row['seconds']} s", flush=True)
        records = {
            path.name: _read(path) for path in map(Path, filter(None, map(_record, steps[: len(ended)])))
        }
        records = {name: record for name, record in records.items() if record is not None}
        write(summary, {"provenance": {"date": started, **about}, "steps": ended, "records": records})
    print("\n" + "\n".join(f"{row['status']:12} {row['step']}" for row in ended), flush=True)
    return ended


def _record(step: Step) -> str:
    """The file that a step writes, "" if none."""
    flags = dict(
        argument.split("=", 1) for argument in step.arguments if argument.startswith("--") and "=" in argument
    )
    return flags.get("--record", flags.get("--out", ""))


def stamp(record: str, clock: dict[str, float]) -> None:
    """A record that a step has written also says what clock and power ``nvidia-smi`` saw: its captions tell the clock."""
    told = _read(Path(record)) if clock and record.endswith(".json") else None
    if told is not None:
        told["provenance"] |= clock
        write(Path(record), told)


def _read(path: Path) -> Any:
    """A record as it is now, None if there is none."""
    if not path.is_file():
        return None
    text = path.read_text(encoding="utf-8")
    return json.loads(text) if path.suffix == ".json" else text


@contextlib.contextmanager
def watched_clock(row: dict[str, Any]) -> Iterator[None]:
    """In ``row`` go the highest SM clock (MHz) and power (W) that ``nvidia-smi`` saw meanwhile, where it is."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        yield
        return
    ask = [smi, "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits", "--loop-ms=500"]
    with (
        tempfile.TemporaryFile("w+") as seen,
        subprocess.Popen(ask, stdout=seen, stderr=subprocess.DEVNULL) as process,
    ):
        try:
            yield
        finally:
            process.kill()
            seen.seek(0)
            lines = [line.split(",") for line in seen.read().splitlines() if line.count(",") == 1]
            with contextlib.suppress(ValueError):
                row |= {
                    name: max(float(line[i]) for line in lines) for i, name in enumerate(("sm_mhz", "watts"))
                }


def paths(root: Path) -> list[str]:
    """Where a step finds modules: the checkout's, what ``make wheels`` has put beside them, what was there before."""
    ours = [root / "src", root / "widgets", root / "book", *sorted((root / "wheels").glob("*.whl"))]
    return [*map(str, ours), *filter(None, [os.environ.get("PYTHONPATH")])]


def run_step(step: Step, seconds: float) -> dict[str, Any]:
    """Run one in a session of its own, all of which ends with it."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(paths(ROOT))
    start, clock = time.monotonic(), dict[str, Any]()
    # Not a pipe: what outlives the step must not be waited for.
    with watched_clock(clock), tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, *step.arguments],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(seconds)
            status = "failed" if code else "done"
        except subprocess.TimeoutExpired:
            status = "out of time"
        finally:
            _end(process)
        output.seek(0)
        text = output.read().decode(errors="replace").strip()
    took = round(time.monotonic() - start, 1)
    row = {"status": status, "returncode": process.returncode, "seconds": took, "output": text[-TAIL:]}
    return row | named_failures(text) | clock


def named_failures(text: str) -> dict[str, list[str]]:
    """The tests that pytest said had failed, as it went: a step that is killed, or has much to tell, names them still."""
    found = dict.fromkeys(re.findall(r"(?:FAILED|ERROR) (tests/\S+)|(tests/\S+) (?:FAILED|ERROR)", text))
    names = dict.fromkeys(one or other for one, other in found)
    return {"failures": list(names)} if names else {}


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask, and then end the whole session."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(3)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def write(path: Path, result: dict[str, Any]) -> None:
    """Whoever reads it, or ends this process, finds it whole."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)


def all_steps(device: str, gpus: int, record: Path) -> list[Step]:
    """Every step, the most valuable first; records begin with ``record``."""
    large = device == "cuda"

    def ours(name: str, seconds: float, *arguments: str) -> Step:
        script = str(ROOT / "benchmarks/gpu_steps.py")
        return Step(
            name, (script, name, f"--device={device}", f"--out={record}-{name}.json", *arguments), seconds
        )

    numpy = (
        "" if importlib.util.find_spec("numpy") else "NumPy is not installed, which Triton's kernels import"
    )

    def bench(
        name: str, seconds: float, flags: str, *arguments: str, least: int = 1, piece: str = ""
    ) -> Step:
        """``playbook bench NAME``; ``piece`` comes before the name in that of the step and of its record."""
        missing = f"it needs {least} GPUs" if gpus < least else numpy if piece else ""
        where = (f"--device={device}", f"--record={record}-{piece}{name}.json")
        return Step(
            piece + name,
            ("-m", "playbook", "bench", name, *where, *flags.split(), *arguments),
            seconds,
            missing,
        )

    pytest = "" if importlib.util.find_spec("pytest") else "pytest is not installed: carry it in PYTHONPATH"

    def tests(name: str, seconds: float, *paths: str, processes: int = 1) -> Step:
        several = processes > 1 and large and importlib.util.find_spec("xdist")
        flags = ("-v", "--tb=line", "-m", "gpu", "-p", "no:cacheprovider", "--continue-on-collection-errors")
        spread = ("-n", str(processes), "--dist=loadfile") if several else ()
        return Step(name, ("-m", "pytest", *flags, *spread, *paths), seconds, pytest)

    where = (
        f"--device={device}",
        f"--out={record}-calibration.toml",
        *([] if large else ["--quick", "--ranks=2"]),
    )
    calibration = Step("calibration", ("-m", "playbook", "calibrate", *where), 150, numpy)
    groups = "data,tensor,context,ring" if gpus & (gpus - 1) == 0 else "data,ring"
    return [
        ours("machine", 60),
        ours("smoke", 120),
        tests("parity", 240, PARITY, processes=8),
        *(
            bench("kernels", seconds, f"--only {only}", piece=f"{piece}-", least=0)
            for piece, (seconds, only) in PIECES.items()
        ),
        *(
            bench("fp8", seconds, f"--only {only}", piece=f"{piece}-", least=0)
            for piece, (seconds, only) in FP8_PIECES.items()
        ),
        ours("sweep", 200),
        ours("counters", 120),
        calibration,
        bench("trainer", 120, "--model llama3.2-1b --micro-batch 2 --seq 4096 --grad-acc 2 --steps 6 --kernels fused",
              piece="fused-")
        if large
        else bench("trainer", 200, "--micro-batch 1 --seq 16 --steps 1 --kernels fused", "--model", SMALLEST, least=0,
                   piece="fused-"),
        ours("attention", 60),
        tests("tests", 150, *TESTS),
        ours("states", 60),
        ours("memory", 150),
        bench("trainer", 120, "--model llama3.2-1b --micro-batch 2 --seq 4096 --grad-acc 2 --steps 6")
        if large
        else bench("trainer", 200, "--model tiny --micro-batch 1 --seq 64 --steps 1", least=0),
        ours("profile", 150),
        bench("train", 60, "--model smollm-135m --micro-batch 8 --seq 2048 --dtype bfloat16")
        if large
        else bench("train", 200, "--model tiny --repeats 2", least=0),
        ours("offload", 60),
        bench("collectives", 120, f"--ranks {','.join(map(str, range(2, gpus + 1, 2)))}", least=2),
        bench(
            "parallel", 240, f"--ranks {gpus} --only {groups} --micro-batch 2 --seq 1024 --long-seq 16384",
            "--model", SHARED % 12, least=2,
        ),
        # Two stages on each GPU, large enough that a stage takes longer than its launches.
        bench(
            "pipeline", 240, f"--ranks {gpus} --layers {4 * gpus} --micro-batch 2 --seq 1024",
            "--model", SHARED % 8, least=2,
        ),
    ]  # fmt: skip


def _device(asked: str) -> tuple[str, int, str]:
    """Where to compute, on how many GPUs, and what records are named after. In a process of its own: this one stays out
    of the GPU's memory."""
    if asked == "cpu":
        return "cpu", 0, "cpu"
    code = "import torch; print(torch.cuda.device_count(), torch.cuda.get_device_name())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if found.returncode:
        sys.exit("there is no CUDA device here: rehearse with --device cpu")
    count, name = found.stdout.split(maxsplit=1)
    return "cuda", int(count), name.strip().lower().replace(" ", "-")


def provenance(commit: str | None, gpu: str | None, gpus: int) -> dict[str, Any]:
    """Where and with what all steps ran; more is in the record of each."""
    return {
        "command": " ".join(["python", *sys.argv]),
        "commit": commit or _commit(),
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "platform": platform.platform(),
        "gpu": gpu,
        "gpus": gpus,
    }


def _commit() -> str | None:
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
    except OSError:
        return None
    return found.stdout.strip() or None


if __name__ == "__main__":
    sys.exit(main())
