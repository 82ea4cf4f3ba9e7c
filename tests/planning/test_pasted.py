"""Runs that are pasted from other frameworks: what their texts say is what is planned, and what is left open is said."""

import dataclasses
import json
import shlex

import megatron_reader
import pytest
from planned_runs import LAYOUT, layout_for, run

from playbook.cli import main
from playbook.errors import ConfigError, PlaybookError
from playbook.planning.flags import emit, read
from playbook.planning.memory import predict_job
from playbook.shapes import PRESETS, load

#: Flags of public models as people write them, what Megatron-LM itself takes for the rest, and a preset with these sizes.
MODELS = {
    "gpt3-175b": "--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 "
    "--max-position-embeddings 2048 --tokenizer-type GPT2BPETokenizer --vocab-size 50257",
    "mt-nlg-530b": "--num-layers 105 --hidden-size 20480 --num-attention-heads 128 --seq-length 2048 "
    "--max-position-embeddings 2048 --vocab-size 50257 --tensor-model-parallel-size 8 --pipeline-model-parallel-size 35",
    "llama2-7b": "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 --swiglu "
    "--normalization RMSNorm --disable-bias-linear --position-embedding-type rope --max-position-embeddings 4096 "
    "--untie-embeddings-and-output-weights --vocab-size 32000",
    "llama3-70b": "--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 --swiglu "
    "--group-query-attention --num-query-groups 8 --normalization RMSNorm --disable-bias-linear --rotary-base 500000 "
    "--position-embedding-type rope --untie-embeddings-and-output-weights --vocab-size 128256",
    "qwen2.5-7b": "--num-layers 28 --hidden-size 3584 --ffn-hidden-size 18944 --num-attention-heads 28 --swiglu "
    "--group-query-attention --num-query-groups 4 --normalization RMSNorm --disable-bias-linear --add-qkv-bias "
    "--position-embedding-type rope --untie-embeddings-and-output-weights --vocab-size 151936",
    "qwen3-32b": "--num-layers 64 --hidden-size 5120 --ffn-hidden-size 25600 --num-attention-heads 64 --kv-channels 128 "
    "--swiglu --group-query-attention --num-query-groups 8 --qk-layernorm --normalization RMSNorm --vocab-size 151936 "
    "--disable-bias-linear --position-embedding-type rope --untie-embeddings-and-output-weights",
    "a width by itself": "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --swiglu --vocab-size 50304 "
    "--max-position-embeddings 4096",
    "mixtral-8x7b": "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --swiglu "
    "--group-query-attention --num-query-groups 8 --normalization RMSNorm --disable-bias-linear --rotary-base 1000000 "
    "--position-embedding-type rope --untie-embeddings-and-output-weights --vocab-size 32000 --num-experts 8 "
    "--moe-router-topk 2 --moe-aux-loss-coeff 1e-2 --expert-model-parallel-size 8",
    "deepseek-v2-lite": "--num-layers 27 --hidden-size 2048 --ffn-hidden-size 10944 --num-attention-heads 16 --swiglu "
    "--kv-channels 128 --normalization RMSNorm --disable-bias-linear --position-embedding-type rope --vocab-size 102400 "
    "--multi-latent-attention --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 "
    "--qk-layernorm --untie-embeddings-and-output-weights --num-experts 64 --moe-ffn-hidden-size 1408 "
    "--moe-router-topk 6 --moe-shared-expert-intermediate-size 2816 --moe-layer-freq ([0]+[1]*26)",
    "a layer in two": "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --vocab-size 1000 --num-experts 4 "
    "--max-position-embeddings 512 "
    "--moe-layer-freq 2 --moe-router-topk 1 --make-vocab-size-divisible-by 1",
}
SCRIPT = """#!/bin/bash
#SBATCH --nodes=4
export GPUS_PER_NODE=8   # of a DGX
TP=${TP:-"8"}; PP=2
SEQ='8192'
MODEL_ARGS=(
    --num-layers 80 --hidden_size 8192 --ffn-hidden-size=28672  # --num-layers 4
    --num-attention-heads 64 --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm
    --disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope --rotary-base 500000
    --hidden-dropout 0 --attention-dropout 0.0 --tokenizer-type HuggingFaceTokenizer --tokenizer-model it's/here
)
MORE="--bf16 --use-distributed-optimizer --sequence-parallel --recompute-granularity full"
MORE_ARGS+=("--fp8-format hybrid" "--fp8-recipe tensorwise")
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $SLURM_NNODES pretrain_gpt.py "${MODEL_ARGS[@]}" $MORE \\
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size ${PP} --seq-length $SEQ \\
    --micro-batch-size 1 --global-batch-size $GLOBAL --lr 1e-4 --tp-comm-overlap
"""


