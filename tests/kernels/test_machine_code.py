"""Machine code for Hopper: the reader finds what is planted, and nothing in any of our kernels, with either Triton."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version

import hopper_kernels
import pytest
from hopper_kernels import CASES, examined

from playbook_book.kernels.machine_code import hazards, parsed

#: A loop as FlashAttention's: scores, a wait, a softmax in R120 to R123, the product with values, the next copy.
LOOP = """
        /*0010*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
.L_x_1:
        /*0020*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P3, [UR11+0x1c000], R14 ;
        /*0030*/              @!P3 BRA `(.L_x_1) ;
.L_x_2:
        /*0040*/                   WARPGROUP.ARRIVE ;
        /*0050*/                   HGMMA.64x64x16.F32.BF16 R88, gdesc[UR16], RZ, !UPT, gsb0 ;
        /*0060*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0070*/                   FFMA R120, R88, R2, -R3 ;
        /*0080*/                   MUFU.EX2 R121, R89 ;
        /*0090*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*00a0*/                   HGMMA.64x128x16.F32.BF16 R24, R120, gdesc[UR16].tnspB, R24 ;
        /*00b0*/                   HGMMA.64x128x16.F32.BF16 R24, R124, gdesc[UR20].tnspB, R24, gsb0 ;
        /*00c0*/                   UTMALDG.3D [UR8], [UR6] ;
        /*00d0*/                   IADD3 R14, R14, 0x1, RZ ;
        /*00e0*/               @P1 BRA `(.L_x_2) ;
.L_x_3:
        /*00f0*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0100*/                   FMUL R24, R24, R5 ;
        /*0110*/                   STG.E.128 desc[UR4][R2.64], R24 ;
        /*0120*/                   EXIT ;
"""


def test_a_loop_that_waits_and_meets_is_well():
    assert hazards(parsed(LOOP)) == []


LAST = "IADD3 R14, R14, 0x1, RZ"
PLANTED = [
    (LAST, "FFMA R121, R14, R2, R3", "00d0 FFMA overwrites R121, of a left matrix in flight"),
    (LAST, "LDS.128 R124, [R14]", "00d0 LDS.128 overwrites R124, of a left matrix in flight"),
    (LAST, "LDS.64 R119, [R14]", "00d0 LDS.64 overwrites R120, of a left matrix in flight"),
    (LAST, "FADD R14, R14, R30", "00d0 FADD touches R30, of sums in flight"),
    (LAST, "FADD R87, R14, R3", "00d0 FADD touches R87, of sums in flight"),
    (LAST, "FADD R136, R23, R3", ""),
    ("0x0 ;\n        /*0070", "0x1 ;\n        /*0070", "0070 FFMA touches R88, of sums in flight"),
    (
        "BAR.SYNC.DEFER_BLOCKING 0x0 ;\n        /*00a0",
        "NOP ;\n        /*00a0",
        "00c0 UTMALDG.3D fills a buffer after",
    ),
    (
        "WARPGROUP.DEPBAR.LE gsb0, 0x0 ;\n        /*0100",
        "NOP ;\n        /*0100",
        "0100 FMUL touches R24, of sums",
    ),
    (
        "x128x16.F32.BF16 R24, R124",
        "x128x16.F32.BF16 R120, R124",
        "00b0 HGMMA.64x128x16.F32.BF16 overwrites R120",
    ),
]


@pytest.mark.parametrize(("was", "now", "said"), PLANTED)
def test_what_is_planted_is_found(was, now, said):
    assert LOOP.count(was) == 1
    found = hazards(parsed(LOOP.replace(was, now)))
    assert len(found) > 0 if said else found == []
    assert not said or any(said in one for one in found), found


def test_a_branch_is_followed_on_both_sides():
    """A copy is reached round the barrier."""
    code = LOOP.replace("FFMA R120, R88, R2, -R3", "@P2 BRA `(.L_x_9)")
    code = code.replace("/*00c0*/  ", ".L_x_9:\n        /*00c0*/  ").replace("\n        .L_x_9", "\n.L_x_9")
    assert [one[:4] for one in hazards(parsed(code))] == ["00c0"]


#: Bytes that a thread spills at most: two numbers, with Triton 3.7.1 and not with 3.6.0.
SPILLS = {"attention 256, 256": 8}
#: One scale for all of k: sums that are added in fp32 every 128 of it are touched, and so each wgmma waits.
SERIAL = "C7517"


def right(name: str, found: dict[str, dict]) -> bool:
    return all(
        one["spills"] <= SPILLS.get(name, 0)
        and set(one["warnings"]) <= ({SERIAL} if "tensor" in name else set())
        and not one["hazards"]
        and one["products"]
        for one in found.values()
    )


@pytest.mark.parametrize("name", CASES)
def test_no_kernel_meets_a_hazard_nor_spills(name):
    found = examined(name)
    assert found
    assert right(name, found), found


def test_nor_with_the_triton_of_gpu_machines(tmp_path):
    """Another compiler, another assembler."""
    folder = os.environ.get("PLAYBOOK_TRITON")
    if version("triton") == "3.6.0" or not folder:
        pytest.skip(f"no Triton 3.6.0 beside {version('triton')}")
    paths = [folder, *sys.path[1:]]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TRITON_CACHE_DIR": str(tmp_path)}
    script = hopper_kernels.__file__
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == set(CASES)
    assert {name: one for name, one in found.items() if not right(name, one)} == {}
