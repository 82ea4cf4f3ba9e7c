"""Memory as frameworks keep it: runs that took place are not refused, and what they allocated is what is predicted."""

import json
from dataclasses import replace

import pytest

from playbook.cli import main
from playbook.errors import ConfigError
from playbook.hardware import load_accelerator
from playbook.layout import Layout
from playbook.planning.calibration import Calibration, load_calibration
from playbook.planning.fusion import KEPT
from playbook.planning.job import Job
from playbook.planning.jobs import problem_of, run_of
from playbook.planning.memory import predict_job
from playbook.shapes import load
from playbook_book.published import MILLION, RATES, TABLES, fsdp

GIB = 2**30
#: Rows of LLM Foundry's table (as those of `published_rates.toml`) on A100 of 40 GB that fill them most, of each model.
ON_40_GB = (
    ("1b", 2048, 32, False, 10, 1, 15555), ("1b", 2048, 128, False, 10, 1, 18647),
    ("350m", 2048, 16, False, 18, 1, 55413), ("350m", 2048, 128, False, 18, 1, 51934),
    ("350m", 32768, 8, False, 1, 4, 13416), ("350m", 512, 8, False, 64, 4, 66284),
    ("3b", 2048, 32, False, 6, 1, 9914), ("3b", 512, 8, False, 20, 8, 11324),
    ("760m", 8192, 8, False, 3, 4, 20106), ("760m", 512, 8, False, 48, 4, 34938),
    ("760m", 2048, 16, False, 12, 1, 29607), ("13b", 8192, 8, True, 1, 16, 1407),
    ("125m", 4096, 8, False, 13, 3, 115162), ("125m", 512, 8, False, 104, 3, 156735),
)  # fmt: skip
#: And rows on GPUs of 80 GB, the fullest of 216, that are not in `published_rates.toml`.
ON_80_GB = (
    ("3b", 8192, 8, False, 3, 6, 16578), ("30b", 1024, 8, True, 6, 21, 2084), ("1b", 2048, 16, False, 20, 1, 46037),
    ("1b", 2048, 32, False, 20, 1, 45130), ("760m", 8192, 8, False, 6, 2, 41825), ("760m", 1024, 8, False, 48, 2, 78581),
)  # fmt: skip
#: Mixtures of experts of SimuMax's summary (as in `published_rates.toml`): four blocks of DeepSeek's, the first dense;
#: all experts take as many tokens. Which model, ep, pp, GiB allocated.
EXPERTS = (("v2", 8, 1, 45.63), ("v2", 4, 2, 44.70), ("v3", 8, 1, 104.30), ("v3", 4, 2, 114.00))

#: GiB reserved of torchtitan's runs, in the order of `published.TORCHTITAN` (Liang et al. 2024, the same tables).
RESERVED = (
    82.4, 77.0, 76.8, 83.9, 84.2, 84.0, 84.5, 67.0, 62.0, 61.8, 71.9, 67.6, 82.5, 72.7, 75.3, 75.9, 77.1, 84.9,
)  # fmt: skip


def ran():
    """Runs that took place, with the calibration of their framework and GPU."""
    forty, eighty = {"base": "a100-40-8", "inter_bandwidth": 25e9}, "h100-8"
    tables = [("fsdp-a100", fsdp("40 GB", ON_40_GB, forty, "bf16"))]
    tables += [("fsdp-h100", fsdp("80 GB", ON_80_GB, eighty, "bf16"))]
    tables += [(name, TABLES[name.replace("-", " ")]()) for name in ("fsdp-a100", "fsdp-h100")]
    tables += [("megatron-h100", TABLES["nemo"]()), ("megatron-b200", TABLES["simumax"]())]
    tables += [("torchtitan-h100", TABLES["torchtitan"]())]
    for name, rows in tables:
        for row in rows:
            yield pytest.param({**row.job, "calibration": name}, id=f"{name}, {row.table}, {row.name}")


@pytest.mark.parametrize("job", list(ran()))
def test_nothing_that_ran_is_refused(job):
    run = run_of(job)
    assert run.needs <= run.cluster.accelerator.memory_bytes


