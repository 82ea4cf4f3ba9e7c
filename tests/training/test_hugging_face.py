"""Weights for Hugging Face and from there: transformers' logits, and the losses of a run that begins with them."""

from __future__ import annotations

import contextlib
import json
import math
import pickle
import resource
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import DEEPSEEK, GPT, LLAMA, MIXTRAL, tokens
from safetensors.torch import load_file, save_file
from torch import nn

from playbook import launch
from playbook.cli import main
from playbook.errors import CheckpointError
from playbook.instruments.memory_timeline import MemoryTimeline
from playbook.layout import Layout
from playbook.model.hugging_face import WeightMap, config_of, model_of
from playbook.model.moe import routers
from playbook.model.transformer import Transformer
from playbook.parallel.mesh import Mesh
from playbook.shapes import PRESETS, ModelShape, load
from playbook.training import restore
from playbook.training.config import TrainConfig
from playbook.training.convert import from_hugging_face, to_hugging_face
from playbook.training.data import load_corpus
from playbook.training.saving import Checkpoints, Saving, checkpoints
from playbook.training.trainer import Trainer, make_trainer

transformers = pytest.importorskip("transformers")

#: 259 entries: the bytes of a text, and an odd number, which tensor parallelism pads.
SHAPES: dict[str, ModelShape] = {
    "gpt2": GPT.replace(vocab=259, heads=4, dropout=0.1),
    "gpt2, untied": GPT.replace(vocab=259, heads=4, tied=False, ffn=52),
    "llama": LLAMA.replace(vocab=259, heads=4),
    "llama, tied": LLAMA.replace(vocab=259, heads=4, tied=True, head_dim=10),
    "llama, yarn": LLAMA.replace(vocab=259, heads=4, max_seq=64, rope_scaling="yarn:factor=4,original=8,slow=0.5"),
    "llama, llama3": LLAMA.replace(vocab=259, heads=4, max_seq=64, rope_scaling="llama3:factor=8,original=6"),
    "llama, linear": LLAMA.replace(vocab=259, heads=4, rope_scaling="linear:factor=3"),
    "mixtral": MIXTRAL.replace(vocab=259, heads=4, moe={"experts": 4, "top_k": 2, "ffn": 20}),
    "qwen2": LLAMA.replace(vocab=259, qkv_bias=True),
    "qwen3": LLAMA.replace(vocab=259, qk_norm=True, tied=True),
    "qwen3_moe": LLAMA.replace(
        vocab=259, layers=4, qk_norm=True,
        moe={"experts": 8, "top_k": 3, "ffn": 12, "normalized": False, "dense_layers": 1, "every": 2},
    ),
    "deepseek_v3": DEEPSEEK.replace(vocab=259),
}  # fmt: skip


def trainer(shape: ModelShape, layout: str = "", **more: Any) -> Trainer:
    parsed = Layout.parse(layout)
    config = TrainConfig(
        steps=6, global_batch=8, seq=12, lr=1e-2, layout=parsed, device="cpu", **{"seed": 0, **more}
    )
    return make_trainer(shape, load_corpus(), config, Mesh(parsed) if parsed.world_size > 1 else None)


def saved(of: Trainer, folder: Path) -> Path:
    """A checkpoint of a trainer as it is."""
    Checkpoints(Saving(str(folder), 1), of).save()
    return checkpoints(folder)[-1]


@torch.no_grad()
def enlarge(model: Transformer) -> None:
    """Weights with which routers decide, and attention is not even; norms and biases that are not alike."""
    generator = torch.Generator().manual_seed(3)
    for p in model.parameters():
        if p.dim() > 1:
            p.mul_(5)
        else:
            p.add_(torch.randn(p.shape, generator=generator), alpha=0.1)
    for router in routers(model).values():
        if router.sizes.scores == "sigmoid":
            router.bias.copy_(torch.linspace(-0.2, 0.2, len(router.bias)))


