"""The calculator's function: the same numbers as the command line, refusals beside the right control, working advice."""

import contextlib
import io
import json
import shlex
from dataclasses import replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from playbook_widgets.compute.calculator import CATEGORIES, DEFAULTS, compute
from playbook_widgets.compute.sizes import MOE_CONTROLS, SHAPE_CONTROLS
from published_configs import PUBLISHED

from playbook.cli import main
from playbook.hardware import ACCELERATORS, default_reserve
from playbook.layout import RECOMPUTE, SCHEDULES, Layout
from playbook.planning.memory import predict
from playbook.planning.recipes import RECIPES
from playbook.precision.recipes import FP8_RECIPES
from playbook.shapes import BALANCE_OVER, PRESETS, MoE, load


def one(advice=False, **config):
    return compute({"configs": [config], "advice": advice})["results"][0]


def run_command(line):
    """The JSON that a ``playbook …`` line prints, or None and its sentence where it is refused."""
    program, *arguments = shlex.split(line)
    assert program == "playbook"
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([*arguments, "--json"])
    assert status == 0, err.getvalue()
    return json.loads(out.getvalue())


SIZES = st.sampled_from([1, 1, 2, 4, 8])
MODELS = [
    "tiny", "gpt2", "llama3-8b", "llama3.1-405b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "llama4-maverick",
]  # fmt: skip
#: Settings that mostly go together; a fifth of them or so are refused.
CONFIGS = st.fixed_dictionaries(
    {"model": st.sampled_from(MODELS), "seq": st.sampled_from([64, 512, 4096])},
    optional={
        "layers": st.integers(8, 100), "heads": st.sampled_from([8, 16, 32]), "kv_heads": SIZES,
        "ffn": st.sampled_from([512, 4096]), "vocab": st.integers(2, 200_000), "gated": st.booleans(),
        "tied": st.booleans(), "activation": st.sampled_from(["gelu", "relu", "silu"]),
        "dropout": st.sampled_from([0.0, 0.1]), "moe.experts": st.sampled_from([0, 8, 16]),
        "moe.top_k": st.integers(1, 3), "moe.shared_experts": st.integers(0, 2), "moe.dense_layers": st.integers(0, 3),
        "moe.every": st.integers(1, 4), "moe.normalized": st.booleans(),
        "moe.scores": st.sampled_from(["softmax", "sigmoid"]), "moe.balance_loss": st.sampled_from([0, 0.01]),
        "moe.balance_over": st.sampled_from(BALANCE_OVER), "moe.z_loss": st.sampled_from([0, 0.001]),
        "dp": SIZES, "tp": SIZES, "pp": SIZES, "cp": SIZES, "zero": st.integers(0, 3),
        "recompute": st.sampled_from(RECOMPUTE), "schedule": st.sampled_from(SCHEDULES),
        "micro_batch": st.integers(1, 8), "grad_acc": st.sampled_from([8, 16]),
        "precision": st.sampled_from(sorted(RECIPES)), "optimizer_bytes": st.integers(0, 20),
        "attention": st.sampled_from(["sdpa", "reference"]), "train": st.sampled_from(["full", "full", "lora:16"]),
        "fused": st.sampled_from(["none", "all", "cross-entropy,swiglu,weight-gradients"]),
        "offload": st.booleans(), "bucket_mb": st.integers(1, 100), "accelerator": st.sampled_from(sorted(ACCELERATORS)),
        "memory": st.sampled_from(["96GB", "89 GiB", "20GB"]), "reserve": st.sampled_from(["0GB", "4GiB", "30GB"]),
        "unit": st.sampled_from(["GB", "GiB"]), "fp8": st.sampled_from(["", *FP8_RECIPES]),
    },
)  # fmt: skip
#: Settings with which a layout is often impossible.
DARING = st.fixed_dictionaries(
    {},
    optional={"ep": SIZES, "vpp": st.integers(1, 3), "sp": st.booleans(), "gpus": st.sampled_from([8, 24, 64]),
              "hidden": st.sampled_from([96, 1024]), "seq": st.integers(1, 5000)},
)  # fmt: skip
ANY = st.builds(lambda config, more: {**config, **more}, CONFIGS, DARING)


