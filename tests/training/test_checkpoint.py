"""Checkpoints: saved by one layout, loaded by another, and the run goes on as if nothing had happened."""

from __future__ import annotations

import functools
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from playbook import launch
from playbook.errors import CheckpointError
from playbook.layout import Layout
from playbook.parallel.mesh import Mesh
from playbook.shapes import ModelShape, MoE
from playbook.training import checkpoint, restore
from playbook.training.config import TrainConfig
from playbook.training.data import load_corpus
from playbook.training.saving import Checkpoints, Saving, checkpoints
from playbook.training.trainer import Trainer, make_trainer

BASE: dict[str, Any] = {
    "layers": 2, "hidden": 24, "heads": 4, "kv_heads": 2, "ffn": 44, "gated": True, "norm": "rmsnorm", "bias": False,
    "positions": "rotary", "vocab": 259, "max_seq": 16, "tied": False,
}  # fmt: skip
BEFORE, AFTER = 1, 2
#: By name: the shape, and what else the configuration has.
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dense": (BASE, {}),
    "deep": ({**BASE, "layers": 4}, {}),
    "tied": ({**BASE, "tied": True}, {}),
    "experts": ({**BASE, "moe": MoE(4, 2, 20, dense_layers=1, bias_rate=0.01)}, {}),
    "masters": (BASE, {"dtype": "bfloat16", "weights": "bfloat16"}),
    "scaled": (BASE, {"dtype": "float16", "initial_loss_scale": 2.0**12, "loss_scale_window": 2}),
    "fp8": (BASE, {"fp8": "delayed"}),
    "fp4": ({**BASE, "hidden": 64, "ffn": 48}, {"fp8": "nvfp4"}),  # whose noise is another one in each step
    "narrow": (BASE, {"moments": "fp8"}),
    "muon": (BASE, {"optimizer": "muon"}),
}
#: What saves and what loads, by the number of ranks: every axis and every stage of ZeRO on both sides.
SAVES = {
    1: [
        ("dense", ""), ("experts", ""), ("fp8", ""), ("fp4", ""), ("masters", ""), ("scaled", ""), ("narrow", ""),
        ("muon", ""),
    ],
    2: [
        ("dense", "dp=2,zero=3"), ("tied", "pp=2,grad_acc=2"), ("experts", "dp=2,ep=2,zero=1"),
        ("masters", "dp=2,zero=1"), ("fp8", "pp=2,grad_acc=2"), ("muon", "dp=2,zero=1"),
    ],
    4: [
        ("dense", "dp=2,tp=2,zero=1"), ("dense", "tp=2,sp,pp=2,grad_acc=2"), ("tied", "cp=2,dp=2,zero=2"),
        ("experts", "pp=2,dp=2,ep=2,grad_acc=2,zero=2"), ("experts", "tp=2,dp=2,ep=2"),
        ("deep", "dp=2,pp=2,vpp=2,schedule=interleaved,grad_acc=2,zero=3"),
    ],
}  # fmt: skip
LOADS = {
    1: [
        ("dense", "dp=2,zero=3"), ("tied", "pp=2,grad_acc=2"), ("experts", "tp=2,dp=2,ep=2"), ("masters", "dp=2,zero=1"),
        ("fp8", "pp=2,grad_acc=2"), ("muon", "dp=2,zero=1"),
    ],
    2: [
        ("dense", "tp=2,sp,pp=2,grad_acc=2", "dp=2,zero=2"), ("dense", "", "cp=2,zero=1"),
        ("tied", "cp=2,dp=2,zero=2", "tp=2"), ("experts", "pp=2,dp=2,ep=2,grad_acc=2,zero=2", "dp=2,ep=2"),
        ("masters", "", "dp=2,zero=3"), ("experts", "", "pp=2,grad_acc=2"),
        ("muon", "", "pp=2,grad_acc=2"),
    ],
    4: [
        ("dense", "dp=2,zero=3", "tp=2,pp=2,grad_acc=2"), ("dense", "dp=2,tp=2,zero=1", "dp=4,zero=3"),
        ("experts", "dp=2,ep=2,zero=1", "tp=2,dp=2,ep=2,zero=3"), ("tied", "pp=2,grad_acc=2", "dp=2,cp=2,zero=1"),
        ("deep", "dp=2,pp=2,vpp=2,schedule=interleaved,grad_acc=2,zero=3", "tp=4"),
        ("experts", "tp=2,dp=2,ep=2", "dp=4,ep=4,zero=2"), ("muon", "dp=2,zero=1", "dp=2,tp=2,sp,zero=3"),
    ],
}  # fmt: skip


