"""The trainer learns, repeats itself exactly, accumulates gradients right and dies cleanly."""

import dataclasses
import itertools
import os
import signal

import pytest
import torch
from helpers import BLOCKS, GPT, gradients, relative_error, tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from playbook.errors import ConfigError
from playbook.instruments.step_costs import StepCosts
from playbook.launch.logs import open_log, read_json_log
from playbook.model.transformer import IGNORE, Transformer
from playbook.parallel.engine import accumulate_gradients
from playbook.shapes import load
from playbook.training.config import TrainConfig
from playbook.training.data import Corpus, TokenBatches, load_corpus
from playbook.training.optimizer import MasterAdamW, make_optimizer, warmup_cosine
from playbook.training.trainer import Trainer, make_trainer

SMALL = load("tiny").replace(layers=2, hidden=32, heads=4, kv_heads=2, head_dim=8, ffn=64)


def trainer(**changes):
    options = {"steps": 4, "global_batch": 4, "seq": 16, "device": "cpu", **changes}
    return make_trainer(SMALL, load_corpus(), TrainConfig(**options))


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("micro", [1, 2, 3, 4, 6])
def test_accumulated_gradients_are_those_of_the_big_batch(block, micro):
    x, y = tokens(BLOCKS[block], 6, 13)
    y[0, 3:] = IGNORE  # unequal token counts: a mean of means would be wrong
    y[4, :] = IGNORE
    big, small = Transformer(BLOCKS[block]), Transformer(BLOCKS[block])
    a = accumulate_gradients(big, x, y, 6)
    b = accumulate_gradients(small, x, y, micro)
    assert b.item() == pytest.approx(a.item(), rel=1e-6)
    assert relative_error(gradients(small), gradients(big)) <= 1e-6


@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=6).filter(lambda counts: sum(counts) > 0),
    st.integers(1, 6),
)
@settings(max_examples=25, deadline=None)
def test_any_token_counts_any_micro_batch(counts, micro):
    x, y = tokens(GPT, len(counts), 9)
    for row, count in enumerate(counts):
        y[row, count:] = IGNORE
    big, small = Transformer(GPT), Transformer(GPT)
    accumulate_gradients(big, x, y, len(counts))
    accumulate_gradients(small, x, y, micro)
    assert relative_error(gradients(small), gradients(big)) <= 2e-6


def test_the_mean_of_means_is_the_bug_that_this_avoids():
    x, y = tokens(GPT, 2, 13)
    y[0, 1:] = IGNORE
    right, wrong = Transformer(GPT), Transformer(GPT)
    accumulate_gradients(right, x, y, 2)
    for row in range(2):
        total, count = wrong.loss(x[row : row + 1], y[row : row + 1])
        (total / count / 2).backward()
    assert relative_error(gradients(wrong), gradients(right)) > 0.1


def test_no_token_that_counts():
    x, y = tokens(GPT, 2, 5)
    with pytest.raises(ConfigError, match="no token that counts"):
        accumulate_gradients(Transformer(GPT), x, torch.full_like(y, IGNORE), 1)


def test_two_runs_with_one_seed_are_identical_and_another_seed_is_not():
    a, b, other = (trainer(seed=seed).run() for seed in (3, 3, 4))
    assert [r.loss for r in a] == [r.loss for r in b]
    assert [r.grad_norm for r in a] == [r.grad_norm for r in b]
    assert [r.loss for r in a] != [r.loss for r in other]


def test_the_first_loss_is_that_of_guessing_and_then_it_falls():
    results = trainer(steps=30, lr=1e-2).run()
    assert results[0].loss == pytest.approx(5.55, abs=0.15)  # ln 256
    assert results[-1].loss < results[0].loss - 1.5


@pytest.mark.parametrize("micro", [1, 2, 4])
def test_a_run_does_not_depend_on_the_micro_batch(micro):
    expected = trainer().run()
    for a, b in zip(trainer(micro_batch=micro).run(), expected, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-4)
        assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bit_autocast_trains_to_nearly_the_same_loss(dtype):
    plain, half = trainer(steps=12, lr=3e-3).run(), trainer(steps=12, lr=3e-3, dtype=dtype).run()
    assert half[-1].loss == pytest.approx(plain[-1].loss, abs=0.05)
    assert [r.loss for r in half] != [r.loss for r in plain]