def theirs(folder: Path) -> nn.Module:
    """The model as transformers reads it, which finds a place for all tensors and a tensor for all places."""
    model, told = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(told.values()), told
    return model.eval()


@torch.no_grad()
def same_logits(ours: nn.Module, other: nn.Module, shape: ModelShape) -> None:
    x, _ = tokens(shape, 2, 12)
    wanted = other(x).logits
    assert wanted.abs().max() > 0.1
    torch.testing.assert_close(ours.eval()(x), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_those_of_transformers_in_both_directions(name, tmp_path):
    shape = SHAPES[name]
    mine = trainer(shape)
    enlarge(mine.model)
    config = to_hugging_face(saved(mine, tmp_path / "c"), tmp_path / "out")
    assert config["model_type"] == name.partition(",")[0]
    assert load(tmp_path / "out" / "config.json").replace(name="") == shape.replace(
        dropout=shape.dropout if "gpt2" in name else 0.0
    )
    other = theirs(tmp_path / "out")
    same_logits(mine.model, other, shape)

    other.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert (tmp_path / "theirs" / "model.safetensors.index.json").exists()
    path = from_hugging_face(tmp_path / "theirs", tmp_path / "in")
    again = trainer(load(tmp_path / "theirs" / "config.json"), seed=1)
    restore.load(again, path)
    same_logits(again.model, other, shape)
    for key, value in mine.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[key], value), key


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, of in PRESETS.items()
        if not of.planned and not name.startswith(("llama3-tiny", "llama4-"))
    ],
)
def test_published_models_are_written_as_what_they_are(name):
    """Each parameter has its place in a file, and the config is read as the shape that it was made of."""
    shape = PRESETS[name]
    config = config_of(shape)
    weights = WeightMap(shape, config["model_type"])
    biases = sum(math.prod(weights.sizes[ours]) for ours in weights.buffers)
    kept = biases if config["model_type"] == "deepseek_v3" else 0
    assert sum(math.prod(weights.size(theirs)) for theirs in weights.parts) == shape.num_parameters + kept
    again = config_of(model_of(config))
    assert again | {"router_aux_loss_coef": 0} == config | {"router_aux_loss_coef": 0}


# ---- trained on ranks, exported; imported, trained on ranks

EXPORTED = [("llama", "dp=2,tp=2,zero=1"), ("gpt2", "dp=2,tp=2,zero=2"), ("mixtral", "tp=2,dp=2,ep=2,zero=1"),
            ("llama, tied", "pp=2,dp=2,grad_acc=2,zero=3")]  # fmt: skip
BF16 = {"dtype": "bfloat16", "weights": "bfloat16"}
IMPORTED: list[tuple[str, str, dict[str, Any]]] = [
    ("llama", "tp=2,pp=2,grad_acc=4", {}),
    ("gpt2, untied", "tp=2,pp=2,grad_acc=4", {}),
    ("mixtral", "dp=2,ep=2,pp=2,grad_acc=2,zero=1", {}),
    ("llama, tied", "dp=4,zero=3", {}),
    ("qwen3", "dp=2,pp=2,grad_acc=2,zero=3", BF16),
]


def train_and_save(root: Path) -> list[Any]:
    torch.set_num_threads(1)
    with launch.process_group():
        found = []
        for number, (name, layout) in enumerate(EXPORTED):
            mine = trainer(SHAPES[name], layout)
            found.append([mine.step().loss for _ in range(3)])
            saved(mine, root / str(number))
        return found


def test_what_ranks_have_trained_has_the_same_logits_there(ranks, tmp_path):
    ranks(train_and_save, tmp_path, ranks=4)
    for number, (name, _) in enumerate(EXPORTED):
        (path,) = checkpoints(tmp_path / str(number))
        to_hugging_face(path, tmp_path / f"out {number}")
        mine = trainer(SHAPES[name])
        restore.load(mine, path)
        assert mine.step_count == 3
        same_logits(mine.model, theirs(tmp_path / f"out {number}"), SHAPES[name])