def trainer(model: str, layout: str, steps: int = BEFORE + AFTER, **options: Any) -> Trainer:
    shape, more = MODELS[model]
    parsed = Layout.parse(layout).replace(**options)
    config = TrainConfig(
        steps=steps,
        global_batch=8,
        seq=12,
        lr=1e-2,
        layout=parsed,
        device="cpu",
        **more,
    )
    mesh = Mesh(parsed) if parsed.world_size > 1 else None
    return make_trainer(ModelShape(**shape), load_corpus(), config, mesh)


def folder(root: Path, model: str, layout: str) -> str:
    return str(root / f"{model} {layout}".replace("=", "-").replace(",", " ").strip())


def numbers(of: Trainer, steps: int) -> list[tuple[float, ...]]:
    """Of each step. Scales are powers of two: a wrong one changes no loss."""
    made = (of.step() for _ in range(steps))
    return [(one.loss, one.grad_norm, one.lr, one.loss_scale, one.skipped) for one in made]


def save(cases: list[tuple[str, str]], root: Path) -> list[Any]:
    """In a rank: train, save, train on; then load what was saved into the same layout, and train on from there."""
    torch.set_num_threads(1)
    found = []
    for model, layout in cases:
        first = trainer(model, layout)
        numbers(first, BEFORE)
        Checkpoints(Saving(folder(root, model, layout), 1), first).save()
        on = numbers(first, AFTER)
        again = trainer(model, layout)
        assert Checkpoints(Saving(folder(root, model, layout), 1, resume=True), again).resume()
        assert again.step_count == BEFORE
        found.append((on, numbers(again, AFTER)))
    return found


def save_on_ranks(cases: list[tuple[str, str]], root: Path) -> list[Any]:
    with launch.process_group():
        return save(cases, root)


def go_on(cases: list[tuple[str, ...]], root: Path) -> list[Any]:
    """In a rank: load what another layout has saved; the numbers of the next steps, and how many bytes were read."""
    torch.set_num_threads(1)
    found = []
    for model, saved, *own in cases:
        mine = trainer(model, own[0] if own else "")
        (path,) = checkpoints(Path(folder(root, model, saved)))
        found.append((restore.load(mine, path), numbers(mine, AFTER)))
    return found


def go_on_on_ranks(cases: list[tuple[str, ...]], root: Path) -> list[Any]:
    with launch.process_group():
        return go_on(cases, root)


class Saved:
    """A folder of checkpoints of ``SAVES``, made when they are asked for."""

    def __init__(self, root: Path, ranks: Any):
        self.root, self.ranks = root, ranks

    @functools.cache  # noqa: B019
    def on(self, world: int) -> dict[tuple[str, str], Any]:
        """The numbers of the runs that made those of so many ranks, to their end."""
        if world == 1:
            values = [save(SAVES[1], self.root)]
        else:
            values = self.ranks(save_on_ranks, SAVES[world], self.root, ranks=world).values
        assert all(value == values[0] for value in values)
        return dict(zip(SAVES[world], values[0], strict=True))

    def reference(self, model: str, layout: str) -> Any:
        """The numbers of a run."""
        (world,) = (world for world, cases in SAVES.items() if (model, layout) in cases)
        return self.on(world)[model, layout]


@pytest.fixture(scope="module")
def saved(tmp_path_factory, ranks) -> Saved:
    return Saved(tmp_path_factory.mktemp("checkpoints"), ranks)


@pytest.mark.parametrize("world", SAVES)
def test_the_layout_that_saved_goes_on_bit_for_bit(saved, world):
    for case, (on, again) in saved.on(world).items():
        assert again == on, case


@pytest.mark.parametrize("world", LOADS)
def test_any_other_layout_goes_on_as_well(saved, ranks, world):
    reference = [saved.reference(model, by) for model, by, *_ in LOADS[world]]
    if world == 1:
        values = [go_on(LOADS[1], saved.root)]
    else:
        values = ranks(go_on_on_ranks, LOADS[world], saved.root, ranks=world).values
    for (model, by, *_), (on, _), (_, found) in zip(LOADS[world], reference, values[0], strict=True):
        limit = 1e-6 if model in ("dense", "deep", "tied", "experts") else 5e-2
        for (loss, norm, *rest), (loss_on, norm_on, *rest_on) in zip(found, on, strict=True):
            assert rest == rest_on, (model, by)
            assert loss == pytest.approx(loss_on, rel=limit), (model, by)
            assert norm == pytest.approx(norm_on, rel=20 * limit), (model, by)