def test_clipping_limits_the_update_and_reports_the_norm_before():
    t = trainer(grad_clip=1e-3)
    result = t.step()
    assert result.grad_norm > 1e-3
    total = torch.cat([p.grad.flatten() for p in t.model.parameters()]).norm()
    assert total.item() == pytest.approx(1e-3, rel=1e-2)
    free = trainer(grad_clip=0)
    assert free.step().grad_norm == result.grad_norm
    unclipped = torch.cat([p.grad.flatten() for p in free.model.parameters()]).norm()
    assert unclipped.item() == pytest.approx(result.grad_norm, rel=1e-4)


@pytest.mark.parametrize("part", [0.3, 0.7, 0.99, 1.01])
@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
def test_clipping_scales_by_what_is_missing_and_nothing_below_the_limit(weights, part):
    """On a CPU PyTorch rounds the factor to the gradients' type; on a GPU it does not."""
    kinds = {"weights": weights, "dtype": weights}
    free = trainer(grad_clip=0, **kinds)
    norm = free.step().grad_norm
    clipped = trainer(grad_clip=norm * part, **kinds)
    assert clipped.step().grad_norm == norm
    for whole, p in zip(free.model.parameters(), clipped.model.parameters(), strict=True):
        expected = whole.grad.float() * min(1.0, norm * part / (norm + 1e-6))
        assert torch.allclose(p.grad.float(), expected, rtol=1e-6 if weights == "float32" else 1e-2, atol=0)