def go_on(cases: list[tuple[str, str, dict[str, Any]]], root: Path) -> list[Any]:
    """The losses of a run that begins with imported weights, and the steps that its optimizer has counted before."""
    torch.set_num_threads(1)
    found = []
    for name, layout, more in cases:
        mine = trainer(SHAPES[name].replace(dropout=0.0), layout, **more, seed=1)
        saving = Checkpoints(Saving(str(root / name), 1, resume=True), mine)
        assert saving.resume() == root / name / "step-00000000"
        counts = set(mine.engine.step_counts().values())
        found.append((mine.step_count, counts, [mine.step().loss for _ in range(3)]))
    return found


def go_on_on_ranks(cases: list[tuple[str, str, dict[str, Any]]], root: Path) -> list[Any]:
    with launch.process_group():
        return go_on(cases, root)


def test_a_run_begins_with_weights_from_there_in_any_layout(ranks, tmp_path):
    for name in dict.fromkeys(name for name, _, _ in IMPORTED):
        mine = trainer(SHAPES[name])
        enlarge(mine.model)
        to_hugging_face(saved(mine, tmp_path / f"c {name}"), tmp_path / f"out {name}")
        from_hugging_face(tmp_path / f"out {name}", tmp_path / name)
    alone = go_on([(name, "", more) for name, _, more in IMPORTED], tmp_path)
    values = ranks(go_on_on_ranks, IMPORTED, tmp_path, ranks=4).values
    for (name, _, more), found, wanted in zip(IMPORTED, values[0], alone, strict=True):
        assert found[:2] == wanted[:2] == (0, set()), name  # a new optimizer
        assert found[2] == pytest.approx(wanted[2], rel=2e-2 if more else 1e-5), name
        assert len(set(wanted[2])) == 3


def test_the_first_loss_is_that_of_transformers(tmp_path):
    """An fp32 loss of the first batch; and a run may train otherwise than the config says."""
    shape = SHAPES["mixtral"]
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=259, hidden_size=24, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=40,
        sliding_window=None, initializer_range=0.1, rms_norm_eps=1e-5,
    )  # fmt: skip
    other = transformers.MixtralForCausalLM(config)
    other.save_pretrained(tmp_path / "theirs")
    from_hugging_face(tmp_path / "theirs", tmp_path / "in")
    imported = load(tmp_path / "theirs" / "config.json")
    mine = trainer(imported)
    assert Checkpoints(Saving(str(tmp_path / "in"), 1, resume=True), mine).resume()
    batch = mine.batches.batch(0, 0, 1)
    inputs, targets = (part.flatten(0, -2) for part in batch[:2])
    wanted = nn.functional.cross_entropy(other(inputs).logits.flatten(0, 1), targets.flatten())
    assert mine.step().loss == pytest.approx(wanted.item(), rel=1e-5)

    balanced = imported.replace(
        moe={**vars(imported.moe), "balance_loss": 0.02, "bias_rate": 0.01}, dropout=0.1
    )
    restore.load(trainer(balanced), tmp_path / "in" / "step-00000000")
    with pytest.raises(CheckpointError, match=r"is of a model with moe=.*'top_k': 2.*but this one has moe="):
        restore.load(
            trainer(imported.replace(moe={**vars(imported.moe), "top_k": 1})), tmp_path / "in/step-00000000"
        )
    with pytest.raises(CheckpointError, match="with tied=False, but this one has tied=True"):
        restore.load(trainer(shape.replace(tied=True)), tmp_path / "in" / "step-00000000")


def test_adapters_begin_with_weights_from_there(model, tmp_path):
    """At the loss of the model that they adapt, whose weights stay; B's first step is one of Adam's."""
    from_hugging_face(model, tmp_path / "in")
    shape = load(model / "config.json")
    losses, kept = [], []
    for train in ("full", "lora:3"):
        mine = trainer(shape.replace(train=train))
        restore.load(mine, tmp_path / "in" / "step-00000000")
        before = mine.model.blocks[0].mlp.down.weight.clone()
        losses.append(mine.step().loss)
        kept.append(torch.equal(before, mine.model.blocks[0].mlp.down.weight))
    assert losses[0] == losses[1]
    assert kept == [False, True]
    assert mine.model.blocks[0].mlp.down.lora_B.weight.any()


