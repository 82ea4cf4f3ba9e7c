"""One checkpoint: a folder that every rank writes its part of, and any layout reads its own part of.

A folder ``step-00000100`` holds files of tensors (safetensors, with the offsets that PyTorch's distributed checkpoint
writes into their headers, so that its ``HuggingFaceStorageReader`` reads them, too) and ``manifest.json``: the step,
seed, layout, shape, corpus, what the optimizer has counted, and every file with its size and checksum. It is written
under another name and renamed when all is there: a folder with that name is whole, or was damaged later. No file is a
pickle.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from playbook import __version__
from playbook._json import write_json
from playbook.errors import CheckpointError
from playbook.parallel.engine import Engine
from playbook.training.boxes import Sizes, boxes
from playbook.training.trainer import Trainer

FORMAT = 1
MANIFEST = "manifest.json"
#: Fields of a shape and of its experts that change how a model trains, and nothing of what it computes after that.
TRAINING = ("train", "dropout", "balance_loss", "balance_over", "z_loss", "bias_rate")
#: Fields of a configuration that a resumed run must have in common with the one that saved: its batches depend on them.
SAME = ("seed", "global_batch", "seq", "documents")


@dataclass(frozen=True)
class Piece:
    """A box of a whole tensor: what one entry of a file holds."""

    name: str
    offsets: Sizes
    tensor: Tensor


@dataclass(frozen=True)
class Snapshot:
    """What one rank saves of a step."""

    pieces: list[Piece]
    about: dict[str, Any]


def snapshot(trainer: Trainer, before: Snapshot | None = None) -> Snapshot:
    """This rank's part of a trainer's state, as of now; ``before`` is an earlier one of it. Not a collective.

    What the next update changes (weights, states of the optimizer) is not copied: that is what `copied` is for.
    """
    engine = trainer.engine
    for one in engine.sets:
        one.wait()
    scale, history = trainer.loss_scale, engine.amax_history()
    about: dict[str, Any] = {
        "format": FORMAT,
        "version": __version__,
        "step": trainer.step_count,
        "layout": str(trainer.config.layout),
        "ranks": trainer.config.layout.world_size,
        "shape": dataclasses.asdict(trainer.model.shape),
        "config": {field: getattr(trainer.config, field) for field in (*SAME, "optimizer")},
        "corpus": before.about["corpus"] if before else identity(trainer),
        "skipped_batches": trainer.skipped,
        "guard": trainer.guard.state() if trainer.guard else None,
        "loss_scale": {"value": scale.value, "good_steps": scale.good_steps} if scale else None,
        "amax_count": history.count if history else None,
        "optimizer_steps": engine.step_counts(),
    }
    return Snapshot(list(_pieces(engine)), about)


def in_memory(saved: Snapshot) -> Snapshot:
    """Its tensors in CPU memory and end to end; those that are so already are not copied."""
    return Snapshot([_piece(piece, copy=False) for piece in saved.pieces], saved.about)


@torch.no_grad()
def copied(saved: Snapshot, before: Snapshot | None = None) -> Snapshot:
    """Copies in CPU memory, in that of the copies ``before`` if there are: to take new memory from the system costs more
    than to copy. From a GPU in a stream of its own, beside the forward pass."""
    device = next((piece.tensor.device for piece in saved.pieces if piece.tensor.is_cuda), None)
    with torch.cuda.stream(torch.cuda.Stream(device)) if device else nullcontext():
        # A first update brings moments.
        if before and saved.pieces and _names(saved.pieces) == _names(before.pieces):
            torch._foreach_copy_([p.tensor for p in before.pieces], [p.tensor for p in saved.pieces])
            return Snapshot(before.pieces, saved.about)
        return Snapshot([_piece(piece, copy=True) for piece in saved.pieces], saved.about)


def _names(pieces: list[Piece]) -> list[tuple[str, Sizes]]:
    return [(piece.name, piece.offsets) for piece in pieces]


def _pieces(engine: Engine) -> Iterator[Piece]:
    for shard in engine.local_shards():
        flat = shard.tensor.detach().reshape(-1)
        for box in boxes(shard.placement, shard.shape, shard.start, shard.start + len(flat)):
            yield Piece(f"{shard.kind}/{shard.name}", box.offsets, box.of(flat))
    if engine.mesh is None or engine.mesh.index("dp", "cp", "tp") == 0:  # others have the same
        for name, buffer in engine.buffers().items():
            yield Piece(f"buffer/{name}", (0,) * buffer.dim(), buffer.clone())  # a forward pass may change it
    history = engine.amax_history()
    if history and history.steps.numel():
        rank = engine.mesh.rank if engine.mesh else 0
        yield Piece(f"amax/{rank}", (0,) * history.steps.dim(), history.steps.clone())


def _piece(piece: Piece, copy: bool) -> Piece:
    tensor = piece.tensor.to("cpu", copy=copy, memory_format=torch.contiguous_format).contiguous()
    return Piece(piece.name, piece.offsets, tensor)


def identity(trainer: Trainer) -> dict[str, Any]:
    """Which text a trainer reads: its length, and a hash."""
    tokens = trainer.batches.corpus.tokens
    return {"tokens": len(tokens), "sha256": hashlib.sha256(tokens.numpy().tobytes()).hexdigest()}


# ---- writing


def write(saved: Snapshot, folder: Path, rank: int) -> None:
    """Write this rank's files into ``folder``, and last ``rank-….json``, which says that they are there.

    Raises CheckpointError where they cannot be written.
    """
    from safetensors import SafetensorError

    try:
        files = [_write_file(folder / name, pieces) for name, pieces in _files(saved.pieces, rank)]
        write_json(folder / f"rank-{rank:05d}.json", {**saved.about, "files": files})
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"checkpoint {str(folder.name)!r} cannot be written by rank {rank} into {str(folder.parent)!r} "
            f"({getattr(error, 'strerror', None) or error})"
        ) from None


def _files(pieces: Iterable[Piece], rank: int) -> Iterator[tuple[str, list[Piece]]]:
    """A file has one box of a tensor; of a tensor in several boxes, the second goes to a second file, and so on."""
    files: list[list[Piece]] = []
    seen: dict[str, int] = {}
    for piece in pieces:
        number = seen[piece.name] = seen.get(piece.name, -1) + 1
        if number == len(files):
            files.append([])
        files[number].append(piece)
    for number, some in enumerate(files):
        yield f"rank-{rank:05d}-{number}.safetensors", some


def _write_file(path: Path, pieces: list[Piece]) -> dict[str, Any]:
    from safetensors.torch import save_file

    offsets = {piece.name: {"saved_offsets": list(piece.offsets)} for piece in pieces}
    about = {"DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0", "format": "pt"}
    save_file({piece.name: piece.tensor for piece in pieces}, path, about)
    path.chmod(0o644)  # as other files are, and not for its owner alone
    return describe(path)


def describe(path: Path) -> dict[str, Any]:
    """What a manifest says of a file, once it is on the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
    return {"name": path.name, "bytes": path.stat().st_size, "crc32": checksum(path)}


