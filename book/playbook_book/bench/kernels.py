"""``playbook bench kernels``: the book's kernels beside PyTorch, its compiler, Liger Kernel, cuBLAS and cuDNN.

All who compete in a case get the same numbers, are held to the twin in fp32, and are timed in turns (`replays`); who is
too far from it is called wrong, is shown nowhere, and has the command exit with 1. From a
time come TFLOP/s and GB/s of the FLOPs and bytes that the case needs, and two shares: of the roofline, the larger of
FLOPs ÷ peak and bytes ÷ bandwidth of the datasheet; and of the bandwidth that a copy reaches on the same GPU.

Without a GPU the same goes on in small sizes, the kernels in Triton's interpreter: what counts there is that results
agree, and the bytes that the interpreter's loads and stores touch. Times are the interpreter's and say nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor

from playbook import doctor
from playbook.bench import provenance
from playbook.hardware import Accelerator
from playbook_book.bench import chosen
from playbook_book.bench.contenders import Case, Contender, Outputs, said
from playbook_book.bench.product_cases import product_cases
from playbook_book.bench.replays import Times, copy_bandwidth, times_in_turns
from playbook_book.bench.row_cases import row_cases
from playbook_book.bench.trainer import this_accelerator
from playbook_book.kernels.sectors import Sectors

#: Names of kernels, in the order in which they are measured.
KERNELS = (
    "attention", "matmul", "linear_cross_entropy", "cross_entropy", "rms_norm", "add_rms_norm", "layer_norm", "swiglu",
    "rotary", "grouped_matmul", "grouped_gradient", "adamw", "elu", "vector_add", "ladder",
)  # fmt: skip
#: How far results may be from those in fp32: ‖found − expected‖ ÷ ‖expected‖, some roundings of the type; and of any one
#: number, |found − expected| ÷ (|expected| + rms). A norm alone would hide a wrong tile of a large matrix, whose numbers
#: are off by about 1; gradients of attention's first queries are off by 0.15 in FlashAttention-2 and cuDNN, too.
AGREES = {
    torch.float32: (1e-5, 1e-4), torch.float16: (2e-3, 1e-2), torch.bfloat16: (1e-2, 0.25),
    torch.float8_e4m3fn: (3e-2, 0.15),
}  # fmt: skip
SEED = 0
#: What is said of times that no GPU took.
INTERPRETED = "without a GPU: the kernels ran in Triton's interpreter, and their times are the interpreter's"


def bench_kernels(
    device: str, only: Sequence[str] | None = None, large: bool | None = None, repeats: int = 50
) -> Iterator[dict[str, Any]]:
    """The record so far, again whenever a case has been measured: ``cases`` has a row for each case and direction.

    ``only`` chooses among `KERNELS`; sizes are ``large`` on a GPU unless told; ``repeats`` is how many turns there are at
    most. Raises ConfigError for an unknown kernel, at once.
    """
    names = chosen("kernel", only, KERNELS)
    cases = cases_of(
        lambda *sizes: [*product_cases(*sizes), *row_cases(*sizes)], device, large, names, KERNELS
    )
    return measure_cases(new_record(device), cases, device, repeats)


def cases_of(
    make: Callable[[bool, bool], list[Case]],
    device: str,
    large: bool | None,
    names: Sequence[str],
    order: Sequence[str],
) -> list[Case]:
    """Those with ``names`` of what ``make`` gives, which is told whether sizes are large and whether there is a GPU."""
    cuda = torch.device(device).type == "cuda"
    cases = make(cuda if large is None else large, cuda)
    return sorted((case for case in cases if case.kernel in names), key=lambda case: order.index(case.kernel))


def new_record(device: str) -> dict[str, Any]:
    """A record without cases: where, when and with what these are measured."""
    accelerator = this_accelerator(device)
    return {
        "provenance": provenance(device) | {"triton": doctor.version("triton")},
        "interpreted": torch.device(device).type != "cuda",
        "accelerator": None if accelerator is None else accelerator.name,
        "copy_bytes_per_s": copy_bandwidth(device),
        "liger": doctor.version("liger-kernel"),
        "cases": [],
    }


def measure_cases(
    result: dict[str, Any], cases: Sequence[Case], device: str, repeats: int
) -> Iterator[dict[str, Any]]:
    """The record, again whenever it has another row."""
    accelerator, copied = this_accelerator(device), result["copy_bytes_per_s"]
    for case in cases:
        for direction in case.needs:
            row = _row(case, direction, device, repeats)
            result["cases"].append(_with_shares(row, case.dtype, accelerator, copied))
            yield result
            forget(device)


def forget(device: str) -> None:
    """Memory and compiled code of a case on a GPU are not needed for the next one."""
    if torch.device(device).type == "cuda":
        gc.collect()
        torch.compiler.reset()
        torch.cuda.empty_cache()


# ---- one case in one direction


def _row(case: Case, direction: str, device: str, repeats: int) -> dict[str, Any]:
    """Errors of all who compete, then times of those that ran."""
    competing = [one for one in case.contenders if direction == "forward" or not one.forward]
    rows = {one.name: {"name": one.name, "ours": one.ours} for one in competing}
    for one in competing:
        if one.missing:
            rows[one.name]["missing"] = one.missing
    reference = _compare(case, direction, device, [one for one in competing if not one.missing], rows)
    ran = [one for one in competing if "missing" not in rows[one.name]]
    calls = {one.name: call_of(case, one.run, direction, device) for one in ran}
    waiting = {one.name for one in ran if one.waits}
    for name, times in times_in_turns(calls, device, repeats, waiting).items():
        rows[name] |= asdict(times) if isinstance(times, Times) else {"missing": said(times)}
    needed, flops = case.needs[direction]
    return {
        "kernel": case.kernel, "size": case.size, "dtype": str(case.dtype).removeprefix("torch."),
        "direction": direction, "bytes": needed, "flops": flops, "reference": reference,
        "contenders": list(rows.values()),
    }  # fmt: skip


def _compare(
    case: Case, direction: str, device: str, running: Sequence[Contender], rows: dict[str, dict[str, Any]]
) -> str | None:
    """Errors, or why there are none, into ``rows``; gives what they are errors against.

    Where there is no room for the twin in fp32, the first peer that runs takes its place. On a CPU the bytes that our
    kernels touch are counted on the way.
    """
    expected, reference = _tried(partial(_results, case, case.twin, direction, device, wide=True)), "fp32"
    for one in sorted(running, key=lambda one: one.ours):
        with Sectors() if one.ours and device == "cpu" else nullcontext() as counted:
            found = _tried(partial(_results, case, one.run, direction, device))
        row = rows[one.name]
        if isinstance(found, Exception):
            row["missing"] = said(found)
        elif isinstance(expected, Exception):
            expected, reference = found, one.name
        else:
            row["error"], row["largest_error"] = errors = _errors(found, expected)
            bounds = (one.slack * bound for bound in AGREES[case.dtype])
            row["agrees"] = all(error <= bound for error, bound in zip(errors, bounds, strict=True))
        if counted is not None:
            row["counted_bytes"] = counted.dram.total
    return None if isinstance(expected, Exception) else reference


def _results(
    case: Case, run: Callable[..., Outputs], direction: str, device: str, wide: bool = False
) -> list[Tensor]:
    return [x.detach() for x in call_of(case, run, direction, device, wide)()]


def call_of(
    case: Case, run: Callable[..., Outputs], direction: str, device: str, wide: bool = False
) -> Callable[[], tuple[Tensor, ...]]:
    """A function that gives outputs, and gradients if it is for both directions, from tensors of its own: some of those
    who compete write over theirs. ``wide``: from the same numbers in fp32."""
    generator = torch.Generator(device).manual_seed(SEED)
    given = [x.float() if wide and x.is_floating_point() else x for x in case.make(generator)]
    if direction == "forward":
        return lambda: _without_gradients(run, given)
    leaves = [x.requires_grad_() for x in given[: case.leaves]]
    upstream: list[Tensor] = []

    def both() -> tuple[Tensor, ...]:
        ys = _tuple(run(*given))
        if not upstream:  # the first time: the same for all, whatever type their outputs have
            drawn = [torch.randn(y.shape, generator=generator, device=device).to(case.dtype) for y in ys]
            upstream.extend(
                x.to(y.dtype) if y.dim() else torch.ones_like(y) for x, y in zip(drawn, ys, strict=True)
            )
        return *ys, *torch.autograd.grad(ys, leaves, upstream)

    return both


@torch.no_grad()
def _without_gradients(run: Callable[..., Outputs], given: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return _tuple(run(*given))


def _tuple(y: Outputs) -> tuple[Tensor, ...]:
    return (y,) if isinstance(y, Tensor) else tuple(y)


def _errors(found: Sequence[Tensor], expected: Sequence[Tensor]) -> tuple[float, float]:
    """The largest of all tensors: ‖found − expected‖ ÷ ‖expected‖, and |found − expected| ÷ (|expected| + rms) of one
    number. NaN where anything is NaN, infinite where shapes differ."""
    errors = [_error(x.float(), y.float()) for x, y in zip(found, expected, strict=True)]
    norm, largest = torch.tensor(errors).amax(0).tolist()  # unlike Python's max, it keeps a NaN
    return norm, largest


def _error(x: Tensor, y: Tensor) -> tuple[float, float]:
    if x.shape != y.shape:
        return float("inf"), float("inf")
    if not y.numel():
        return 0.0, 0.0
    norm, off = y.norm().clamp(min=1e-30), (x - y).abs()
    return float((x - y).norm() / norm), float((off / (y.abs() + norm / y.numel() ** 0.5)).amax())


def wrong_results(result: dict[str, Any]) -> list[str]:
    """Who was too far from the reference, and in which case."""
    return [
        f"{case['kernel']} {case['size']}, {case['direction']}: {one['name']}"
        for case in result["cases"]
        for one in case["contenders"]
        if not one.get("agrees", True)
    ]


def _tried(function: Callable[[], list[Tensor]]) -> list[Tensor] | Exception:
    """What does not fit or does not compile loses no other."""
    try:
        return function()
    except Exception as error:
        return error.with_traceback(None)  # whose frames hold tensors


# ---- what a time means


def _with_shares(
    row: dict[str, Any], dtype: torch.dtype, accelerator: Accelerator | None, copied: float | None
) -> dict[str, Any]:
    """TFLOP/s, GB/s and shares for each who was timed, and ratios of ours to the others."""
    flops, moved = row["flops"], row["bytes"]
    of_flops = flops / accelerator.peak(str(dtype)) if accelerator else 0.0
    of_bytes = moved / accelerator.memory_bandwidth if accelerator else 0.0
    row["roofline_s"] = max(of_flops, of_bytes) if accelerator else None
    row["limited_by"] = "FLOPs" if of_flops > of_bytes else "bytes"
    timed = [one for one in row["contenders"] if "seconds" in one]
    for one in timed:
        one.setdefault("error", None)
        one["tflops"], one["gbps"] = flops / one["seconds"] / 1e12, moved / one["seconds"] / 1e9
        one["roofline"] = row["roofline_s"] / one["seconds"] if accelerator else None
        bound = copied and (not flops or (accelerator and of_bytes >= of_flops))
        one["of_copy"] = moved / one["seconds"] / copied if copied and bound else None
    right = [one for one in timed if one.get("agrees", True)]  # the time of a wrong result is none
    ours = next((one["seconds"] for one in right if one["ours"]), None)
    on_gpu = [one for one in right if one["timing"] != "host"]
    row["ratios"] = {one["name"]: ours / one["seconds"] for one in on_gpu if ours and not one["ours"]}
    return row


def report_kernels(result: dict[str, Any]) -> str:
    """The result of ``bench_kernels`` as tables for people."""
    made, copied = result["provenance"], result["copy_bytes_per_s"]
    lines = [f"{made['gpu'] or made['platform']}, torch {made['torch']}, Triton {made['triton']}"]
    if result["interpreted"]:
        lines.append(INTERPRETED)
    else:
        lines.append(f"a copy reads and writes {copied / 1e9:,.0f} GB/s; ratios below 1: ours is faster")
    for row in result["cases"]:
        lines += ["", _headline(row), *(_line(one, row) for one in row["contenders"])]
    return "\n".join(lines)


def _headline(row: dict[str, Any]) -> str:
    where = "forward and backward" if row["direction"] == "both" else "forward"
    need = f"{row['flops'] / 1e12:.3g} TFLOP, " if row["flops"] else ""
    limit = (
        f"; at most {row['limited_by']} let: {row['roofline_s'] * 1e3:.3f} ms" if row["roofline_s"] else ""
    )
    return (
        f"{row['kernel']} {row['size']}, {row['dtype']}, {where}: {need}{row['bytes'] / 1e6:,.3g} MB{limit}"
    )


def _line(one: dict[str, Any], row: dict[str, Any]) -> str:
    name = f"  {one['name']:24}"
    if "seconds" not in one:
        return f"{name} left out: {one['missing'].splitlines()[0][:80]}"
    wrong = "" if one.get("agrees", True) else " TOO LARGE"
    if one["timing"] == "host":
        return f"{name} error {_errors_text(one)}{wrong}{_touched(one)}"
    line = f"{name} {one['seconds'] * 1e3:10.3f} ms {one['timing']:5} {one['gbps']:8,.0f} GB/s"
    line += f" {one['tflops']:7.1f} TFLOP/s" if row["flops"] else ""
    line += f" {one['roofline']:6.1%} of the roofline" if one["roofline"] is not None else ""
    line += "" if one["error"] is None else f" error {_errors_text(one)}{wrong}"
    ratio = row["ratios"].get(one["name"])
    return line + (f", ours / this {ratio:.3f}" if ratio is not None else "")


def _errors_text(one: dict[str, Any]) -> str:
    """Of all numbers, and the largest of any one."""
    return "–" if one["error"] is None else f"{one['error']:.1e} (at most {one['largest_error']:.1e})"


def _touched(one: dict[str, Any]) -> str:
    return f", {one['counted_bytes']:,} bytes touched" if "counted_bytes" in one else ""