def test_without_what_the_framework_keeps_some_would_be():
    """The 57 of 216 rows of LLM Foundry that the book's own loss would not have left room for, and Nemotron 340B."""
    rows = [row.values[0] for row in ran()]
    plain = [run_of({**row, "calibration": None}) for row in rows]
    refused = [
        row for row, run in zip(rows, plain, strict=True) if run.needs > run.cluster.accelerator.memory_bytes
    ]
    assert len(refused) > 20
    assert {row["calibration"] for row in refused} == {
        "fsdp-a100",
        "fsdp-h100",
        "megatron-h100",
        "torchtitan-h100",
    }


def allocated(job):
    return run_of({**job, "calibration": "megatron-b200"}).memory.peak / GIB


@pytest.mark.parametrize("row", RATES["simumax"], ids=lambda row: "-".join(map(str, row[:6])))
def test_megatron_on_b200_allocates_what_is_predicted(row):
    """To 0.4 %: cuBLAS's workspaces and NCCL's tensors, some 0.1 to 0.5 GiB, are not counted."""
    size, _, tp, pp, cp, seq, measured, _ = row
    layout = f"tp={tp},pp={pp},cp={cp},zero=1" + ",sp" * (tp > 1)
    (one,) = (r for r in TABLES["simumax"]() if r.name == f"{size}, {layout}, {seq}, 4 micro-batches")
    assert allocated(one.job) == pytest.approx(measured, rel=0.004)


@pytest.mark.parametrize(("model", "ep", "pp", "measured"), EXPERTS)
def test_so_it_does_with_experts(model, ep, pp, measured):
    full = load("deepseek-v3")
    sizes = {"layers": 4, "max_seq": 4096, "moe": replace(full.moe, dense_layers=1)}
    if model == "v2":
        experts = {"experts": 160, "top_k": 6, "ffn": 1536, "shared_experts": 2, "groups": 1, "top_groups": 1}
        sizes |= {"hidden": 5120, "vocab": 102_400, "ffn": 12_288, "moe": replace(sizes["moe"], **experts)}
    job = {
        "model": full.replace(**sizes), "cluster": "b200-8", "gpus": 8, "layout": f"pp={pp},ep={ep},zero=1",
        "micro_batch": 1, "global_batch": 32 // pp, "precision": "bf16-mixed-main-grads",
    }  # fmt: skip
    assert allocated(job) == pytest.approx(measured, rel=0.01)


def test_torchtitan_reserves_somewhat_more_than_is_predicted():
    """An allocator reserves no less than tensors need: up to 17 % less than measured, and 2 % more with interleaving."""
    rows = zip(TABLES["torchtitan"](), RESERVED, strict=True)
    for row, measured in rows:
        needs = run_of({**row.job, "calibration": "torchtitan-h100"}).needs / GIB
        assert 0.82 < needs / measured < (1.02 if "interleaved" in row.name else 1.0), row.name


def test_a_million_tokens_on_eight_gpus():
    """In GB or GiB; with logits in memory or checkpoints on the GPU more than twice as many, which do not fit."""
    measured, asked = MILLION
    shape = load("qwen3-8b").replace(rope_scaling="yarn:factor=32,original=32768")
    job = Job(shape, Layout.parse(asked["layout"]), **{key: asked[key] for key in ("seq", "recipe", "fused")})
    for unit in (1e9, GIB):
        assert predict_job(job).peak / unit == pytest.approx(measured, rel=0.08)
    for changes in ({"fused": frozenset()}, {"layout": Layout.parse("cp=8,zero=3,recompute=full")}):
        assert predict_job(replace(job, **changes)).peak > 80 * GIB


def peak(keeps=(), fused=("cross-entropy",), precision="bf16-mixed", **layout):
    shape = load("gpt2").replace(dropout=0.0)
    job = Job(shape, Layout(**layout), seq=1024, recipe=precision, fused=frozenset(fused))
    return predict_job(job.within(frozenset(), frozenset(keeps))).fullest


def test_logits_beside_their_gradient():
    shape = load("gpt2")
    plain, kept = (peak(keeps, micro_batch=16) for keeps in ((), ("logits",)))
    assert kept.total - plain.total == 16 * 1024 * shape.vocab * 2
    assert peak(("logits",), fused=()).total == peak((), fused=()).total  # which keeps none


