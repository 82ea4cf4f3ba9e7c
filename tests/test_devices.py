"""One GPU gives what the CPU gives. On the CPU too runs what compares it with something else than itself."""

import pytest
import torch
from helpers import BLOCKS, LLAMA, gradients, relative_error, tokens

from playbook.instruments.memory_timeline import MemoryTimeline
from playbook.layout import RECOMPUTE
from playbook.model.transformer import Transformer
from playbook.shapes import load
from playbook.training.config import TrainConfig
from playbook.training.data import load_corpus
from playbook.training.trainer import make_trainer
from playbook_book.instruments.measured import SavedActivations, count_flops

NEEDS_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
GPU = pytest.param("cuda", marks=NEEDS_GPU)
DEVICES = ["cpu", GPU]
SMALL = load("tiny").replace(layers=2, hidden=32, heads=4, kv_heads=2, head_dim=8, ffn=64)


@pytest.fixture(autouse=True)
def exact_matrix_products():
    """fp32 products on a GPU may use TF32: ten bits of mantissa would hide a wrong gradient."""
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.parametrize(
    ("attention", "device"),
    [("reference", "cpu"), *[pytest.param(a, "cuda", marks=NEEDS_GPU) for a in ("reference", "sdpa")]],
)
@pytest.mark.parametrize("block", BLOCKS)
def test_loss_and_gradients_are_those_of_the_cpu(block, attention, device):
    x, y = tokens(BLOCKS[block], 3, 16)
    expected, model = (
        Transformer(BLOCKS[block], attention="sdpa"),
        Transformer(BLOCKS[block], attention=attention, device=device),
    )
    a, _ = expected.loss(x, y)
    b, _ = model.loss(x.to(device), y.to(device))
    a.backward()
    b.backward()
    assert b.item() == pytest.approx(a.item(), rel=1e-5)
    here = {name: g.cpu() for name, g in gradients(model).items()}
    assert relative_error(here, gradients(expected)) < 1e-4


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputation_replays_the_devices_own_random_numbers(recompute, dropout, device):
    results = []
    for mode in ("none", recompute):
        model = Transformer(
            LLAMA.replace(dropout=dropout), attention="reference", recompute=mode, device=device
        )
        x, y = (t.to(device) for t in tokens(LLAMA, 3, 16))
        torch.manual_seed(0)
        model.loss(x, y)[0].backward()
        results.append(gradients(model))
    assert relative_error(*results) < 1e-6


@pytest.mark.parametrize("device", [GPU])
@pytest.mark.parametrize("mode", RECOMPUTE)
def test_reference_attention_saves_the_same_bytes_everywhere(mode, device):
    saved = []
    for where in ("cpu", device):
        model = Transformer(LLAMA, attention="reference", recompute=mode, device=where)
        x, y = (t.to(where) for t in tokens(LLAMA, 2, 16))
        with SavedActivations(model, (x, y)) as s:
            model.loss(x, y)
        saved.append(s.bytes)
    assert saved[0] == saved[1]


@pytest.mark.parametrize("device", [GPU])
def test_the_timeline_sees_what_the_allocator_sees(device):
    model = Transformer(LLAMA.replace(hidden=96, ffn=256), attention="reference", device=device)
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = (t.to(device) for t in tokens(LLAMA, 8, 32))

    def step():
        model.loss(x, y)[0].backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    torch.cuda.reset_peak_memory_stats()
    outside = torch.cuda.memory_allocated() - sum(
        t.untyped_storage().nbytes()
        for t in [
            *model.parameters(),
            *model.buffers(),
            *(v for s in optimizer.state.values() for v in s.values()),
        ]
        if t.is_cuda
    )
    with MemoryTimeline(model, optimizer) as timeline:
        step()
    peak = timeline.curves().peak
    # The allocator rounds every block up to 512 bytes, and counts workspaces.
    assert peak == pytest.approx(torch.cuda.max_memory_allocated() - outside, rel=0.1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_training_learns_in_every_precision(dtype, device):
    config = TrainConfig(steps=12, global_batch=4, seq=32, lr=5e-3, dtype=dtype, device=device)
    results = make_trainer(SMALL, load_corpus(), config).run()
    assert results[-1].loss < results[0].loss - 0.5


@pytest.mark.parametrize("device", [GPU])
def test_flops_are_a_property_of_the_model(device):
    counts = []
    for where in ("cpu", device):
        model = Transformer(LLAMA, attention="reference", device=where)
        x, y = (t.to(where) for t in tokens(LLAMA, 2, 16))
        counts.append(count_flops(lambda m=model, x=x, y=y: m.loss(x, y)[0].backward()))
    assert counts[0] == counts[1]
