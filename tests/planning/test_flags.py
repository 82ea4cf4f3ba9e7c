"""Planned runs in the words of frameworks."""

import json
import shlex
import tomllib
from dataclasses import replace

import megatron_reader
import pytest
from planned_runs import LAYOUT, layout_for, run

from playbook.cli import _parser
from playbook.commands.train import prepared
from playbook.errors import ConfigError
from playbook.planning.flags import FRAMEWORKS, emit
from playbook.planning.recipes import recipe_of_run
from playbook.shapes import PRESETS, load

#: What Megatron-LM can say: it has one rule of states.
SAID = [name for name, shape in PRESETS.items() if not (shape.recurrent and shape.recurrent.rule != "delta")]


@pytest.mark.parametrize("name", SAID)
@pytest.mark.parametrize("spread", [False, True])
def test_megatron_builds_the_model_that_was_planned(name, spread):
    planned = run(name, layout_for(load(name)) if spread else "dp=1", precision="fp8:blockwise")
    text = emit("megatron", planned)
    args, layout, shape = megatron_reader.read(text), planned.layout, planned.shape
    more = 2 * shape.layers * shape.hidden * (shape.norms == "both")  # norms that it has not, as is said
    assert megatron_reader.parameters(args) == shape.num_parameters - more
    assert ("# NOT EXPRESSED: norms=both" in text) == (more > 0)
    assert megatron_reader.layers(args) == [shape.is_moe(layer) for layer in range(shape.layers)]
    assert args.world_size == layout.world_size
    sizes = ("tensor", "pipeline", "context", "expert")
    axes = [getattr(args, f"{axis}{'' if axis == 'context' else '_model'}_parallel_size") for axis in sizes]
    assert axes == [layout.tp, layout.pp, layout.cp, layout.ep]
    assert len(megatron_reader.stages(args)) == layout.stages
    assert (args.bf16, args.fp8_format, args.fp8_recipe) == (True, "e4m3", "blockwise")
    assert args.seq_length == planned.seq <= args.max_position_embeddings or shape.max_seq < planned.seq
    if shape.moe:
        assert args.moe_router_topk == shape.moe.top_k
        assert args.moe_router_score_function == shape.moe.scores
        assert args.moe_router_enable_expert_bias == bool(shape.moe.bias_rate)
    assert args.hidden_dropout == shape.dropout
    assert args.position_embedding_type != "rope" or args.rotary_base == shape.rope_theta
    assert args.use_rope_scaling == ("llama3" in shape.rope_scaling)
    assert not args.use_rope_scaling or f"factor={args.rope_scaling_factor:g}," in shape.rope_scaling


def test_megatron_pads_a_vocabulary_that_tensor_parallel_ranks_cannot_share():
    text = emit("megatron", run("gpt2", "tp=2,sp"))
    assert "# NOT EXPRESSED: vocab=50257: tp=2 pads it to 50258" in text
    assert megatron_reader.parameters(megatron_reader.read(text)) == load("gpt2").num_parameters + 768


def test_packed_documents_are_said_where_they_can_be():
    planned = run("llama3-8b", "dp=8")
    packed = replace(planned, job=replace(planned.job, document=900))
    args = _parser().parse_args(shlex.split(emit("playbook", packed).splitlines()[-1])[1:])
    assert prepared(args)[-1].documents == "packed"
    for framework in ("megatron", "torchtitan", "deepspeed"):
        assert "packed documents: attention goes across them" in emit(framework, packed)


def muon(model, layout, precision="bf16", **options):
    planned = run(model, layout, precision=precision, **options)
    return replace(planned, job=replace(planned.job, optimizer="muon"))