def test_steps_match_a_loop_written_by_hand():
    """The whole trainer against twenty lines of plain PyTorch."""
    t = trainer(steps=3, warmup=0, lr=1e-3, min_lr=1e-3, weight_decay=0.0, grad_clip=0.5)
    losses = [r.loss for r in t.run()]
    model = Transformer(SMALL, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    for step, expected in enumerate(losses):
        x, y = TokenBatches(load_corpus(), 4, 16, 0).batch(step)
        loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        assert loss.item() == pytest.approx(expected, rel=1e-5)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()


def test_peak_is_measured_with_the_optimizer_states_there():
    t = trainer()
    costs = StepCosts(t)
    t.run()
    assert costs.peak_bytes > 16 * SMALL.num_parameters


def test_micro_batches_hold_memory_down():
    peaks = []
    for micro in (16, 2):
        t = trainer(steps=2, global_batch=16, micro_batch=micro)
        costs = StepCosts(t)
        t.run()
        peaks.append(costs.peak_bytes)
    assert peaks[1] < 0.6 * peaks[0]


def test_interrupt_leaves_a_readable_log_and_the_results(tmp_path):
    t = trainer(steps=50)
    original = t.step

    def step():
        if t.step_count == 3:
            raise KeyboardInterrupt
        return original()

    t.step = step  # Ctrl-C between two steps; the real signal is tested through the command line
    path = tmp_path / "run.jsonl"
    with pytest.raises(KeyboardInterrupt) as interrupt:
        t.run(open_log(path))
    assert len(interrupt.value.results) == 3
    assert [r["step"] for r in read_json_log(path)] == [0, 1, 2]
    assert '"event": "interrupted"' in path.read_text().splitlines()[-1]


def test_an_interrupt_does_not_come_between_a_result_and_its_record(handle_interrupts):
    class Log:
        records, outcome = [], ""

        def start(self, header):
            pass

        def step(self, record):
            if record["step"] == 2:
                os.kill(os.getpid(), signal.SIGINT)
            self.records.append(record["loss"])

        def close(self, outcome):
            self.outcome = outcome

    log = Log()
    with pytest.raises(KeyboardInterrupt) as interrupt:
        trainer(steps=50).run(log)
    assert [result.loss for result in interrupt.value.results] == log.records
    assert len(log.records) == 3
    assert log.outcome == "interrupted"


def test_schedule_warms_up_and_comes_down():
    rates = [warmup_cosine(s, peak=1.0, minimum=0.1, warmup=4, steps=20) for s in range(21)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0
    assert rates[20] == pytest.approx(0.1)
    assert all(a >= b for a, b in itertools.pairwise(rates[4:]))
    assert rates[12] == pytest.approx(0.55)


def test_only_matrices_decay():
    optimizer = make_optimizer(Transformer(GPT), lr=0.1, betas=(0.9, 0.95), weight_decay=0.3)
    decay = {p.dim(): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decay == {2: 0.3, 1: 0.0}


def test_master_weights_remember_what_bf16_forgets():
    """An update of 1/1000 of a weight is lost in bf16, and is not lost in the master."""
    weight = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    plain = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    master = MasterAdamW([weight], lr=1e-3, weight_decay=0.0)
    naive = torch.optim.AdamW([plain], lr=1e-3, weight_decay=0.0)
    for _ in range(20):
        weight.grad = torch.ones_like(weight)
        plain.grad = torch.ones_like(plain)
        master.step()
        naive.step()
    assert torch.all(plain == 1)
    assert weight[0].item() == pytest.approx(0.98, abs=2e-3)
    assert master.state[weight]["master"].dtype == torch.float32


def test_master_adamw_is_adamw_for_fp32_parameters():
    torch.manual_seed(0)
    a, b = (torch.nn.Parameter(torch.linspace(-1, 1, 6).reshape(2, 3)) for _ in range(2))
    ours = MasterAdamW([a], lr=1e-2, betas=(0.8, 0.9), weight_decay=0.1)
    theirs = torch.optim.AdamW([b], lr=1e-2, betas=(0.8, 0.9), weight_decay=0.1)
    for step in range(5):
        for p, optimizer in ((a, ours), (b, theirs)):
            p.grad = torch.full_like(p, 0.1 * (step - 2))
            for group in optimizer.param_groups:
                group["lr"] = 1e-2 / (step + 1)
            optimizer.step()
    assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"global_batch": -2}, "global_batch must be at least 1, got -2"),
        ({"micro_batch": 3}, "micro_batch is 3, but must divide global_batch=4: one of 1, 2, 4"),
        (
            {"global_batch": 10**9 + 7, "micro_batch": 2},
            "micro_batch is 2, but must divide global_batch=1000000007: one of 1, 1000000007",
        ),
        ({"global_batch": 2**31}, "global_batch must be at most 2147483647, got 2147483648"),
        ({"steps": 10**30}, "steps must be at most 2147483647, got 1000"),
        ({"seq": 2.5}, "seq must be an integer, got 2.5"),
        ({"seq": True}, "seq must be an integer, got True"),
        ({"lr": float("nan")}, "lr must be finite, got nan"),
        ({"lr": "x"}, "lr must be a number, got 'x'"),
        ({"grad_clip": -1}, "grad_clip must be at least 0, got -1"),
        ({"beta2": 1.0}, "beta2 must be below 1, got 1.0"),
        ({"dtype": "fp8"}, "float32, bfloat16, float16"),
        ({"recompute": "half"}, "unknown recompute"),
        ({"attention": "flash"}, "sdpa, reference"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"seed": 2**31}, "seed must be at most 2147483647, got 2147483648"),
    ],
)
def test_bad_configurations_are_refused_in_one_sentence(changes, words):
    with pytest.raises(ConfigError) as error:
        TrainConfig(**{"global_batch": 4, **changes})
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_sequence_longer_than_the_model_and_a_vocabulary_too_small():
    with pytest.raises(ConfigError, match="max_seq=1024"):
        trainer(seq=1025)
    with pytest.raises(ConfigError, match="vocab is 100"):
        make_trainer(SMALL.replace(vocab=100), load_corpus(), TrainConfig(device="cpu"))


def test_config_is_frozen_and_fills_itself_in():
    config = TrainConfig(steps=100, global_batch=8, lr=1e-3)
    assert (config.micro_batch, config.grad_acc, config.warmup, config.min_lr) == (8, 1, 5, 1e-4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.steps = 3


def test_one_token_and_one_sample():
    corpus = Corpus("two", torch.tensor([1, 2], dtype=torch.uint8))
    config = TrainConfig(steps=1, global_batch=1, seq=1, device="cpu")
    model = Transformer(SMALL)
    result = Trainer(model, TokenBatches(corpus, 1, 1), config).step()
    assert result.tokens == 1
    assert result.loss > 0
