"""The order of things in a product whose messages come and go in chunks (``parallel/chunked.py``), beside its naive twin.

A message counts as on its way from when it was asked for until this rank had waited for it: that it was there earlier is
not seen, and a wait of no length says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from playbook.parallel import chunked
from playbook.parallel.mesh import Ring
from playbook_book import naive
from playbook_book.instruments.interval import Interval


class _Diary:
    """Notes products (compute), messages and waits (waiting) while ``chunked``'s functions run."""

    def __init__(self) -> None:
        self.spans: list[Interval] = []

    def timed(self, *kinds: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def around(function: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **named: Any) -> Any:
                start = time.perf_counter()
                result = function(*args, **named)
                self.spans += [Interval(kind, start, time.perf_counter()) for kind in kinds]
                return result

            return run

        return around

    def ring(self, group: dist.ProcessGroup) -> Ring:
        spans = self.spans

        class Noted(Ring):
            asked = 0.0

            def pass_on(self, tensor: Tensor) -> Tensor:
                self.asked = time.perf_counter()
                return super().pass_on(tensor)

            def arrive(self) -> None:
                start, sent = time.perf_counter(), bool(self._works)
                super().arrive()
                if sent:
                    end = time.perf_counter()
                    spans.extend([Interval("message", self.asked, end), Interval("waiting", start, end)])

        return Noted(group)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Within, what ``chunked`` and ``naive`` multiply and send is noted; in this process alone."""
        exchange = self.timed("message", "waiting")
        names: dict[tuple[Any, str], Any] = {
            (chunked, "Ring"): self.ring,
            (naive, "gather_tokens"): exchange(naive.gather_tokens),
            (naive, "scatter_tokens"): exchange(naive.scatter_tokens),
        }
        before = {place: getattr(*place) for place in names}
        try:
            for place, value in names.items():
                setattr(*place, value)
            yield
        finally:
            for place, value in before.items():
                setattr(*place, value)


def record_chunks(
    group: dist.ProcessGroup, *, tokens: int = 512, width: int = 768, turns: int = 4
) -> tuple[dict[str, list[Interval]], float]:
    """In a rank: what happened when in both products, naive and in chunks, and how far their results are apart.

    Each rank has ``tokens`` of ``width`` features and a square matrix. Spans are seconds from the start, of the
    shortest of ``turns``. A collective.
    """
    n = group.size()
    own, whole = torch.randn(1, tokens, width), torch.randn(1, n * tokens, width)
    weight = torch.randn(width, width) / width**0.5
    diary = _Diary()
    product = diary.timed("compute")(partial(F.linear, weight=weight))

    def part(some: slice) -> Tensor:
        return product(whole[:, some])

    runs: dict[str, Callable[[], Tensor]] = {
        "gather, then multiply": lambda: naive.gather_matmul(own, [product], group)[0][0],
        "gather in chunks": lambda: chunked.gather_matmul(own, [product], group)[0][0],
        "multiply, then scatter": lambda: naive.matmul_scatter(part, n * tokens, group),
        "scatter in chunks": lambda: chunked.matmul_scatter(part, n * tokens, group),
    }
    found: dict[str, list[Interval]] = {}
    results = []
    for name, run in runs.items():
        taken = []
        for _ in range(turns):
            diary.spans.clear()
            dist.barrier(group)
            start = time.perf_counter()
            with diary():
                result = run()
            spans = [Interval(s.kind, s.start - start, s.end - start) for s in diary.spans]
            taken.append((time.perf_counter() - start, sorted(spans, key=lambda s: s.start)))
        found[name] = min(taken, key=lambda pair: pair[0])[1]
        results.append(result)
    errors = [(a - b).abs().max().item() for a, b in zip(results[::2], results[1::2], strict=True)]
    return found, max(errors)


def beneath(spans: list[Interval]) -> int:
    """Messages during which a product began: they were on their way while this rank computed."""
    products = [span.start for span in spans if span.kind == "compute"]
    messages = [span for span in spans if span.kind == "message"]
    return sum(any(m.start <= start < m.end for start in products) for m in messages)