def said(pasted):
    """What is left open, but for the names of flags that are not read."""
    return [what for what in pasted.spread()[1] if not what.startswith("not read")]


@pytest.mark.parametrize(
    "name", [n for n, s in PRESETS.items() if not s.recurrent or s.recurrent.rule == "delta"]
)
def test_what_megatron_is_told_is_read_back(name):
    for layout in ("dp=1", layout_for(load(name))):
        planned = run(name, layout, precision="fp8:blockwise")
        pasted = read(emit("megatron", planned))
        job = pasted.job()
        if planned.shape.planned:  # what it has that Megatron-LM has not is gone, and was said
            states = planned.shape.windows if planned.shape.recurrent else ()
            kept = {"windows": states, "norms": "before", "differs": "", "name": "", "max_seq": 1}
            kept |= {"activation": job.shape.activation}
            assert job.shape.replace(name="", max_seq=1) == planned.shape.replace(**kept)
            planned = dataclasses.replace(planned, job=planned.job.on(planned.layout, job.shape))
        assert dataclasses.replace(job, fused="none") == planned.job
        assert job.fused == {"swiglu", "weight-gradients"}  # what it does without being told
        assert said(pasted) == []


@pytest.mark.parametrize(
    ("layout", "options", "precision"),
    [
        (LAYOUT, {}, "bf16"),
        ("dp=8,zero=3,cp=2,recompute=full,grad_acc=3", {"context": "gather"}, "bf16-mixed-main-grads"),
        ("dp=4,pp=4,grad_acc=8,zero=2", {"stage_layers": (26, 18, 18, 18)}, "fp32"),
        ("tp=2,sp,recompute=core_attn+layernorm+mlp", {}, "bf16"),
        ("dp=8,cp=2,zero=1,replicate=4,grad_acc=2", {}, "bf16"),
        ("dp=8,zero=3,replicate=2", {}, "bf16-mixed-main-grads"),
        ("pp=4,grad_acc=8,recompute=full:3", {}, "bf16"),
        ("dp=2,tp=8,sp,pp=2,schedule=interleaved,vpp=4,grad_acc=4,zero=1,micro_batch=2", {}, "fp8:delayed"),
    ],
)
def test_layouts_come_back_from_megatron(layout, options, precision):
    planned = run("llama3-70b", layout, 8192, precision, **options)
    if precision == "fp32":  # its flash attention takes 16 bits
        planned = dataclasses.replace(planned, job=dataclasses.replace(planned.job, attention="reference"))
    assert dataclasses.replace(read(emit("megatron", planned)).job(), fused="none") == planned.job


@pytest.mark.parametrize("layout", ["dp=4,tp=2,sp,ep=2", "dp=4,tp=2,sp,ep=8,etp=1"])
@pytest.mark.parametrize("framework", ["megatron", "torchtitan"])
def test_experts_are_cut_over_tp_or_whole(layout, framework):
    """torchtitan's are whole unless it is told otherwise, Megatron-LM's cut."""
    planned = run("deepseek-v3", f"{layout},zero=3", 4096)
    read_back = read(emit(framework, planned)).job().layout
    assert (read_back.ep, read_back.etp) == (planned.layout.ep, planned.layout.etp)


@pytest.mark.parametrize("name", MODELS)
def test_flags_are_the_model_that_megatron_would_build(name):
    pasted = read(MODELS[name])
    flags = shlex.join(MODELS[name].split())
    args = megatron_reader.read(f"A=(\n{flags}\n)\ntorchrun --nnodes 1 --nproc-per-node 1")
    assert pasted.shape.num_parameters == megatron_reader.parameters(args)
    assert [pasted.shape.is_moe(layer) for layer in range(args.num_layers)].count(True) == sum(
        megatron_reader.layers(args)
    )
    if name in PRESETS:
        padded = pasted.shape.replace(vocab=PRESETS[name].vocab)
        assert padded.num_parameters == PRESETS[name].num_parameters