@pytest.mark.parametrize(
    ("model", "layout", "way", "differs"),
    [
        ("gpt2", "dp=4,micro_batch=2", "gather", []),
        ("llama3-8b", "dp=4,tp=2,sp,pp=2,grad_acc=4", "all-to-all", ["muon=all-to-all", "gate and up"]),
        ("mixtral-8x7b", "dp=8,ep=4,zero=1", "owner", ["zero=1: dist_muon", "gate and up", "the router's"]),
        (
            "llama3-8b",
            "dp=8,zero=1,replicate=2",
            "gather",
            ["zero=1: dist_muon", "replicate=2: it", "gate and up"],
        ),
    ],
)
def test_muon_of_megatron(model, layout, way, differs):
    planned = muon(model, layout, **{"muon": way})
    text = emit("megatron", planned)
    args = megatron_reader.read(text)
    assert args.optimizer == ("dist_muon" if "zero" in layout else "muon")
    assert (args.muon_momentum, args.muon_num_ns_steps, args.muon_use_nesterov) == (0.95, 5, True)
    # sqrt(max(rows, columns)), times what makes it AdamW's (arXiv 2502.16982, section 2.2)
    assert (args.muon_scale_mode, args.muon_extra_scale_factor, args.muon_tp_mode) == (
        "spectral",
        0.2,
        "duplicated",
    )
    unsaid = [line for line in text.splitlines() if "NOT EXPRESSED" in line and "vocab" not in line]
    assert len(unsaid) == len(differs) + 1
    for words, line in zip([*differs, "coefficients of its own (quintic)"], unsaid, strict=True):
        assert words in line


def test_muon_of_deepspeed():
    text = emit("deepspeed", muon("llama3-8b", "dp=8,zero=2,grad_acc=2"))
    found = json.loads(text[text.index("\n{") :])
    assert (found["optimizer"]["type"], found["zero_optimization"]["stage"]) == ("Muon", 2)
    assert "NOT EXPRESSED: muon=all-to-all: a rank computes the whole update" in text


@pytest.mark.parametrize(
    ("framework", "what"), [("torchtitan", "beside Adam; 0.3"), ("accelerate", "torch.optim.Muon")]
)
def test_muon_where_there_is_none(framework, what):
    text = emit(framework, muon("llama3-8b", "dp=8,zero=3"))
    assert "# NOT EXPRESSED: optimizer=muon: matrices are updated by AdamW" in text
    assert what in text


@pytest.mark.parametrize(
    ("framework", "layout", "precision", "sentence"),
    [
        (
            "megatron",
            "dp=8,zero=2",
            "bf16",
            "Megatron-LM's Muon goes with zero=0 or 1, and the layout has zero=2",
        ),
        ("megatron", "dp=8", "fp16", "Megatron-LM's Muon goes without fp16"),
        ("deepspeed", "dp=8", "bf16", "DeepSpeed's Muon goes with zero=1 or 2, and the layout has zero=0"),
        (
            "deepspeed",
            "dp=8,zero=3",
            "bf16",
            "DeepSpeed's Muon goes with zero=1 or 2, and the layout has zero=3",
        ),
        ("deepspeed", "dp=8,zero=1", "bf16-mixed-fp32-grads", "zero=1 where gradients have 16 bits"),
    ],
)
def test_muon_that_a_framework_refuses(framework, layout, precision, sentence):
    with pytest.raises(ConfigError, match=sentence):
        emit(framework, muon("llama3-8b", layout, precision))


@pytest.mark.parametrize("ranks", [1, 3, 8, 10, 12, 15, 24])
def test_megatron_starts_as_many_ranks_as_were_planned(ranks):
    """Also where they fill no whole number of nodes: one rank more would be another dp."""
    assert megatron_reader.read(emit("megatron", run("llama3-8b", f"dp={ranks}"))).world_size == ranks


def test_megatron_layout():
    args = megatron_reader.read(emit("megatron", run("llama3-70b", LAYOUT, 8192)))
    assert megatron_reader.stages(args) == [4] * 20
    assert (args.micro_batch_size, args.global_batch_size) == (2, 64)
    assert args.recompute_granularity == "selective"
    assert args.sequence_parallel
    assert args.use_distributed_optimizer
    sharded = megatron_reader.read(
        emit("megatron", run("llama3-8b", "dp=8,zero=3,cp=2,recompute=full", context="gather"))
    )
    assert sharded.data_parallel_sharding_strategy == "optim_grads_params"
    assert (sharded.context_parallel_size, sharded.cp_comm_type) == (2, "allgather")


