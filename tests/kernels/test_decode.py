"""Flash-decoding beside the formula: any number of parts, groups of heads, keys that no part divides."""

import pytest
import torch
import torch.nn.functional as F

from playbook.errors import ShapeError
from playbook.kernels.flash_attention import Tuning, flash_attention_lse
from playbook.kernels.flash_backward import Blocks
from playbook.kernels.jit import launches
from playbook_book.kernels.compiled import compiled
from playbook_book.kernels.decode import decode, parts_for

SMALL = Tuning(*[Blocks(16, 16, 4, 1)] * 3)


def qkv(b: int, keys: int, heads: int, kv_heads: int, d: int, **of) -> tuple[torch.Tensor, ...]:
    shapes = (b, 1, heads, d), (b, keys, kv_heads, d), (b, keys, kv_heads, d)
    return tuple(torch.randn(shape, **of) for shape in shapes)


@pytest.mark.parametrize(
    ("b", "keys", "heads", "kv_heads", "parts"),
    [(1, 64, 4, 4, 1), (2, 65, 4, 2, 4), (1, 97, 6, 1, 3), (3, 7, 2, 2, 7), (2, 50, 8, 2, None)],
)
def test_equals_the_formula(b, keys, heads, kv_heads, parts):
    torch.manual_seed(keys)
    q, k, v = qkv(b, keys, heads, kv_heads, 16)
    expected = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), enable_gqa=True)
    torch.testing.assert_close(decode(q, k, v, parts, SMALL), expected.transpose(1, 2), rtol=1e-5, atol=1e-5)


def test_every_multiprocessor_has_a_program_and_a_group_reads_its_keys_once():
    """One sample of Llama 3 8B: 32 heads, 8 of keys, 8,192 tokens, on 132 multiprocessors."""
    q, k, v = qkv(1, 8192, 32, 8, 128, dtype=torch.bfloat16, device="meta")
    with launches() as before:
        flash_attention_lse(q, k, v, causal=True)
    with launches() as after:
        decode(q, k, v, parts_for(8, 8192, 132))
    (one,) = before
    (many,) = after
    programs = [x * y * z for x, y, z in (one.grid, many.grid)]
    assert programs == [32, 8 * 16]
    read = [count * keys * 128 * 2 * 2 for count, keys in zip(programs, (8192, 512), strict=True)]
    assert read == [4 * (k.nbytes + v.nbytes), k.nbytes + v.nbytes]
    assert compiled(many, 90).spills == 0


def test_parts():
    assert parts_for(8, 8192, 132) == 16
    assert parts_for(8, 1024, 132) == 4  # of 256 keys each
    assert parts_for(200, 8192, 132) == parts_for(1, 100, 132) == 1


def test_more_queries_are_refused():
    q, k, v = qkv(1, 8, 4, 2, 16)
    with pytest.raises(ShapeError, match=r"q is \(1, 2, 4, 16\), but must be \(b, 1, heads, d\)"):
        decode(q.expand(1, 2, 4, 16), k, v)