def test_a_script_with_variables_comments_and_quotes():
    pasted = read(SCRIPT)
    assert pasted.shape == PRESETS["llama3-70b"].replace(vocab=129024, name="")  # padded to 128 * tp
    job = pasted.job()
    assert str(job.layout) == "dp=2,tp=8,pp=2,sp,zero=1,recompute=full"
    assert (job.seq, job.recipe.states.gradients, job.recipe.fp8.name) == (8192, 4, "tensorwise")
    assert said(pasted) == [
        "--global-batch-size $GLOBAL: no number, so that it is left out",
        "the vocabulary, which its tokenizer says: read as 128,256 words",
    ]
    assert pasted.unknown[-1] == "not read: --lr, --tokenizer-model, --tp-comm-overlap"
    assert pasted.gpus == 32  # nodes of the head of the script, GPUs of a variable
    assert predict_job(job).peak > 2**30


def test_what_a_plan_cannot_hold_is_said():
    text = MODELS["llama3-70b"].replace("rope ", "yarn ") + (
        " --nproc-per-node 8 --tensor-model-parallel-size 3 --recompute-granularity selective --recompute-modules mlp "
        "mixer --cp-comm-type a2a+p2p --global-batch-size 7 --micro-batch-size 2 --attention-dropout 0.2"
    )
    assert said(read(text)) == [
        "--cp-comm-type a2a+p2p: read as p2p",
        "--recompute-modules mixer: left out",
        "--position-embedding-type yarn: read as rope",
        "--attention-dropout: read as --hidden-dropout",
        "8 GPUs: no multiple of tp * cp * pp = 3, so that dp is 1",
        "a global batch of 7 samples: no multiple of dp * micro_batch = 2",
    ]


@pytest.mark.parametrize(
    "layout",
    [
        "dp=4,tp=2,sp,pp=2,zero=3,grad_acc=4,micro_batch=2,recompute=full,schedule=1f1b",
        "dp=8,zero=3,cp=2",
        "dp=8,zero=3,replicate=2",
        "dp=2,zero=3,replicate=2,cp=2",
    ],
)
def test_torchtitan_comes_back(layout):
    planned = run("llama3.1-8b", layout, 8192, "autocast", context="gather" if "cp" in layout else "ring")
    pasted = read(emit("torchtitan", planned))
    layout = pasted.job().layout
    assert (pasted.shape, pasted.job().seq, pasted.job().recipe) == (planned.shape, 8192, planned.recipe)
    assert layout.replace(context="ring") == planned.layout.replace(context="ring")
    assert said(pasted) == []


def test_torchtitan_with_its_own_defaults():
    pasted = read(
        '[model]\nname = "llama3"\nflavor = "13B"\n[parallelism]\ndata_parallel_shard_degree = -1\n[training]\n'
    )
    assert pasted.shape is None
    assert pasted.layout["zero"] == 3
    assert said(pasted) == [
        "the model llama3 13B: its sizes are in its Python",
        "activation_checkpoint of chosen operations: read as attention alone",
        "the number of GPUs: the text does not say it, so that dp is 1",
    ]
    with pytest.raises(ConfigError, match="names no model: give one beside it"):
        pasted.job()
    assert pasted.job(load("llama2-7b"), 512).seq == 2048


@pytest.mark.parametrize(
    "layout",
    ["dp=4,tp=2,zero=2,grad_acc=4,micro_batch=3", "dp=8,zero=3", "dp=2", "dp=8,zero=3,replicate=2"],
)
@pytest.mark.parametrize("framework", ["deepspeed", "accelerate"])
def test_layouts_come_back_from_deepspeed_and_accelerate(layout, framework):
    planned = run("llama3-8b", layout, 4096, "fp32" if framework == "accelerate" else "bf16")
    pasted = read(emit(framework, planned))
    job = pasted.job(planned.shape, planned.seq)
    batch = (
        {"replicate": 1} if framework == "deepspeed" else {"grad_acc": 1, "micro_batch": 1}
    )  # which are in a script there
    assert job.layout.replace(context="ring") == planned.layout.replace(**batch)
    if "zero=0" in str(layout) or planned.layout.zero:
        assert job.recipe.states == planned.recipe.states