def checksum(path: Path) -> int:
    """The CRC-32 of a file."""
    found = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            found = zlib.crc32(chunk, found)
    return found


def unwritten(folder: Path, ranks: int) -> list[int]:
    """The ranks that have not written their files into a folder that is not committed."""
    return [rank for rank in range(ranks) if not (folder / f"rank-{rank:05d}.json").exists()]


def commit(folder: Path, whole: Path, ranks: int) -> bool:
    """Put the parts of all ranks together into a manifest and name the folder. By one rank, when all have written.

    False where another writer has put a checkpoint there in the meantime: that one stays.
    """
    parts = [folder / f"rank-{rank:05d}.json" for rank in range(ranks)]
    found = [json.loads(part.read_text(encoding="utf-8")) for part in parts]
    steps = {name: step for part in found for name, step in part["optimizer_steps"].items()}
    files = [file for part in found for file in part["files"]]
    count = max((part["amax_count"] for part in found if part["amax_count"] is not None), default=None)
    manifest = {**found[0], "amax_count": count, "optimizer_steps": steps, "files": files}
    write_json(folder / MANIFEST, {**manifest, "crc32": own_checksum(manifest)})
    for part in parts:
        part.unlink()
    try:
        folder.rename(whole)
    except OSError:
        if not whole.exists():
            raise
        return False
    entry = os.open(whole.parent, os.O_RDONLY)
    try:
        os.fsync(entry)
    finally:
        os.close(entry)
    return True


# ---- what is there


def read_manifest(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself. Raises CheckpointError for a folder that is none."""
    try:
        found = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"checkpoint {str(path)!r} has no {MANIFEST}: it is none, or not whole"
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"checkpoint {str(path)!r} has a damaged {MANIFEST} ({error})") from None
    if not isinstance(found, dict) or "format" not in found:
        raise CheckpointError(f"checkpoint {str(path)!r} has a {MANIFEST} of something else")
    if found["format"] != FORMAT:
        raise CheckpointError(
            f"checkpoint {str(path)!r} has format {found['format']!r}, but this version reads {FORMAT}"
        )
    if found.pop("crc32", None) != own_checksum(found):
        raise CheckpointError(
            f"checkpoint {str(path)!r} has a damaged {MANIFEST} (its checksum is of another text)"
        )
    return found


def own_checksum(manifest: Mapping[str, Any]) -> int:
    """Of what a manifest says, however its text is broken into lines."""
    return zlib.crc32(json.dumps(manifest).encode())


def verify(path: Path, part: int = 0, parts: int = 1) -> None:
    """Read every ``parts``-th file from ``part`` on. Raises CheckpointError for one that is not as it was written."""
    files = read_manifest(path)["files"]
    for file in files[part::parts]:
        own = path / file["name"]
        if not own.is_file():
            raise CheckpointError(f"checkpoint {str(path)!r} is not whole: {file['name']} is missing")
        if own.stat().st_size != file["bytes"]:
            raise CheckpointError(
                f"checkpoint {str(path)!r} is not whole: {file['name']} has {own.stat().st_size} bytes instead of "
                f"{file['bytes']}"
            )
        if checksum(own) != file["crc32"]:
            raise CheckpointError(
                f"checkpoint {str(path)!r} is damaged: {file['name']} does not have the checksum that it was written with"
            )
