"""Random numbers that depend on the seed and on what they are for, never on order, rank or process."""

import hashlib


def derive_seed(seed: int, purpose: str) -> int:
    """A 32-bit seed from both arguments alone, such as ``derive_seed(0, "blocks.3.mlp.up.weight")``.

    Hashed, because torch's CPU generator reads the low 32 bits of a seed and no more: ``seed << 32 | step`` would give
    the same numbers for every seed. And not with ``hash``, which changes with every process.
    """
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big")