@given(CONFIGS | ANY)
@settings(max_examples=60, deadline=None)
def test_every_result_is_what_the_command_line_says(config):
    result = one(**config)
    event("refused" if "error" in result else "predicted")
    if "error" in result:
        assert result["error"]["field"] in {*DEFAULTS, *SHAPE_CONTROLS, *MOE_CONTROLS}, result["error"]
        assert "\n" not in result["error"]["message"]
        return
    printed = run_command(result["command"])
    assert printed["peak"] == result["peak"]
    assert printed["verdict"] == result["verdict"]
    assert printed["fits"] is (result["peak"] <= printed["capacity"])
    if "reserve" in config:
        assert printed["capacity"] == result["usable"]
    for stage, said in zip(result["stages"], printed["stages"], strict=True):
        assert {key: stage[key] for key in said} == said


@given(CONFIGS | ANY)
@settings(max_examples=40, deadline=None)
def test_bars_and_breakdowns_add_up(config):
    result = one(**config)
    if "error" in result:
        return
    for stage in result["stages"]:
        assert sum(stage["at_peak"].values()) == stage["total"] <= result["peak"]
        parts = stage["breakdown"]
        assert sum(value for *_, value in parts["parameters"]) == stage["local"]
        for category in ("activations", "buffers"):
            assert sum(value for *_, value in parts[category]) == stage[category]
        assert sum(value for *_, value in parts["working"]) == stage["at_peak"]["working"]
        for name, key, times, value in [row for rows in parts.values() for row in rows]:
            assert round(times * sum(bytes_ for *_, bytes_ in result["terms"][key])) == value, name
    curve = result["curve"]
    now = curve["seq"].index(result["values"]["seq"])
    assert curve["peak"][now] == result["peak"]
    assert [sum(at) for at in zip(*(curve[t] for t in CATEGORIES), strict=True)] == curve["peak"]


def test_what_is_set_overrides_the_preset_and_the_rest_follows_it():
    result = one(model="llama3-8b", hidden=8192, heads=64)
    values = result["values"]
    assert (values["layers"], values["head_dim"], values["ffn"]) == (32, 128, 14336)
    assert "--model '{" in result["command"]
    assert one(model="gpt2")["values"]["seq"] == 1024  # no longer than it has positions
    assert "--model gpt2 " in one(model="gpt2")["command"]


def test_a_number_of_gpus_says_how_many_replicas():
    result = one(gpus=64, tp=8, pp=2, grad_acc=4)
    assert result["values"]["dp"] == 4
    assert result["ranks"] == 64
    refused = one(gpus=24, tp=16, heads=32)["error"]
    assert refused["field"] == "gpus"
    assert "multiple of tp * cp * pp = 16, got 24" in refused["message"]


def test_experts_can_be_put_in_and_taken_out():
    sparse = one(model="llama3-8b", **{"moe.experts": 8, "moe.top_k": 2})
    assert sparse["parameters"] > 5 * sparse["active"] / 2
    assert (
        one(model="mixtral-8x7b", **{"moe.experts": 0})["parameters"]
        == one(model="mixtral-8x7b", **{"moe.experts": 0})["active"]
    )


def changes_something(**experts):
    """Whether sizes of experts change the parameters of DeepSeek-V3, or what any of its stages holds."""
    shape = load("deepseek-v3").replace(name="")
    other = shape.replace(moe=replace(shape.moe, **experts))
    say = [(s.num_parameters, predict(s, Layout(micro_batch=2), seq=512).to_json()) for s in (shape, other)]
    return say[0] != say[1]


def test_every_size_of_experts_that_changes_memory_is_a_control():
    others = {
        "experts": 128, "top_k": 4, "ffn": 1024, "shared_experts": 2, "dense_layers": 1, "every": 2, "scores": "softmax",
        "normalized": False, "scale": 1.0, "groups": 1, "top_groups": 8, "capacity": 2.0, "balance_loss": 0.0,
        "balance_over": "micro_batch", "z_loss": 0.1, "bias_rate": 0.0,
    }  # fmt: skip
    assert set(others) == set(MoE.__dataclass_fields__)
    for field, value in others.items():
        with_it = {"top_groups": 1} if field == "groups" else {}
        assert changes_something(**with_it, **{field: value}) == (f"moe.{field}" in MOE_CONTROLS), field