def test_modules_are_recomputed_where_a_framework_has_them():
    modules = "recompute=layernorm+mla_up_proj+moe_act"
    args = megatron_reader.read(emit("megatron", run("deepseek-v3", f"dp=8,ep=8,zero=1,{modules}")))
    assert (args.recompute_granularity, args.recompute_modules) == (
        "selective",
        ["layernorm", "mla_up_proj", "moe_act"],
    )
    with pytest.raises(ConfigError, match="mla_up_proj only of latent attention"):
        emit("megatron", run("llama3-8b", f"dp=8,{modules}"))
    with pytest.raises(ConfigError, match="nor moe_act with delayed scaling"):
        emit("megatron", run("mixtral-8x7b", "dp=8,recompute=moe_act", 4096, "fp8:delayed"))
    text = emit("torchtitan", run("llama3-8b", "dp=8,zero=3,recompute=mlp"))
    assert 'mode = "none"' in text
    assert "# NOT EXPRESSED: recompute=mlp: it has whole blocks, all of them" in text


def test_stages_that_are_not_alike_are_spelled_out():
    sizes = (14, 16, 16, 15)
    planned = run("deepseek-v3", "dp=8,pp=4,ep=8,grad_acc=8,zero=1", stage_layers=sizes)
    args = megatron_reader.read(emit("megatron", planned))
    assert args.pipeline_model_parallel_layout == "Et*14|t*16|t*16|t*15L"
    assert megatron_reader.stages(args) == list(sizes)
    titan = tomllib.loads(emit("torchtitan", planned))["parallelism"]["module_fqns_per_model_part"]
    assert [sum(name.startswith("layers.") for name in part) for part in titan] == list(sizes)
    assert (titan[0][:2], titan[-1][-2:]) == (["tok_embeddings", "layers.0"], ["norm", "output"])
    assert "--stage-layers 14,16,16,15" in emit("playbook", planned)


@pytest.mark.parametrize(
    ("precision", "flags"),
    [
        ("bf16", "--bf16 --grad-reduce-in-bf16"),
        ("bf16-mixed-main-grads", "--bf16"),
        ("fp8:delayed", "--fp8-format hybrid --fp8-recipe delayed"),
        ("fp8:tensorwise", "--fp8-format hybrid --fp8-recipe tensorwise"),
        ("fp8:mxfp8", "--fp8-format e4m3 --fp8-recipe mxfp8"),
        ("fp8:nvfp4", "--fp4-format e2m1 --fp4-recipe nvfp4"),
        ("fp8:nvfp4", "--num-layers-at-end-in-bf16 5"),
        ("fp8:nvfp4,wide=0.25,first=2", "--num-layers-at-start-in-bf16 2\n  --num-layers-at-end-in-bf16 8"),
        ("fp8:nvfp4,hadamard=off", "# NOT EXPRESSED: hadamard=off: Transformer Engine leaves it out where"),
        ("fp8:mxfp4", "# NOT EXPRESSED: mxfp4: in four bits it has nvfp4"),
        ("fp8:rowwise", "# NOT EXPRESSED: FP8 with a scale per row"),
        ("fp8-lm-o3", "# NOT EXPRESSED: states of the recipe fp8-lm-o3"),
    ],
)
def test_megatron_precision(precision, flags):
    text = emit("megatron", run("llama3-8b", "dp=8", precision=precision))
    assert flags in text
    megatron_reader.read(text)