def test_16_bits_stay_16_bits(tmp_path):
    mine = trainer(SHAPES["llama"], **BF16)
    config = to_hugging_face(saved(mine, tmp_path / "c"), tmp_path / "out")
    assert config["dtype"] == "bfloat16"
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert {t.dtype for t in found.values()} == {torch.bfloat16}
    assert next(theirs(tmp_path / "out").parameters()).dtype == torch.bfloat16
    path = from_hugging_face(tmp_path / "out", tmp_path / "in")
    own = load_file(path / "rank-00000-0.safetensors")
    for name, value in mine.model.state_dict().items():
        assert torch.equal(own[f"parameter/{name}"], value), name
    # of two formats the one that holds both
    found["lm_head.weight"] = found["lm_head.weight"].half()
    save_file(found, tmp_path / "out" / "model.safetensors")
    path = from_hugging_face(tmp_path / "out", tmp_path / "wide")
    assert {t.dtype for t in load_file(path / "rank-00000-0.safetensors").values()} == {torch.float32}


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral"])
def test_one_tensor_is_in_memory_at_a_time(name, tmp_path):
    shape = SHAPES[name].replace(layers=8, vocab=256, hidden=64)
    path = saved(trainer(shape), tmp_path / "c")
    whole = 4 * shape.num_parameters
    with MemoryTimeline(nn.Module()) as timeline:
        to_hugging_face(path, tmp_path / "out")
        timeline.mark("import")
        from_hugging_face(tmp_path / "out", tmp_path / "in")
    sizes = [t.nbytes for t in load_file(tmp_path / "in/step-00000000/rank-00000-0.safetensors").values()]
    assert sum(sizes) >= whole
    peak = timeline.curves().peak
    assert max(sizes) <= peak <= 4 * max(sizes) < whole / 2


# ---- what is refused, in one sentence


@pytest.fixture
def model(tmp_path) -> Path:
    """A small Llama in a folder of Hugging Face's."""
    to_hugging_face(saved(trainer(SHAPES["llama"]), tmp_path / "c"), tmp_path / "model")
    return tmp_path / "model"