def test_experts_in_every_second_block():
    both, second = one(model="llama4-maverick", **{"moe.every": 1}), one(model="llama4-maverick")
    assert "--model llama4-maverick " in second["command"]
    shape = load("llama4-maverick")
    block = shape.block_parameters(shape.kind(1)), shape.block_parameters(shape.kind(0))
    assert both["parameters"] - second["parameters"] == 24 * (sum(block[0].values()) - sum(block[1].values()))
    assert both["stages"][0]["breakdown"]["parameters"][1][0] == "48 blocks with experts"


def test_a_model_in_json_may_have_a_name_of_its_own():
    for name in ("mine", "gpt2"):
        result = one(model=json.dumps({**load("llama3-8b").sizes(), "layers": 2, "name": name}))
        assert run_command(result["command"])["peak"] == result["peak"] < one()["peak"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_pasted_config_json_is_its_fields(name):
    text = json.dumps(PUBLISHED[name], indent=2)
    result = one(model=text)
    own = result["own"]
    assert own["pasted"] == text
    assert own["sizes"] == {key: result["values"][key] for key in own["sizes"]}
    again = one(model=own["fields"])
    assert again["own"]["fields"] == own["fields"]
    assert (again["peak"], again["parameters"]) == (result["peak"], result["parameters"])
    assert len(own["fields"]) < 600
    assert run_command(result["command"])["peak"] == result["peak"]


def test_a_preset_is_called_by_its_name_in_any_case():
    for name in PRESETS:
        assert one(model=name.upper())["own"] is None


def test_a_gpu_of_ones_own():
    result = one(memory="96GB", reserve="4GiB")
    assert (result["memory"], result["usable"]) == (96 * 10**9, 96 * 10**9 - 4 * 2**30)
    assert "--memory 96GB --reserve 4GiB" in result["command"]
    assert "--accelerator" not in result["command"]
    assert one(accelerator="H200", reserve="4GB")["memory"] == ACCELERATORS["h200"].memory_bytes
    assert one(unit="GiB")["values"]["memory"] == "79.65GiB"
    tight = one(advice=True, memory="60GB", gpus=8, tp=2)
    assert tight["advice"]
    assert all(advice["peak"] <= 0.96 * 60e9 for advice in tight["advice"])
    assert "--reserve" not in tight["command"]


def test_some_of_a_gpu_stays_free_unless_all_of_it_may_be_filled():
    plain = one(gpus=8, tp=2, sp=True, zero=1, seq=4096)
    assert plain["reserve"] == default_reserve(plain["memory"]) == plain["memory"] - plain["usable"]
    assert (plain["verdict"], plain["values"]["reserve"]) == ("fits", "3.421GB")
    almost = f"{plain['peak'] / 0.98 / 1e9:.3f}GB"
    tight, filled = (
        one(gpus=8, tp=2, sp=True, zero=1, seq=4096, memory=almost, advice=True, **more)
        for more in ({}, {"reserve": 0})
    )
    assert (tight["verdict"], filled["verdict"]) == ("tight", "fits")
    assert tight["spare"] == filled["spare"] == tight["memory"] - plain["peak"] > 0
    assert filled["command"].endswith(f"--memory {almost} --reserve 0")
    assert tight["advice"]
    assert all(advice["spare"] >= tight["reserve"] for advice in tight["advice"])
    assert filled["advice"] == []


def test_results_repeat_what_they_are_of():
    for configs in ([{"model": "gpt2"}], [{"tp": 2}, {"tp": 3}]):
        assert compute({"configs": configs})["asked"] == configs


def test_latent_attention_says_its_sizes():
    assert (
        "q_rank 1536, kv_rank 512, nope_dim 128, rope_dim 64" in one(model="deepseek-v3")["values"]["latent"]
    )
    assert one()["values"]["latent"] == ""


def test_another_optimizer():
    adam, sgd = one(), one(optimizer_bytes=4)
    assert adam["stages"][0]["optimizer"] == 12 * adam["parameters"]
    assert sgd["stages"][0]["optimizer"] == 4 * sgd["parameters"]
    assert one(optimizer_bytes=-1)["error"]["field"] == "optimizer_bytes"


@pytest.mark.parametrize(
    ("config", "field", "words"),
    [
        ({"layers": "many"}, "layers", "must be an integer, got 'many'"),
        ({"hidden": 0}, "hidden", "at least 1"),
        ({"heads": 7}, "hidden", "multiple of heads = 7"),
        ({"tp": 3}, "tp", "must divide heads = 32"),
        ({"tp": ""}, "tp", "must be an integer"),
        ({"tp": 1.5}, "tp", "must be an integer"),
        ({"zero": 4}, "zero", "0, 1, 2 or 3"),
        ({"pp": 64}, "pp", "layers = 32"),
        ({"vpp": 2}, "vpp", "pp = 1"),
        ({"sp": True}, "sp", "tp above 1"),
        ({"ep": 2}, "ep", "must divide dp * cp"),
        ({"cp": 3}, "cp", "must divide seq"),
        ({"seq": 0}, "seq", "at least 1"),
        ({"model": "gpt2", "seq": 2048}, "seq", "1024 learned positions"),
        ({"pp": 4, "schedule": "zb-h2", "grad_acc": 6}, "grad_acc", "at least 7"),
        ({"model": "nobody"}, "model", "unknown model"),
        ({"precision": "fp7"}, "precision", "unknown precision"),
        ({"accelerator": "abacus"}, "accelerator", "unknown accelerator"),
        ({"memory": "96"}, "memory", "a number with its unit, such as 96GB or 89GiB, got '96'"),
        ({"memory": "0GB"}, "memory", "at least 1"),
        ({"reserve": "90GB"}, "reserve", "below memory = 85.52 GB"),
        ({"unit": "MB"}, "unit", "unknown unit 'MB'"),
        ({"fp8": "narrow"}, "fp8", "unknown FP8 recipe 'narrow'"),
        ({"model": '{"model_type":"llama"}'}, "model", "num_hidden_layers is missing"),
        ({"model": '{"layers": 4,'}, "model", "not valid at line 1 column"),
        ({"model": '"model_type": "llama",' * 20}, "model", "all of a config.json with its outer braces"),
        ({"schedule": "later"}, "schedule", "must be one of"),
        ({"offload": "yes"}, "offload", "true or false"),
        ({"bucket_mb": 0}, "bucket_mb", "at least 1"),
        ({"moe.experts": 4, "moe.top_k": 5}, "moe.top_k", "at most moe.experts = 4"),
        ({"model": "deepseek-v3", "moe.top_k": 300}, "moe.top_k", "at most moe.experts = 256, got 300"),
        ({"model": "deepseek-v3", "moe.dense_layers": 62}, "moe.dense_layers", "at most layers = 61, got 62"),
        ({"model": "mixtral-8x7b", "moe.every": 0}, "moe.every", "at least 1"),
        ({"model": "mixtral-8x7b", "moe.experts": 1.5}, "moe.experts", "must be an integer"),
        ({"model": "mixtral-8x7b", "moe.normalized": 1}, "moe.normalized", "true or false"),
        ({"model": "mixtral-8x7b", "moe.scores": "tanh"}, "moe.scores", "must be one of softmax, sigmoid"),
        ({"model": "mixtral-8x7b", "moe.z_loss": -1}, "moe.z_loss", "at least 0"),
        ({"model": "mixtral-8x7b", "dp": 3, "ep": 3}, "ep", "ep must divide moe.experts = 8"),
        ({"model": "mixtral-8x7b", "dp": 2, "cp": 2, "ep": 8}, "ep", "must divide dp * cp = 4"),
        ({"dp": 2, "ep": 2}, "ep", "must be 1 for a model without experts, got 2"),
        ({"dropout": "x"}, "dropout", "must be a number"),
        ({"layers": 10**30}, "layers", "at most"),
    ],
)
def test_a_refusal_names_the_control_to_change(config, field, words):
    error = one(**config)["error"]
    assert error["field"] == field
    assert words in error["message"]


def test_a_setting_that_does_not_exist_is_said():
    assert "colour is not a setting" in one(colour="red")["error"]["message"]


def test_advice_applied_to_the_controls_gives_what_it_promises():
    for config in (
        {},
        {"model": "llama3-70b", "gpus": 16, "tp": 8},
        {"model": "llama3.1-405b", "pp": 8, "tp": 8, "grad_acc": 16},
        {"model": "mixtral-8x7b", "gpus": 8, "recompute": "full", "zero": 1},
    ):
        result = one(advice=True, **config)
        assert result["verdict"] == "does not fit"
        assert result["advice"]
        for advice in result["advice"]:
            changed = one(**{**config, **advice["set"]})
            assert changed["verdict"] == "fits"
            assert changed["peak"] == advice["peak"]