def test_torchtitan_is_a_file_that_reads():
    found = tomllib.loads(emit("torchtitan", run("llama3-70b", LAYOUT.replace("zero=1", "zero=3"), 8192)))
    assert found["model"] == {"name": "llama3", "flavor": "70B"}
    assert found["parallelism"]["data_parallel_shard_degree"] == 4
    assert found["parallelism"]["pipeline_parallel_schedule"] == "Interleaved1F1B"
    assert found["parallelism"]["pipeline_parallel_layers_per_stage"] * 20 == 80
    assert found["activation_checkpoint"]["mode"] == "selective"
    assert found["training"] == {"seq_len": 8192, "local_batch_size": 16, "global_batch_size": 64}
    plain = tomllib.loads(emit("torchtitan", run("llama3-8b", "dp=8", precision="fp8:rowwise")))
    assert plain["parallelism"]["data_parallel_replicate_degree"] == 8
    assert plain["model"]["converters"] == ["quantize.linear.float8"]
    assert plain["quantize"]["linear"]["float8"]["recipe_name"] == "rowwise"
    hybrid = tomllib.loads(emit("torchtitan", run("llama3-8b", "dp=8,zero=3,replicate=2")))["parallelism"]
    assert (hybrid["data_parallel_replicate_degree"], hybrid["data_parallel_shard_degree"]) == (2, 4)
    unknown = emit("torchtitan", run("llama2-7b", "dp=8,zero=3"))
    assert "# NOT EXPRESSED: the model" in unknown
    assert "hidden=4096" in unknown


def test_numbers_that_are_computed_with_are_those_that_were_planned():
    """torchtitan's defaults are bf16 and a compiler that is off; fp16 is a flag of its own elsewhere."""
    assert "--fp16" in emit("megatron", run("llama3-8b", "dp=8,zero=1", precision="fp16"))
    assert '"fp16": {' in emit("deepspeed", run("llama3-8b", "dp=8,zero=1", precision="fp16"))
    assert "--weights float16 --dtype float16" in emit("playbook", run("llama3-8b", "dp=8", precision="fp16"))
    with pytest.raises(ConfigError, match="torchtitan computes in bfloat16 or float32"):
        emit("torchtitan", run("llama3-8b", "dp=8,zero=3", precision="fp16"))
    wide = tomllib.loads(emit("torchtitan", run("llama3-8b", "dp=8,zero=3", precision="fp32")))
    assert wide["training"]["mixed_precision_param"] == "float32"
    assert wide["parallelism"]["fsdp_reshard_after_forward"] == "always"
    experts = "dp=4,pp=2,ep=4,zero=3,grad_acc=8"
    text = emit("torchtitan", run("mixtral-8x7b", experts, precision="fp8:tensorwise"))
    assert "# NOT EXPRESSED: FP8 of experts: with pp or cp" in text
    assert tomllib.loads(text)["model"]["converters"] == ["quantize.linear.float8"]
    assert tomllib.loads(text)["compile"]["enable"]
    assert "unfused" in emit("megatron", run("llama3-8b", "dp=8", precision="fp32"))
    assert "--attention-backend fused" in emit("megatron", run("deepseek-v3", "dp=8,ep=8"))
    for layout, kept in (("dp=8", "fp32"), ("dp=8,zero=1", "bf16")):  # without ZeRO it refuses bf16
        assert f'"grad_accum_dtype": "{kept}"' in emit("deepspeed", run("llama3-8b", layout))


def test_deepspeed_shards_over_all_ranks():
    text = emit("deepspeed", run("llama3-8b", "dp=8,zero=3,replicate=2"))
    assert "NOT EXPRESSED: replicate=2: it shards over all ranks. With zero=3 MiCS (mics_shard_size=4" in text


