"""What the measurements of a cluster's ranks say: who differs from the others, and by how much."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from playbook.launch.ranks import names

#: A rank is slow that takes so many times the median, and stands out from the others' scatter.
SLOW, SCATTERS = {"nccl": 1.15, "gloo": 1.5}, 5.0
#: A pair of nodes is slow that has less than this part of the median bandwidth. Ranks on CPU may share cores.
NARROW = {"nccl": 0.7, "gloo": 0.3}
#: Seconds by which clocks may differ.
APART = 0.1
#: A rank is short of memory that has less than this part of what the median rank has free.
FULL = 0.8


def judge(
    measured: Mapping[str, Any], nodes: Sequence[Sequence[int]], teams: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """The list with a verdict on each line: ``{"ok", "checks": [{"name", "ok", "text"}], …measurements}``.

    ``ok`` is None where nothing could be found out.
    """
    facts = measured["facts"]
    backend = facts[0]["versions"]["backend"]
    checks = [
        _versions([fact["versions"] for fact in facts]),
        _hosts([fact["host"] for fact in facts], nodes),
        _links([facts[ranks[0]]["topology"] for ranks in nodes], nodes),
        _memory([fact["free_bytes"] for fact in facts]),
        _shared(measured["shared"]),
        _clocks(measured["clocks"]),
        _slow(measured["seconds"], backend),
        _all_reduce(measured["all_reduce"], len(facts)),
        _pairs(measured["pairs"], teams, "nodes" if teams == nodes else "ranks", backend),
    ]
    pairs = [{"pair": list(pair), "bytes_per_s": value} for pair, value in sorted(measured["pairs"].items())]
    return {
        "ok": all(check["ok"] is not False for check in checks),
        "ranks": len(facts),
        "nodes": [list(ranks) for ranks in nodes],
        "checks": checks,
        **{**measured, "pairs": pairs},
    }


def report(found: Mapping[str, Any]) -> str:
    """The same for people."""
    marks = {True: "ok", False: "NO", None: "—"}
    return "\n".join(
        f"{marks[check['ok']]:3} {check['name']:15} {check['text']}" for check in found["checks"]
    )


def odd(values: Sequence[Any]) -> tuple[Any, dict[Any, list[int]]]:
    """What most have, and who has what else."""
    common = Counter(values).most_common(1)[0][0]
    others: dict[Any, list[int]] = {}
    for rank, value in enumerate(values):
        if value != common:
            others.setdefault(value, []).append(rank)
    return common, others


def slow(seconds: Sequence[float], times: float) -> dict[int, float]:
    """Ranks that take more than ``times`` the median, the slowest first, and how many times.

    The scatter is the median absolute deviation: a slow rank does not hide itself by making it larger.
    """
    median = statistics.median(seconds)
    scatter = 1.4826 * statistics.median(abs(x - median) for x in seconds)
    limit = max(times * median, median + SCATTERS * scatter)
    found = {rank: x / median for rank, x in enumerate(seconds) if x > limit}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _check(name: str, ok: bool | None, text: str) -> dict[str, Any]:
    return {"name": name, "ok": ok, "text": text}


def _versions(versions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    same, differ = [], []
    for key in versions[0]:
        common, others = odd([found.get(key) for found in versions])
        same += [f"{key} {common}"] if common else []
        differ += [f"{key} is {common}, but {value} on {names(ranks)}" for value, ranks in others.items()]
    text = f"on all {len(versions)} ranks: {', '.join(same)}" if len(versions) > 1 else ", ".join(same)
    return _check("versions", not differ, "; ".join(differ) or text)


def _hosts(hosts: Sequence[str], nodes: Sequence[Sequence[int]]) -> dict[str, Any]:
    text = ", ".join(f"{hosts[ranks[0]]} ({_span(ranks)})" for ranks in nodes)
    even = len({len(ranks) for ranks in nodes}) == 1
    return _check("nodes", even, text if even else f"nodes have different numbers of ranks: {text}")


def _span(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"


def _links(topologies: Sequence[str | None], nodes: Sequence[Sequence[int]]) -> dict[str, Any]:
    """``nvidia-smi topo -m``: between two GPUs it has NV18 (so many NVLinks), PIX, PXB, PHB, NODE or SYS."""
    common, others = odd([links(text) for text in topologies])
    if common is None:
        return _check("links of GPUs", None, "nvidia-smi does not say how the GPUs of a node are connected")
    differ = [f"{_span(nodes[node])}: {value}" for value, found in others.items() for node in found]
    return _check(
        "links of GPUs", not differ, f"{common} between two GPUs" + "".join(f"; but {d}" for d in differ)
    )


def links(topology: str | None) -> str | None:
    """The kinds of links between GPUs in the matrix of ``nvidia-smi topo -m``, and how many there are of each."""
    if topology is None:
        return None
    rows = [line.split() for line in topology.splitlines() if line.startswith("GPU")]
    kinds = Counter(word for i, row in enumerate(rows) for word in row[1 : 1 + i])
    return ", ".join(f"{kind} ({count})" for kind, count in sorted(kinds.items())) or "none"


def _memory(free: Sequence[Mapping[str, int | None]]) -> dict[str, Any]:
    said, short = [], []
    for kind in free[0]:
        values = [found.get(kind) or 0 for found in free]
        median = statistics.median(values)
        said.append(f"at least {min(values) / 2**30:.1f} GiB of {kind} free")
        short += [
            f"rank {rank} has {value / 2**30:.1f} GiB of {kind} free, the median rank {median / 2**30:.1f}"
            for rank, value in enumerate(values)
            if value < FULL * median
        ]
    return _check("memory", not short, "; ".join(short) or ", ".join(said))


def _shared(seen: Sequence[bool | str]) -> dict[str, Any]:
    if isinstance(seen[0], str):
        return _check("shared folder", False, seen[0])
    blind = [rank for rank, sees in enumerate(seen) if not sees]
    text = f"{names(blind)} cannot see what rank 0 writes" if blind else "what rank 0 writes all ranks see"
    return _check("shared folder", not blind, text)


def _clocks(offsets: Sequence[tuple[float, float] | None]) -> dict[str, Any]:
    known = {rank: found for rank, found in enumerate(offsets) if found is not None}
    if not known:
        return _check("clocks", None, "there is one clock")
    wrong = [
        f"the clock of rank {rank} is {abs(offset):.3f} s {'ahead of' if offset > 0 else 'behind'} that of rank 0"
        for rank, (offset, within) in known.items()
        if abs(offset) - within > APART
    ]
    largest = max(abs(offset) for offset, _ in known.values())
    within = max(within for _, within in known.values())
    text = f"at most {largest * 1e3:.1f} ms apart, known to ± {within * 1e3:.1f} ms"
    return _check("clocks", not wrong, "; ".join(wrong) or text)


def _slow(seconds: Sequence[float], backend: str) -> dict[str, Any]:
    median = statistics.median(seconds)
    found = [
        f"rank {rank} takes {times:.1f} times the median"
        for rank, times in slow(seconds, SLOW[backend]).items()
    ]
    text = f"{median * 1e3:.2f} ms for the same products, at most {max(seconds) / median:.2f} times that"
    return _check("speed", not found, "; ".join(found) or text)


def _all_reduce(bandwidth: float | None, ranks: int) -> dict[str, Any]:
    if bandwidth is None:
        return _check("all-reduce", None, "one rank reduces alone")
    return _check(
        "all-reduce", None, f"{bandwidth / 1e9:.2f} GB/s of each rank's link, over all {ranks} ranks"
    )


def _pairs(
    pairs: Mapping[tuple[int, int], float], teams: Sequence[Sequence[int]], kind: str, backend: str
) -> dict[str, Any]:
    name = f"pairs of {kind}"
    if not pairs:
        return _check(name, None, "there are no two")
    median = statistics.median(pairs.values())
    narrow = [
        f"{_span(teams[a])} with {_span(teams[b])}: {value / 1e9:.2f} GB/s, the median is {median / 1e9:.2f}"
        for (a, b), value in sorted(pairs.items(), key=lambda item: item[1])
        if value < NARROW[backend] * median
    ]
    text = f"{min(pairs.values()) / 1e9:.2f} to {max(pairs.values()) / 1e9:.2f} GB/s in an all-reduce of two"
    return _check(name, not narrow, "; ".join(narrow) or text)
