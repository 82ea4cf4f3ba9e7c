"""Each of our kernels in its first size: errors against the twin in fp32, and whether 20 runs give the same bits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from gpu_attention import Result, tried
from gpu_counters import first_cases

from playbook_book.bench.contenders import Case, Outputs
from playbook_book.bench.kernels import AGREES, _errors, _results

REPEATS = {"cuda": 20, "cpu": 1}


def smoke(device: str) -> Iterator[Result]:
    """A row for each kernel of ours and direction; exit status 1 in the end if one was wrong, or its bits differed."""
    rows, wrong = [], 0
    for case in first_cases(device):
        for direction in case.needs:
            exact = tried(partial(_results, case, case.twin, direction, device, wide=True))
            for one in case.contenders:
                if not one.ours or one.missing or (one.forward and direction == "both"):
                    continue
                row = {"kernel": case.kernel, "size": case.size, "direction": direction, "name": one.name}
                row["bounds"] = bounds = [one.slack * bound for bound in AGREES[case.dtype]]
                row |= tried(partial(_repeated, case, one.run, direction, device, exact))
                errors = row.get("errors", bounds if "failed" not in row else [float("inf")])
                wrong += bool(row.get("runs that differ")) or any(
                    not error <= bound for error, bound in zip(errors, bounds, strict=False)
                )
                rows.append(row)
                yield {"kernels": rows}
    if wrong:
        sys.exit(f"{wrong} of {len(rows)} are wrong, or differ from run to run")


def _repeated(
    case: Case, run: Callable[..., Outputs], direction: str, device: str, exact: list[torch.Tensor] | Result
) -> Result:
    """Errors, where the twin had room; each run has tensors of its own, since some kernels write over theirs."""
    first = _results(case, run, direction, device)
    found: Result = {"errors": _errors(first, exact)} if isinstance(exact, list) else {}
    others = (_results(case, run, direction, device) for _ in range(REPEATS[device]))
    same = [all(_bits(x, y) for x, y in zip(first, other, strict=True)) for other in others]
    return found | {"runs that differ": same.count(False)}


def _bits(x: torch.Tensor, y: torch.Tensor) -> bool:
    return torch.equal(*(tensor.flatten().contiguous().view(torch.uint8) for tensor in (x, y)))
