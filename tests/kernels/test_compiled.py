"""What is told of a kernel is the same whoever has compiled it, and whenever."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from playbook.kernels.jit import launches
from playbook.kernels.rmsnorm import rms_norm
from playbook_book.kernels.compiled import REPORT, compiled


def test_the_report_is_that_of_the_code_in_tritons_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Compiled here; kept from then; and where a launch has compiled it, of which nothing was kept."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with launches() as found:
        rms_norm(torch.empty(64, 4096, device="meta", dtype=torch.bfloat16), torch.empty(4096, device="meta"))
    first = compiled(found[0], 90)
    (report,) = tmp_path.rglob(REPORT)
    assert f"Used {first.registers} registers" in report.read_text()
    assert list(report.parent.glob("*.cubin"))
    report.write_text(report.read_text().replace(f"Used {first.registers} ", "Used 7 "))
    assert compiled(found[0], 90).registers == 7
    report.unlink()
    assert compiled(found[0], 90) == first
    assert report.exists()