def test_deepspeed_with_auto_and_offload():
    text = """// of the Trainer
    {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 4,
     "bf16": {"enabled": "auto"}, "fp16": {"enabled": true}, "gradient_clipping": 1.0,
     "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true}}}"""
    pasted = read(text)
    assert pasted.offload
    assert pasted.layout == {"zero": 2, "tp": 1, "micro_batch": 1, "grad_acc": 4}
    assert pasted.precision == "bf16-mixed"
    assert pasted.spread()[1] == [
        "train_micro_batch_size_per_gpu is auto: it is known once the run starts",
        "train_batch_size is auto: it is known once the run starts",
        "the model and the length of samples: they are set in a script",
        "not modelled: zero_optimization.offload_optimizer.pin_memory",
        "not read: gradient_clipping",
        "the number of GPUs: the text does not say it, so that dp is 1",
    ]
    assert read(text.replace('"fp16": {"enabled": true},', "")).precision == "bf16-mixed"  # one is auto
    assert "dp" not in read('{"train_batch_size": 64, "zero_optimization": {"stage": 1}}').spread()[0]


def test_accelerate_of_fsdp_one():
    text = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_sharding_strategy: SHARD_GRAD_OP   # of FSDP 1
  fsdp_activation_checkpointing: true
mixed_precision: 'bf16'
num_machines: 2
num_processes: 16
"""
    pasted = read(text)
    assert pasted.layout["zero"] == 2
    assert (pasted.spread()[0]["dp"], pasted.layout["recompute"], pasted.precision) == (
        16,
        "full",
        "autocast",
    )
    assert pasted.unknown == ["the model, the length of samples and the batch: they are set in a script",
                              "not read: compute_environment"]  # fmt: skip


@pytest.mark.parametrize(
    "layout",
    ["dp=4,tp=2,zero=3", "dp=2,cp=2,zero=3,recompute=full", "dp=8", "dp=1", "dp=8,zero=3,replicate=2"],
)
def test_accelerate_reads_its_configuration(layout, tmp_path, monkeypatch):
    """The judge is Accelerate itself, where it is installed."""
    config_args = pytest.importorskip("accelerate.commands.config.config_args")
    path = tmp_path / "accelerate.yaml"
    path.write_text(emit("accelerate", run("llama3-8b", layout)))
    found, planned = config_args.ClusterConfig.from_yaml_file(path), run("llama3-8b", layout).layout
    assert (found.num_processes, found.num_machines) == (planned.world_size, 1)
    from accelerate.parallelism_config import ParallelismConfig

    sizes = {
        key.removeprefix("parallelism_config_"): value for key, value in found.parallelism_config.items()
    }
    sizes.pop("cp_comm_strategy", None)
    assert ParallelismConfig(**sizes).total_size == (planned.world_size if planned.zero else 1)


@pytest.mark.parametrize(
    ("kind", "zero", "precision"),
    [
        ("FSDP\nfsdp_config:   # of FSDP 1\n  fsdp_sharding_strategy: 3", 0, "autocast"),
        ("FSDP\nfsdp_config:\n  fsdp_sharding_strategy: HYBRID_SHARD_ZERO2", 2, "autocast"),
        ("DEEPSPEED\ndeepspeed_config:\n  gradient_accumulation_steps: 4", 2, "bf16-mixed"),
        ("DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3", 3, "bf16-mixed"),
        ("MEGATRON_LM\nmegatron_lm_config:\n  megatron_lm_use_distributed_optimizer: true", 1, "bf16-mixed"),
    ],
)
def test_kinds_of_accelerate(kind, zero, precision):
    pasted = read(f"distributed_type: {kind}\nmixed_precision: bf16\nnum_processes: 8\n")
    assert (pasted.layout["zero"], pasted.precision, pasted.spread()[0]["dp"]) == (zero, precision, 8)
    assert pasted.layout.get("replicate", 1) == 1


def test_shards_within_a_node_of_accelerate():
    kind = "FSDP\nfsdp_config:\n  fsdp_sharding_strategy: HYBRID_SHARD"
    pasted = read(f"distributed_type: {kind}\nmixed_precision: bf16\nnum_processes: 16\nnum_machines: 2\n")
    assert str(pasted.job(load("llama3-8b"), 512).layout) == "dp=16,zero=3,replicate=2"
    alone = read(f"distributed_type: {kind}\nmixed_precision: bf16\nnum_processes: 3\nnum_machines: 2\n")
    assert "2 groups that have all shards: dp is 3, so that there is one" in said(alone)
    assert str(alone.job(load("llama3-8b"), 512).layout) == "dp=3,zero=3"


SHORT = "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --vocab-size 1024 --max-position-embeddings 512 "


@pytest.mark.parametrize(
    ("text", "fields", "sentence"),
    [
        (SHORT + "\\\n # --old 1 \\\n --tensor-model-parallel-size 8", {"tp": 8}, ""),
        ("if [ $S = big ]; then TP=8; else TP=4; fi\n" + SHORT + "--tensor-model-parallel-size $TP", {"tp": 4},
         "TP is set to 8 and 4: the last is read"),
        (SHORT + "--tensor-model-parallel-size 8\nconvert --tensor-model-parallel-size 2", {"tp": 2},
         "--tensor-model-parallel-size is there with 8 and 2: the last is read"),
        ("N=2; D=4\n" + SHORT + "--micro-batch-size $((N*D))", {"micro_batch": 8}, ""),
        ("local TP=2 PP=4\nARGS=(" + SHORT + "--tensor-model-parallel-size ${TP:=8})", {"tp": 2}, ""),
        ('A="--micro-batch-size 3"\nA="$A --tensor-model-parallel-size 2"\nA+=" --context-parallel-size 2"\n'
         + SHORT + "$A",
         {"micro_batch": 3, "tp": 2, "cp": 2}, ""),
        (SHORT + "--sequence_parallel false --tensor-model-parallel-size 2", {"sp": False}, ""),
        (SHORT + "--recompute-activations", {"recompute": "selective"}, ""),
        (SHORT + "--bf16 --fp8-format hybrid --fp8-recipe $R", {}, "--fp8-recipe $R: read as delayed"),
        (SHORT + "--mtp-num-layers 1 --optimizer-cpu-offload --lr 1", {},
         "not modelled: --mtp-num-layers, --optimizer-cpu-offload"),
    ],
)  # fmt: skip
def test_scripts_as_people_write_them(text, fields, sentence):
    pasted = read(text)
    assert {name: pasted.layout[name] for name in fields} == fields
    assert (
        (sentence in pasted.unknown)
        if sentence
        else not [what for what in pasted.unknown if "the last" in what]
    )


def test_rope_by_its_old_name():
    assert read(SHORT + "--use-rotary-position-embeddings").shape.positions == "rotary"


def test_commands_take_what_a_text_leaves_open(tmp_path, capsys):
    file = tmp_path / "run.sh"
    file.write_text(SHORT + "--global-batch-size 64 --mtp-num-layers 1")
    assert (
        main(["memory", "--from", str(file), "--gpus", "8", "--micro-batch", "2", "--recompute", "full"]) == 0
    )
    out, err = capsys.readouterr()
    assert "on 8 ranks (dp=8,recompute=full,micro_batch=2,grad_acc=4)" in out
    assert "the number of GPUs" not in err
    assert main(["simulate", "--from", str(file), "--gpus", "8", "--no-limit", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["left_open"] == [line.removeprefix("# Megatron-LM: ") for line in err.splitlines()]
    assert json.loads(out)["left_open"]
    assert main(["memory", "--from", str(file), "--precision", "fp32"]) == 2
    assert "precision is given beside --from" in capsys.readouterr().err
    file.write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 3}}')
    assert main(["simulate", "--from", str(file)]) == 2
    assert "this text of DeepSpeed names no model: give one beside it" in capsys.readouterr().err
    assert main(["simulate", "--from", str(file), "--model", "gpt2", "--gpus", "4"]) == 0
    assert "gpt2 on 4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("dp=2,pp=2,grad_acc=2", "no pipeline"),
        ("dp=4,tp=2,sp", "only where tp and cp are 1"),
    ],
)
def test_what_accelerate_refuses(layout, message):
    with pytest.raises(ConfigError, match=message):
        emit("accelerate", run("llama3-8b", layout))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no run that can be read"),
        ("playbook train --model tiny", "no run that can be read"),
        ("[training]\nseq_len = ", "cannot be read"),
        ('{"train_batch_size": 8,', "the DeepSpeed configuration is not valid"),
        ("--num-layers 4 --hidden-size 64 --num-attention-heads 7", "hidden must be a multiple of heads"),
        (MODELS["a layer in two"].replace("-freq 2", "-freq [1]*10**9"), "moe-layer-freq must be"),
        (MODELS["a layer in two"].replace("-freq 2", "-freq nonsense("), "moe-layer-freq must be"),
        (MODELS["a layer in two"].replace("-freq 2", "-freq 0"), "moe-layer-freq must be"),
        (SHORT + "--tensor-model-parallel-size 0", "--tensor-model-parallel-size must be at least 1, got 0"),
        (
            "pretrain_t5.py " + SHORT,
            "trains no decoder of attention alone, which is all that is read: pretrain_t5",
        ),
        ('[{"train_batch_size": 8}]', "must be a table of fields, and is a list"),
        ("[training]\nbatch_size = 2\n", "of torchtitan before 0.2"),
        ("[model]\nconverters = 3\n", "has a value that it cannot have"),
        ("distributed_type: FSDP\nfsdp_config: {a: b}\n", "fsdp_config is {a: b}"),
        ('{"model_type": "llama", "hidden_size": 8}', "a model's config.json, and no run"),
        ('A="$B "' + "\n" + SHORT + "x" * 2**20, "and a run at most"),
        (
            "A=" + "12345678" * 2000 + "\nB=" + "$A" * 300 + "\nC=" + "$B" * 9 + "\n" + SHORT + "$C",
            "once its variables",
        ),
    ],
)
def test_what_cannot_be_read_is_one_sentence(text, message):
    with pytest.raises(PlaybookError, match=message) as error:
        read(text)
    assert "\n" not in str(error.value)


def test_megatron_in_four_bits():
    """Its defaults are one block in bf16 at either end."""
    said = "--fp4-format e2m1 --fp4-recipe nvfp4 --first-last-layers-bf16 --num-layers-at-end-in-bf16 2"
    run = read(SHORT + f"--bf16 {said}")
    assert run.fp8 == "nvfp4,wide=0.25,first=1"
    assert run.job().wide == (1, 2)


@pytest.mark.parametrize(
    ("layout", "way"),
    [("dp=4,tp=2,sp,pp=2,grad_acc=4", "gather"), ("dp=8,zero=1", "owner"), ("dp=2", "gather")],
)
def test_muon_comes_back_from_megatron(layout, way):
    planned = run("llama3-8b", layout, muon=way)
    planned = dataclasses.replace(planned.job, optimizer="muon")
    pasted = read(emit("megatron", dataclasses.replace(run("llama3-8b", layout), job=planned)))
    assert dataclasses.replace(pasted.job(), fused="none") == planned
    owned = "--optimizer dist_muon: whole tensors' states on ranks: read as zero=1, with one owner each"
    assert said(pasted) == [owned] * ("zero" in layout)


def test_muon_of_others():
    flags = SHORT + "--tensor-model-parallel-size 2 --optimizer"
    found = read(f"{flags} muon --muon-num-ns-steps 6")
    assert (found.optimizer, said(found)[:2]) == (
        "muon",
        ["--muon-tp-mode blockwise: read as duplicated, whole matrices", "--muon-num-ns-steps 6: read as 5"],
    )
    assert "--optimizer sgd: read as AdamW" in read(f"{flags} sgd").unknown
    planned = dataclasses.replace(run("llama3-8b", "dp=8,zero=2").job, optimizer="muon")
    pasted = read(emit("deepspeed", dataclasses.replace(run("llama3-8b", "dp=8,zero=2"), job=planned)))
    job = pasted.job(planned.shape, planned.seq)
    assert (job.optimizer, job.layout) == ("muon", planned.layout.replace(muon="gather"))
    assert "Muon keeps moments in CPU memory" in said(pasted)[0]
    lion = '{"train_batch_size": 8, "zero_optimization": {"stage": 1}, "optimizer": {"type": "Lion"}}'
    assert "the optimizer Lion: read as AdamW" in read(lion).unknown


def test_a_text_says_the_optimizer(tmp_path, capsys):
    file = tmp_path / "run.sh"
    file.write_text(SHORT + "--optimizer muon --global-batch-size 8 --nproc-per-node 8")
    sizes = []
    for words in ([], ["--optimizer", "muon"]):
        code = main(["memory", "--from", str(file), "--json", *words])
        out, err = capsys.readouterr()
        sizes.append(json.loads(out)["peak"] if code == 0 else err)
    assert "optimizer is given beside --from" in sizes[1]
    file.write_text(SHORT + "--global-batch-size 8 --nproc-per-node 8")
    assert main(["memory", "--from", str(file), "--json"]) == 0
    assert sizes[0] < json.loads(capsys.readouterr().out)["peak"]  # of a matrix one moment
