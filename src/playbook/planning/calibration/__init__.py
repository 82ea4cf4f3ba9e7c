"""What devices and frameworks reach of what datasheets say: data with provenance, one TOML file each.

Few numbers, each with a physical meaning; ``benchmarks/fit_calibrations.py`` fits those that no source gives to published
step times, and ``playbook calibrate`` measures them on a machine. Standard library only.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from playbook._checks import check_fields, unknown
from playbook.errors import ConfigError
from playbook.hardware import Accelerator
from playbook.planning.fusion import KEPT, known_names, load_fused

HERE = Path(__file__).parent


def _share(default: float) -> Any:
    return field(default=default, metadata={"least": 0.0, "most": 1.0})


def _least(default: float) -> Any:
    return field(default=default, metadata={"least": 0.0})


@dataclass(frozen=True)
class Calibration:
    """Of a device: ``matmul``, by dtype what large products reach of the peak; ``bandwidth`` and ``attention`` (forward),
    ``attention_backward`` likewise of memory bandwidth and peak; ``processors``, its multiprocessors; ``launch``, seconds
    between two kernels. Of a network: ``intra`` and ``inter``, what collectives reach of the cluster's bandwidths;
    ``congestion`` c makes links of a group on n nodes (n/2)^c times slower; ``collective``, seconds before one moves;
    ``stall``, seconds that a micro-batch takes at least on a stage that receives from two others, in runs of
    ``stall_nodes`` nodes and more, of ``stall_nodes_plain`` where replicas are not sharded.

    Of a framework: ``host``, seconds in which it launches a kernel, ``floor``, seconds that a block and micro-batch
    takes at least for each tensor-parallel rank, and ``floor_pipeline``, where there are stages; ``reserved``, memory
    that its allocator takes over what tensors need; ``kernels``, operations whose memory is always that of one
    (`fusion.FUSED`), and what it ``keeps`` otherwise than the book's trainer (`fusion.KEPT`); whether elementwise
    operations are ``fused``, and if not, what share (``unfused``) of the bytes beyond that PyTorch's operators move, in
    ``unfused_kernels`` times the kernels; ``quantise``, bytes moved for each element that is cast to FP8;
    ``products_again``, the part of a block's products that selective recomputation repeats; what of dp, tp, cp, ep
    messages hides behind computation, if the framework overlaps them (``hidden_…``), and whether those of a sharded
    optimizer (ZeRO) do, too (``hidden_zero``); whether stages are cut so that they cost the same, the head counted
    (``balanced``), or are of as many blocks each; ``accumulate``, bytes moved for each parameter's gradient and
    micro-batch; ``step``, seconds a step for the rest; ``jitter``, the standard deviation of a rank's time: a step of N
    ranks waits for the slowest, √(2 ln N) deviations above the mean.

    ``interval``: of steps in tables that a fit has not seen, four of five took between these multiples of what it says.
    """

    name: str
    accelerator: str = ""
    source: str = ""
    matmul: Mapping[str, float] = field(default_factory=dict, hash=False)
    processors: int = 108
    bandwidth: float = _share(0.85)
    attention: float = _share(0.6)
    attention_backward: float = _share(0.5)
    launch: float = _least(3e-6)
    intra: float = _least(1.0)
    inter: float = _least(1.0)
    congestion: float = _least(0.0)
    stall: float = _least(0.0)
    stall_nodes: int = 1
    stall_nodes_plain: int = 1
    collective: float = _least(5e-6)
    host: float = _least(8e-6)
    floor: float = _least(0.0)
    floor_pipeline: float = _least(0.0)
    reserved: float = _least(1.0)
    kernels: frozenset[str] = frozenset()
    keeps: frozenset[str] = frozenset()
    fused: bool = True
    unfused: float = _least(1.0)
    unfused_kernels: float = _least(4.0)
    quantise: float = _least(4.0)
    products_again: float = _share(0.0)
    hidden_dp: float = _share(0.8)
    hidden_tp: float = _share(0.0)
    hidden_cp: float = _share(0.9)
    hidden_ep: float = _share(0.0)
    hidden_pp: float = _share(1.0)
    hidden_zero: bool = True
    balanced: bool = False
    accumulate: float = _least(0.0)
    step: float = _least(0.0)
    jitter: float = _least(0.004)
    interval: tuple[float, float] = (0.85, 1.25)

    def __post_init__(self) -> None:
        check_fields(self, ConfigError)
        object.__setattr__(self, "kernels", load_fused(self.kernels))
        object.__setattr__(self, "keeps", known_names(self.keeps, "keeps", KEPT))
        if not isinstance(self.matmul, Mapping):
            raise ConfigError(f"matmul must be a table such as {{ bf16 = 0.8 }}, got {self.matmul!r}")
        shares = {f.name: getattr(self, f.name) for f in fields(self) if "most" in f.metadata}
        products = {f"matmul.{dtype}": value for dtype, value in self.matmul.items()}
        for key, share in {**shares, **products}.items():
            if not isinstance(share, int | float) or not 0 <= share <= 1:
                raise ConfigError(f"{key} must be a share from 0 to 1, got {share!r}")

    def reached(self, dtype: str) -> float:
        """What large products in ``dtype`` reach of the peak; that of the widest known where it was not measured."""
        known = self.matmul
        return known.get(dtype) or known.get("bf16") or next(iter(known.values()), 0.75)


def names() -> list[str]:
    """The calibrations that come with the book."""
    return sorted(path.stem for path in HERE.glob("*.toml"))


def load_calibration(name: str | Calibration | None, accelerator: Accelerator) -> Calibration:
    """The calibration called ``name`` or in the file of that name; None is the one that fits the accelerator.

    Raises ConfigError for an unknown name and for a file that is none.
    """
    if isinstance(name, Calibration):
        return name
    if name is None:
        name = GENERATIONS.get(accelerator.name, accelerator.name)
        name = name if (HERE / f"{name}.toml").exists() else "h100"
    if (HERE / f"{name}.toml").exists():
        return _shipped(name)
    path = Path(name)
    if path.suffix != ".toml" or not path.exists():
        raise ConfigError(unknown("calibration", name, names()) + " (or give a .toml file)")
    try:
        return from_table(path.stem, tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"calibration {name}: {error}") from None


@cache
def _shipped(name: str) -> Calibration:
    return from_table(name, tomllib.loads((HERE / f"{name}.toml").read_text(encoding="utf-8")))


def from_table(name: str, table: Mapping[str, Any]) -> Calibration:
    """A calibration from the sections of its file: all but [provenance] and [raw] are its fields, in one."""
    given: dict[str, Any] = {}
    for section in ("device", "network", "framework"):
        given |= table.get(section, {})
    known = {f.name for f in fields(Calibration)}
    for key in given:
        if key not in known:
            raise ConfigError(f"calibration {name}: " + unknown("field", key, sorted(known)))
    source = table.get("provenance", {}).get("source", "")
    if "interval" in given:
        given["interval"] = tuple(given["interval"])
    return Calibration(**{"name": name, "source": source, **given})


#: The calibration of accelerators that have none of their name: that of their generation, and Hopper's for others.
GENERATIONS = {
    "a100-40": "a100", "a100-80": "a100", "a800": "a100", "rtxa6000": "a100", "v100": "a100",
    "gb200": "b200", "rtx5090": "b200",
}  # fmt: skip