def test_with_zero_3_ranks_read_each_element_once_between_them(saved, ranks):
    saved.reference("dense", "dp=2,tp=2,zero=1")
    case = [("dense", "dp=2,tp=2,zero=1", "dp=4,zero=3")]
    values = ranks(go_on_on_ranks, case, saved.root, ranks=4).values
    whole = 12 * ModelShape(**BASE).num_parameters  # a weight and two moments in fp32
    read = [value[0][0] for value in values]
    assert sum(read) == whole
    assert max(read) < 0.3 * whole


def test_a_run_that_goes_back_forgets_the_weights_that_a_look_at_another_text_has_gathered(ranks, tmp_path):

    def work() -> tuple[Any, Any]:
        with launch.process_group():
            one = trainer("dense", "dp=2,zero=3", reshard=False)
            numbers(one, BEFORE)
            Checkpoints(Saving(str(tmp_path), 1), one).save()
            on = numbers(one, AFTER)
            with torch.no_grad():
                one.model.loss(*one.batches.batch(0, *one.replica))
            (path,) = checkpoints(tmp_path)
            restore.load(one, path)
            return on, numbers(one, AFTER)

    for on, again in ranks(work, ranks=2).values:
        assert again == on


def test_pytorch_reads_the_files_as_its_own(saved):
    import torch.distributed.checkpoint as dcp

    saved.reference("dense", "dp=2,zero=3")
    (path,) = checkpoints(Path(folder(saved.root, "dense", "dp=2,zero=3")))
    mine = trainer("dense", "")
    restore.load(mine, path)
    wanted = {f"parameter/{name}": p.detach() for name, p in mine.model.named_parameters()}
    found = {name: torch.zeros_like(p) for name, p in wanted.items()}
    dcp.load(found, storage_reader=dcp.HuggingFaceStorageReader(str(path)), no_dist=True)
    for name, p in wanted.items():
        assert torch.equal(found[name], p), name


# ---- what is not whole, and what belongs to others


@pytest.fixture
def run(tmp_path) -> tuple[Path, Trainer]:
    """A folder with two checkpoints, and the trainer that made them."""
    mine = trainer("dense", "")
    saving = Checkpoints(Saving(str(tmp_path / "c"), 1), mine)
    for _ in range(2):
        mine.step()
        saving.save()
    return tmp_path / "c", mine


def tensors(path: Path) -> Path:
    return next(path.glob("*.safetensors"))


DAMAGES = {
    "is missing": lambda path: tensors(path).unlink(),
    "bytes instead of": lambda path: tensors(path).write_bytes(tensors(path).read_bytes()[:-7]),
    "does not have the checksum": lambda path: flip(tensors(path)),
    "has no manifest.json": lambda path: (path / "manifest.json").unlink(),
    "has a damaged manifest.json": lambda path: (path / "manifest.json").write_text('{"format": 1, '),
    "a manifest.json of something else": lambda path: (path / "manifest.json").write_text("[]"),
    "checksum is of another text": lambda path: replace(path / "manifest.json", '"step": 2', '"step": 3'),
    "has format 99": lambda path: change(path / "manifest.json", format=99),
}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 16
    path.write_bytes(data)


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def change(path: Path, **fields: Any) -> None:
    manifest = json.loads(path.read_text()) | fields
    del manifest["crc32"]
    path.write_text(json.dumps({**manifest, "crc32": checkpoint.own_checksum(manifest)}))


@pytest.mark.parametrize("fault", DAMAGES)
def test_a_damaged_one_is_named_and_the_one_before_is_taken(run, fault, capsys):
    path, _ = run
    newest = checkpoints(path)[-1]
    DAMAGES[fault](newest)
    before = {file: file.read_bytes() for file in newest.iterdir()}
    mine = trainer("dense", "")
    found = Checkpoints(Saving(str(path), 1, resume=True), mine).resume()
    assert (found, mine.step_count) == (checkpoints(path)[0], 1)
    (line,) = capsys.readouterr().err.splitlines()
    assert fault in line
    assert newest.name in line
    assert {file: file.read_bytes() for file in newest.iterdir()} == before