def test_remainders_are_half_a_master_weight():
    plain, kept = (peak(keeps) for keeps in ((), ("remainders",)))
    assert plain.optimizer - kept.optimizer == 2 * plain.counts.local
    assert peak(("remainders",), precision="fp32").total == peak((), precision="fp32").total


def test_empty_gradients_are_of_each_shape_once():
    """Queries, keys and values are one matrix; GPT-2's two matrices of its MLP are not of one shape."""
    h = load("gpt2").hidden
    plain, kept = (peak(keeps) for keeps in ((), ("dummy-gradients",)))
    assert kept.buffers - plain.buffers == 2 * (3 * h * h + h * h + 2 * 4 * h * h)


def test_the_heads_gathered_input_takes_sequence_parallelism():
    spread = {"tp": 2, "sp": True, "fused": ()}
    plain, kept = (peak(keeps, **spread) for keeps in ((), ("gathered-input",)))
    assert kept.buffers - plain.buffers == 1024 * load("gpt2").hidden * 2
    assert peak(("gathered-input",), tp=2).buffers == peak(tp=2).buffers


def test_every_second_product_is_kept():
    """Of GPT-2's six linear layers the first, third and fifth: queries, values, up. Backward has the block back."""
    h, given = load("gpt2").hidden, {"recompute": "selective", "micro_batch": 2}
    kept, none = peak(("every-second-product",), **given), peak(micro_batch=2)
    each = sum(term.value for term in next(part for part in kept.parts if "blocks" in part.name).terms)
    assert each == 2 * 1024 * (2 * (h + h + h + h + 4 * h) + 4 * load("gpt2").heads)
    assert peak(("every-second-product",), micro_batch=2).total == none.total
    assert kept.total < none.total


def test_an_eager_loss_is_not_fused():
    assert peak(("eager-loss",)).total == peak(fused=()).total > peak().total
    plain, kept = (peak(keeps, fused=(), tp=2, micro_batch=64) for keeps in ((), ("eager-loss",)))
    assert kept.moment.name == plain.moment.name == "backward of the loss"
    assert kept.total - plain.total == 2 * 64 * 1024 * (load("gpt2").vocab + 1) // 2 * 4


def test_whole_gradients_wait_in_pipelines_of_zero_3_alone():
    spread = {"dp": 2, "pp": 2, "zero": 3, "grad_acc": 4, "reshard": False}
    plain, kept = (peak(keeps, **spread) for keeps in ((), ("whole-gradients",)))
    assert kept.buffers - plain.buffers == 4 * plain.counts.local
    alone = {"dp": 2, "zero": 3}
    assert peak(("whole-gradients",), **alone).buffers == peak(**alone).buffers


def test_simulate_search_and_memory_agree_on_what_is_kept(capsys):
    job = {"model": "llama3-8b", "cluster": "b200-8", "gpus": 8, "global_batch": 8, "seq": 4096}
    job |= {"calibration": "megatron-b200"}
    problem = problem_of(job)
    layout = Layout.parse("dp=4,tp=2,sp,zero=1,grad_acc=2")
    needs = problem.run(layout).needs
    assert needs == run_of({**job, "layout": "dp=4,tp=2,sp,zero=1,grad_acc=2"}).needs
    kept = load_calibration("megatron-b200", load_accelerator("b200")).keeps
    assert problem.job.keeps == kept
    flags = [
        "--model",
        "llama3-8b",
        "--layout",
        str(layout),
        "--seq",
        "4096",
        "--calibration",
        "megatron-b200",
    ]
    assert main(["memory", *flags, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["peak"] == needs
    assert main(["memory", *flags, "--explain"]) == 0
    told = capsys.readouterr().out
    assert all(f"megatron-b200 keeps {name}: {KEPT[name]}" in told for name in kept)
    assert "empty gradients for autograd: " in told


def test_unknown_names_are_refused():
    with pytest.raises(ConfigError, match="unknown keeps 'logit'; did you mean logits"):
        Calibration("mine", keeps=["logit"])
    with pytest.raises(ConfigError, match="unknown fused 'norm'; did you mean norms"):
        Calibration("mine", kernels=["norm"])
    with pytest.raises(ConfigError, match="keeps must be a list of names, got 'logits'"):
        Calibration("mine", keeps="logits")
    with pytest.raises(ConfigError, match="fused must be a list of names, got 3"):
        Calibration("mine", kernels=3)
