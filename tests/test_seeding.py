"""Derived seeds differ by seed and by purpose, and are the same in every process."""

import subprocess
import sys

import torch

from playbook.seeding import derive_seed


def test_every_seed_and_purpose_gives_other_numbers():
    draws = set()
    for seed in (0, 1, 2, 2**31 - 1):
        for purpose in ("a", "b", "batch 0", "batch 1"):
            generator = torch.Generator().manual_seed(derive_seed(seed, purpose))
            draws.add(tuple(torch.rand(3, generator=generator).tolist()))
    assert len(draws) == 16


def test_the_same_in_another_process():
    code = "from playbook.seeding import derive_seed; print(derive_seed(3, 'x'))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(out) == derive_seed(3, "x")