def change(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def only_pickle(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    (folder / "model.safetensors").unlink()


def weights(folder: Path, **changes: torch.Tensor | None) -> None:
    path = folder / "model.safetensors"
    found = load_file(path) | {name.replace("__", "."): value for name, value in changes.items()}
    save_file({name: value for name, value in found.items() if value is not None}, path)


def index(folder: Path, content: str) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


FAULTS: dict[str, Any] = {
    r"pytorch_model.bin is a pickle, which can run code and is not read": only_pickle,
    r"has no model.safetensors and no model.safetensors.index.json$": lambda f: (
        f / "model.safetensors"
    ).unlink(),
    r"cannot read the model's file .*config.json": lambda f: (f / "config.json").unlink(),
    r"config.json' is not valid at line 1": lambda f: (f / "config.json").write_text("{"),
    r"config.json' must hold a table": lambda f: (f / "config.json").write_text("[]"),
    r"config.json: model_type must be one of .*, got 'bert'": lambda f: change(f, model_type="bert"),
    r"model_type must be one of llama, .* got 'gpt_neox'": lambda f: change(
        f, model_type="gpt_neox", architectures=["GPTNeoXForCausalLM"]
    ),
    r"rope_type must be one of default, linear, yarn, llama3 for .* got 'dynamic'": lambda f: change(
        f, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    ),
    r"sliding_window must be null or at least max_position_embeddings = 40, got 8": lambda f: change(
        f, model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=8
    ),
    r"activation must be gelu_new, .* got the exact 'gelu'": lambda f: change(f, hidden_act="gelu"),
    r"file .*model.safetensors' cannot be read as safetensors": lambda f: truncate(f / "model.safetensors"),
    r"has no model.norm.weight, which its config.json asks for": lambda f: weights(
        f, model__norm__weight=None
    ),
    r"has extra.weight, which its config.json has no place for": lambda f: weights(
        f, extra__weight=torch.zeros(1)
    ),
    r"has model.norm.weight of \(3,\), but its config.json says \(24,\)": lambda f: weights(
        f, model__norm__weight=torch.zeros(3)
    ),
    r"has model.norm.weight in I64, but it must be one of F64, F32": lambda f: weights(
        f, model__norm__weight=torch.zeros(24, dtype=torch.int64)
    ),
    r"index .* has no weight_map of files": lambda f: index(f, "{}"),
    r"index .* is not valid at line 1": lambda f: index(f, "{"),
    r"names '../a.safetensors', which is not in its folder": lambda f: index(
        f, '{"weight_map": {"a": "../a.safetensors"}}'
    ),
    r"model-00002-of-00002.safetensors' cannot be read as safetensors": lambda f: index(
        f,
        '{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}',
    ),
}


@pytest.mark.parametrize("sentence", FAULTS)
def test_what_cannot_be_imported_is_one_sentence_and_leaves_nothing(sentence, model, tmp_path):
    FAULTS[sentence](model)
    with pytest.raises(CheckpointError, match=sentence) as error:
        from_hugging_face(model, tmp_path / "in")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "in").exists()


OTHERS = {
    "train is lora:3: .* no place for adapters": LLAMA.replace(train="lora:3"),
    "norm must be 'layernorm' .*the nearest is gpt2.*, got 'rmsnorm'": GPT.replace(norm="rmsnorm"),
    "gated must be True .*the nearest is llama.*, got False": LLAMA.replace(gated=False),
    "positions must be 'rotary' .*, got 'none'": LLAMA.replace(positions="none"),
    "bias must be False .*, got True": LLAMA.replace(bias=True),
    "moe.capacity must be None .*the nearest is mixtral.*, got 1.0": MIXTRAL.replace(
        moe={"experts": 4, "top_k": 2, "ffn": 20, "capacity": 1.0}
    ),
    "moe.bias_rate must be 0.0 .*, got 0.1": MIXTRAL.replace(
        moe={"experts": 4, "top_k": 2, "ffn": 20, "bias_rate": 0.1}
    ),
    "moe.shared_experts must be 0 .*, got 1": MIXTRAL.replace(
        moe={"experts": 4, "top_k": 2, "ffn": 20, "shared_experts": 1}
    ),
    "mla must be None .*, got 'a table'": DEEPSEEK.replace(moe=None),
    "moe.top_k must be 4 .*the nearest is deepseek_v3.*, got 6": DEEPSEEK.replace(
        moe={**vars(DEEPSEEK.moe), "top_k": 6}
    ),
}


@pytest.mark.parametrize("sentence", OTHERS)
def test_a_model_that_is_none_of_theirs_is_refused_by_its_field(sentence, tmp_path):
    path = saved(trainer(OTHERS[sentence].replace(vocab=259)), tmp_path / "c")
    with pytest.raises(CheckpointError, match=f"is of a model that cannot be exported: {sentence}"):
        to_hugging_face(path, tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


def test_a_bare_model_with_masks_in_its_file_is_read(tmp_path):
    """As the file of openai-community/gpt2: names without ``transformer.``, and each block's mask."""
    mine = trainer(SHAPES["gpt2"])
    to_hugging_face(saved(mine, tmp_path / "c"), tmp_path / "out")
    file = tmp_path / "out" / "model.safetensors"
    found = {name.removeprefix("transformer."): value for name, value in load_file(file).items()}
    save_file(found | {"h.0.attn.bias": torch.ones(1, 1, 4, 4)}, file)
    own = load_file(from_hugging_face(tmp_path / "out", tmp_path / "in") / "rank-00000-0.safetensors")
    for name, p in mine.model.named_parameters():
        assert torch.equal(own[f"parameter/{name}"], p), name


def test_nothing_is_overwritten(model, tmp_path):
    path = checkpoints(tmp_path / "c")[-1]
    before = {file: file.read_bytes() for file in model.iterdir()}
    with pytest.raises(CheckpointError, match=r"out is .* which exists: give a new folder"):
        to_hugging_face(path, model)
    with pytest.raises(CheckpointError, match="which has checkpoints up to step 0: give another folder"):
        from_hugging_face(model, tmp_path / "c")
    with pytest.raises(CheckpointError, match="which is a file: give a folder"):
        from_hugging_face(model, model / "config.json")
    assert {file: file.read_bytes() for file in model.iterdir()} == before
    (path / "rank-00000-0.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"is not whole: rank-00000-0.safetensors is missing"):
        to_hugging_face(path, tmp_path / "new")


@contextlib.contextmanager
def file_limit(size: int):
    """No file of this process may grow beyond so many bytes: a disk that is full."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_disk_that_fills_is_one_sentence_and_leaves_nothing(model, tmp_path):
    path = checkpoints(tmp_path / "c")[-1]
    with file_limit(30_000), pytest.raises(CheckpointError, match=r"cannot be written to \(File too large\)"):
        to_hugging_face(path, tmp_path / "new" / "out")
    with file_limit(30_000), pytest.raises(CheckpointError, match=r"cannot be written to \(File too large\)"):
        from_hugging_face(model, tmp_path / "in")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["c", "model"]


# ---- the command line


def test_the_command_converts_and_a_run_begins_with_what_it_made(tmp_path, capsys):
    flags = ["--seq", "12", "--global-batch", "2", "--device", "cpu", "--quiet", "--steps", "2", "--json"]
    folder, made, taken = (str(tmp_path / name) for name in ("c", "model", "in"))
    sizes = json.dumps(SHAPES["llama"].sizes())
    log = ["--log", str(tmp_path / "log.jsonl")]
    assert main(["train", "--model", sizes, "--checkpoint", folder, *flags, *log]) == 0
    assert main(["checkpoint", "convert", folder, made, "--to", "hugging-face"]) == 0
    assert "as LlamaForCausalLM in float32" in capsys.readouterr().err
    theirs(Path(made))
    assert main(["checkpoint", "convert", made, taken, "--to", "playbook"]) == 0
    assert "--resume`, in any layout" in capsys.readouterr().err
    assert main(["checkpoint", "verify", taken]) == 0
    assert main(["checkpoint", "show", taken]) == 0
    assert "step 0 of model, weights alone, from a llama of Hugging Face" in capsys.readouterr().out
    shutil.rmtree(made + "/model.safetensors", ignore_errors=True)
    log = ["--log", str(tmp_path / "second.jsonl")]
    config = f"{made}/config.json"
    assert main(["train", "--model", config, "--checkpoint", taken, "--resume", *flags, *log]) == 0
    done = capsys.readouterr()
    assert "resumes after step 0" in done.err
    assert json.loads(done.out)["first_step"] == 0
    assert [path.name for path in checkpoints(Path(taken))] == ["step-00000000", "step-00000002"]


def test_the_command_says_what_is_wrong_in_one_line(tmp_path, capsys):
    for args, sentence in (
        (
            [str(tmp_path / "none"), str(tmp_path / "out"), "--to", "playbook"],
            "must be a folder with a config",
        ),
        ([str(tmp_path), str(tmp_path / "out"), "--to", "hugging-face"], "has no checkpoints"),
        ([str(tmp_path), str(tmp_path / "out"), "--to", "playbook"], "cannot read the model's file"),
    ):
        assert main(["checkpoint", "convert", *args]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert sentence in line
