"""Fit what collectives take in truth (`playbook.planning.nccl.Reached`) to published runs of nccl-tests.

    python benchmarks/fit_collectives.py               print the fit, and each source predicted by a fit to the others
    python benchmarks/fit_collectives.py --record FILE  write the same as JSON

The runs are in published_collectives.csv, where they come from in published_collectives.md. A fit is least squares of
log(predicted / measured), every table with the same weight, and of each parameter's distance to where it starts. Which
algorithm ran is what its source says, or what NCCL's tuner chooses.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from statistics import median

from scipy.optimize import least_squares

from playbook.bench import provenance
from playbook.hardware import ACCELERATORS, NVLINK_REACHED
from playbook.planning.nccl import COLLECTIVES, Fabric, Reached, Way, generation_of, ways

FILE = Path(__file__).parent / "published_collectives.csv"
#: How well each parameter is known beforehand: the standard deviation of its logarithm.
KNOWN = {"filling": 0.7, "ring": 0.1, "network": 0.1, "ll": 0.3, "ll128": 0.2, "tree": 0.2, "switch": 0.2}
#: GPUs of an NVLink domain, where it is no node of eight.
DOMAINS = {"GB200": 72, "GB300": 72}
#: Where a message to another node takes longer than on InfiniBand and RoCE, so many times: to begin a fit with.
SLOW = {"EFA": 3.0}


@dataclass(frozen=True)
class Row:
    """A measured collective."""

    source: str
    gpu: str
    network: str
    bandwidth: float
    ranks: int
    said: str
    collective: str
    bytes: int
    seconds: float

    @property
    def table(self) -> tuple[str, str, int, str]:
        return self.source, self.gpu, self.ranks, self.collective

    @property
    def author(self) -> str:
        """Of several tables, whose machine it was."""
        return "-".join(self.source.split("-")[:2])

    @property
    def nodes(self) -> int:
        return max(1, -(-self.ranks // DOMAINS.get(self.gpu, 8)))

    @cached_property
    def fabric(self) -> Fabric:
        sold = ACCELERATORS[{"A100": "a100-80", "GB300": "gb200"}.get(self.gpu, self.gpu.lower())]
        inside = NVLINK_REACHED * sold.link_bandwidth
        return Fabric(generation_of(sold.name), inside, self.bandwidth or inside)

    @cached_property
    def ran(self) -> tuple[str, str]:
        """Algorithm and protocol: as the source says, or as NCCL chooses among those that it leaves open."""
        open_ = ways(self.collective, self.ranks, self.nodes, self.fabric)
        for word in self.said.replace("NVLSTree", "NVLS tree").split("/"):
            named = [w for w in open_ if word in (w.protocol, w.algorithm, w.algorithm.capitalize())]
            open_ = tuple(named) or open_
        best = min(open_, key=lambda way: way.guess(self.bytes))
        return best.algorithm, best.protocol

    def way(self, reached: Reached) -> Way:
        found = ways(self.collective, self.ranks, self.nodes, self.fabric, reached)
        return next(way for way in found if (way.algorithm, way.protocol) == self.ran)

    def predicted(self, reached: Reached, hops: float = 1.0) -> float:
        return self.way(reached).seconds(self.bytes, hops, reached)


def published() -> list[Row]:
    """All-reduces, all-gathers and reduce-scatters of healthy machines that NCCL's model is about.

    Left out are AMD's (RCCL), GPUDirect-TCPX, several racks of GB200 (whose network nobody states), one cluster whose
    adapters its authors call slow, and, of programs with one process for several GPUs, short messages: those measure it.
    """
    found = []
    for row in csv.DictReader(FILE.open(encoding="utf-8")):
        one = Row(
            row["source_id"], row["gpu"], row["fabric"], float(row["nic_gbit_per_gpu"] or 0) * 1e9 / 8,
            int(row["ranks"]), row["algo_proto"], row["collective"], int(row["bytes"]), float(row["time_us"]) * 1e-6,
        )  # fmt: skip
        slow = one.source.startswith("vultr") and one.collective != "all_reduce" and one.nodes > 1
        alone = one.source.endswith("g8") or one.source.startswith("waynehacking8")
        racks = one.gpu in DOMAINS and one.nodes > 1
        others = one.gpu.startswith("MI") or "TCPX" in one.network or one.collective not in COLLECTIVES
        if not (slow or racks or others or (alone and one.bytes < 1 << 20)):
            found.append(one)
    return found


def fitted(rows: Sequence[Row]) -> tuple[Reached, dict[str, float]]:
    """What comes nearest to the rows; and how many times NCCL's latency a hop on each of ``SLOW`` networks takes."""
    names = [f.name for f in fields(Reached)]
    start = [math.log(value) for value in (*asdict(Reached()).values(), *SLOW.values())]
    known = [KNOWN.get(name, 0.5) for name in names] + [1.0] * len(SLOW)
    counts = Counter(row.table for row in rows)

    def read(values: Iterable[float]) -> tuple[Reached, dict[str, float]]:
        numbers = [float(math.exp(value)) for value in values]
        return Reached(*numbers[: len(names)]), dict(zip(SLOW, numbers[len(names) :], strict=True))

    def residuals(values: Sequence[float]) -> list[float]:
        reached, hops = read(values)
        weighed = (
            math.log(row.predicted(reached, hops.get(row.network, 1.0)) / row.seconds)
            * 10
            * math.sqrt(8 / counts[row.table])
            for row in rows
        )
        return [*weighed, *((v - s) / k for v, s, k in zip(values, start, known, strict=True))]

    found = least_squares(residuals, start, loss="soft_l1", diff_step=1e-2, max_nfev=25).x
    ways.cache_clear()
    return read(found)


def left_out(rows: Sequence[Row], folds: int | None = None) -> dict[Row, float]:
    """Each row's error, predicted / measured − 1, by a fit to what other authors measured (in so many parts)."""
    authors = list(dict.fromkeys(row.author for row in rows))
    parts = (
        [{author} for author in authors] if folds is None else [set(authors[i::folds]) for i in range(folds)]
    )
    found = {}
    for part in parts:
        reached, hops = fitted([row for row in rows if row.author not in part])
        for row in rows:
            if row.author in part:
                found[row] = row.predicted(reached, hops.get(row.network, 1.0)) / row.seconds - 1
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the report as JSON, too")
    args = parser.parse_args()
    rows = published()
    reached, hops = fitted(rows)
    print(reached, hops)
    missed, tables = left_out(rows), []
    for table in dict.fromkeys(row.table for row in rows):
        here = [row for row in rows if row.table == table]
        first = here[0]
        off = [abs(missed[row]) for row in here]
        tables.append({
            "source": first.source, "gpu": first.gpu, "ranks": first.ranks, "network": first.network,
            "collective": first.collective, "bytes": [row.bytes for row in here],
            "seconds": [row.seconds for row in here], "ran": [" ".join(row.ran) for row in here],
            "errors": [round(missed[row], 4) for row in here],
        })  # fmt: skip
        print(*table, f"median {median(off):.0%}, worst {max(off):.0%}")
    every = [abs(error) for error in missed.values()]
    print(
        f"{len(every)} rows of {len(tables)} tables: median {median(every):.1%}, over 40 %: {sum(e > 0.4 for e in every)}"
    )
    if args.record:
        command = "python benchmarks/fit_collectives.py --record FILE"
        record = {
            "provenance": provenance("cpu") | {"command": command},
            "reached": asdict(reached),
            "hops": hops,
        }
        args.record.write_text(json.dumps({**record, "tables": tables}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