def test_deepspeed_is_json_behind_what_it_cannot_say():
    planned = run("llama3-70b", LAYOUT, 8192)
    text = emit("deepspeed", planned)
    comments = [line for line in text.splitlines() if line.startswith("//")]
    assert any("PipelineModule(num_stages=4)" in line for line in comments)
    found = json.loads(text.partition("{")[1] + text.partition("{")[2])
    assert found["train_batch_size"] == 64
    assert found["zero_optimization"]["stage"] == 1
    assert found["tensor_parallel"] == {"autotp_size": 4}
    layout = planned.layout
    assert (
        found["train_micro_batch_size_per_gpu"] * found["gradient_accumulation_steps"] * layout.dp
        == layout.global_batch
    )


@pytest.mark.parametrize("precision", ["bf16", "fp32", "autocast", "fp8:blockwise"])
def test_playbook_reads_its_own(precision):
    own = load({"layers": 8, "hidden": 64, "heads": 4, "vocab": 300})
    for shape in (own, load("llama3-70b")):
        planned = run(shape, "dp=2,pp=4,grad_acc=4,zero=1", 128, precision)
        words = shlex.split(emit("playbook", planned))
        assert words[:2] == ["playbook", "train"]
        found, config = prepared(_parser().parse_args(words[1:]))
        assert found == shape
        assert config.layout == planned.layout
        runs = recipe_of_run(weights=config.weights, dtype=config.dtype, fp8=config.fp8)
        assert (runs.states, runs.fp8) == (planned.recipe.states, planned.recipe.fp8)


@pytest.mark.parametrize(
    ("framework", "model", "layout", "sentence"),
    [
        ("megatron", "llama3-70b", "pp=4,schedule=zb-v,grad_acc=8,vpp=2", "Megatron-LM has no schedule=zb-v"),
        ("megatron", "llama3-70b", "pp=4,schedule=zb-h1,grad_acc=8", "Megatron-LM has no schedule=zb-h1"),
        ("megatron", "llama3-70b", "pp=4,schedule=interleaved,vpp=2,grad_acc=6", "a multiple of pp = 4 in Megatron"),
        ("megatron", "mixtral-8x7b", "dp=2,tp=2,ep=2", "tp=2 only if the layout has sp"),
        ("torchtitan", "llama3-70b", "pp=4,schedule=zb-h2,grad_acc=8", "torchtitan has no schedule=zb-h2"),
        ("torchtitan", "llama3-8b", "dp=2,tp=8,sp", "replicates with zero=0 only where tp and pp are 1"),
        ("torchtitan", "qwen3-8b", "dp=2,pp=4,zero=3,grad_acc=8", "Qwen3 has no pipeline"),
        ("torchtitan", "deepseek-v3", "dp=2,cp=2,zero=3", "FlexAttention, which goes without cp"),
        ("torchtitan", "llama3-70b", "pp=8,schedule=interleaved,vpp=2,grad_acc=21", "a multiple of grad_acc // pp = 2"),
        ("deepspeed", "llama3-70b", "pp=4,dp=2,zero=2,grad_acc=8", "DeepSpeed's pipelines go with zero=0 or 1"),
        ("deepspeed", "llama3-70b", "tp=4,dp=2,zero=3", "tensor parallelism goes with zero=0, 1 or 2"),
        ("megatron", "kimi-linear-48b-a3b", "dp=8,ep=8", "no layers of recurrent.rule=kda: it has delta"),
        ("torchtitan", "qwen3-next-80b-a3b", "dp=8,ep=8", "no model with a state in place of attention"),
        ("jax", "llama3-70b", "dp=2", "one of megatron, torchtitan, deepspeed, accelerate, playbook, got 'jax'"),
    ],
)  # fmt: skip
def test_what_a_framework_refuses(framework, model, layout, sentence):
    with pytest.raises(ConfigError, match=sentence):
        emit(framework, run(model, layout))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", [name for name, shape in PRESETS.items() if not shape.recurrent])
def test_what_is_not_expressed_is_a_comment(framework, name):
    lines = emit(framework, run(name, "dp=8,zero=1")).splitlines()
    assert any(not line.startswith(("#", "//")) for line in lines)
    assert all(line.startswith(("#", "//")) for line in lines if "NOT EXPRESSED" in line)