def test_none_that_is_whole_is_an_error(run, capsys):
    path, _ = run
    for each in checkpoints(path):
        flip(tensors(each))
    with pytest.raises(CheckpointError, match="has 2, none of them whole"):
        Checkpoints(Saving(str(path), 1, resume=True), trainer("dense", "")).resume()


def test_checkpoints_of_other_models_batches_and_texts_are_refused(run, tmp_path):
    path, mine = run
    newest = checkpoints(path)[-1]
    with pytest.raises(CheckpointError, match="is of a model with tied=False, but this one has tied=True"):
        restore.load(trainer("tied", ""), newest)
    called = json.loads((newest / "manifest.json").read_text())["shape"] | {"name": "another"}
    change(newest / "manifest.json", shape=called)  # what a model is called makes no difference
    restore.load(mine, newest)
    for fields, sentence in (
        (
            {"config": {"seed": 7, "global_batch": 8, "seq": 12}},
            "was made with seed=7, but this run has seed=0",
        ),
        (
            {"config": {"seed": 0, "global_batch": 8, "seq": 12, "documents": "packed"}},
            "was made with documents='packed', but this run has documents='joined'",
        ),
        ({"corpus": {"tokens": 12, "sha256": ""}}, "was made with another text of 12 tokens"),
    ):
        kept = (newest / "manifest.json").read_text()
        change(newest / "manifest.json", **fields)
        with pytest.raises(CheckpointError, match=sentence):
            restore.load(mine, newest)
        (newest / "manifest.json").write_text(kept)


def test_a_folder_with_checkpoints_is_not_begun_anew(run):
    with pytest.raises(CheckpointError, match="has checkpoints up to step 2: say --resume"):
        Saving(str(run[0]), 1)
    with pytest.raises(CheckpointError, match="every is 0, but must be at least 1"):
        Saving(str(run[0]), 0, resume=True)


def test_only_the_newest_are_kept_and_what_a_dead_writer_left_goes(tmp_path):
    import socket

    left = tmp_path / f".step-00000007.{socket.gethostname()}-999999999-aa"
    left.mkdir()
    others = tmp_path / ".step-00000008.elsewhere-1-bb"
    others.mkdir()
    mine = trainer("dense", "")
    saving = Checkpoints(Saving(str(tmp_path), 1, keep=2), mine)
    for _ in range(4):
        saving.step({"step": mine.step().step})
    assert sorted(path.name for path in tmp_path.iterdir()) == [others.name, "step-00000003", "step-00000004"]


def test_in_the_background_the_same_is_written_while_training_goes_on(run, tmp_path):
    path, _ = run
    mine = trainer("dense", "")
    saving = Checkpoints(Saving(str(tmp_path / "b"), 1, background=True), mine)
    for _ in range(2):
        mine.step()
        saving.save()
    mine.step()  # the copy was made before
    saving.close("finished")
    for one, other in zip(checkpoints(path), checkpoints(tmp_path / "b"), strict=True):
        checkpoint.verify(other)
        wanted, found = load_file(tensors(one)), load_file(tensors(other))
        assert wanted.keys() == found.keys()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_two_writers_of_one_step_do_not_mix(run):
    path, mine = run
    newest = checkpoints(path)[-1]
    before = checkpoint.read_manifest(newest)
    other = Checkpoints(Saving(str(path), 1, resume=True), mine)
    other.save()
    assert checkpoint.read_manifest(newest) == before
    flip(tensors(newest))
    other.save()
    checkpoint.verify(newest)
    assert [left.name.split(".")[0] for left in path.iterdir() if left not in checkpoints(path)] == [
        "damaged-step-00000002"
    ]


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file can become longer than 20,000 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fills_is_one_sentence_and_leaves_nothing(tmp_path, full_disk):
    mine = trainer("dense", "")
    saving = Checkpoints(Saving(str(tmp_path), 1), mine)
    mine.step()
    with pytest.raises(CheckpointError, match=r"cannot be written .*too large") as error:
        saving.save()
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_takes_no_files_is_named(tmp_path):
    mine = trainer("dense", "")
    for folder in (Path("/sys/checkpoints"), tmp_path / "file" / "checkpoints"):
        (tmp_path / "file").touch()
        with pytest.raises(CheckpointError, match=f"checkpoint folder '{folder}' cannot be made"):
            Checkpoints(Saving(str(folder), 1), mine)
