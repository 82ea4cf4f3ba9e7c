"""Checkpoints for Hugging Face, and from there: folders of ``config.json`` and ``model.safetensors``.

One tensor is in memory at a time, whatever the size of the model. What is made is written beside its place and renamed
when it is whole, and nothing is overwritten. Weights that come from elsewhere become a checkpoint of step 0 without
states of an optimizer, with which any layout begins as it goes on from any other.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from playbook import __version__
from playbook._json import write_json
from playbook._tables import read_file, read_json
from playbook.errors import CheckpointError, ShapeError
from playbook.model.hugging_face import WeightMap, config_of, model_of
from playbook.shapes import ModelShape, load
from playbook.training.checkpoint import FORMAT, commit, describe, read_manifest, verify
from playbook.training.restore import Reader
from playbook.training.saving import checkpoints, step_of

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
#: What headers of safetensors call the formats of weights.
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
#: Ends of names of tensors that some files have beside weights: masks and frequencies that follow from the config.
DERIVED = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
#: What fills boxes of our tensors, each with the tensor's name, where it begins, and where its elements go.
Fill = Callable[[Iterable[tuple[str, tuple[int, ...], Tensor]]], object]


# ---- to Hugging Face


def to_hugging_face(path: Path, out: Path) -> dict[str, Any]:
    """Write the weights of a checkpoint, of any layout, as a folder that transformers reads. Returns its config.

    Raises CheckpointError for a checkpoint that is not whole, a model that no architecture of Hugging Face is, and an
    ``out`` that exists or cannot be written.
    """
    try:
        verify(path)
        shape, reader = load(read_manifest(path)["shape"]), Reader(path)
    except OSError as error:
        raise CheckpointError(f"checkpoint {str(path)!r} cannot be read ({error.strerror})") from None

    def fill(boxes: Iterable[tuple[str, tuple[int, ...], Tensor]]) -> None:
        for name, offsets, target in boxes:
            reader.box(name, offsets, target)
        reader.read()

    dtype = reader.tensors["parameter/embedding.weight"].properties.dtype
    try:
        return write_folder(shape, fill, dtype, out)
    except ShapeError as error:
        raise CheckpointError(
            f"checkpoint {str(path)!r} is of a model that cannot be exported: {error}"
        ) from None


def write_folder(shape: ModelShape, fill: Fill, dtype: torch.dtype, out: Path) -> dict[str, Any]:
    """Write ``config.json`` and ``model.safetensors`` of a model whose tensors ``fill`` gives in boxes.

    They are called ``parameter/…`` and ``buffer/…``, as in a checkpoint. Raises ShapeError for a model that no
    architecture is, CheckpointError for an ``out`` that exists or cannot be written. Returns the config.
    """
    config = {**config_of(shape), "dtype": str(dtype).removeprefix("torch.")}
    weights = WeightMap(shape, config["model_type"])

    def tensor(theirs: str) -> Tensor:
        whole = torch.empty(weights.size(theirs), dtype=kinds[theirs][0])
        fill((weights.key(name), offsets, view) for name, offsets, view in weights.views(theirs, whole))
        return whole

    kinds = {
        theirs: (torch.float32 if parts[0][0] in weights.buffers else dtype, weights.size(theirs))
        for theirs, parts in weights.parts.items()
    }
    if out.exists():
        raise CheckpointError(f"out is {str(out)!r}, which exists: give a new folder")
    with _aside(out.parent, f".{out.name}") as folder:
        write_tensors(folder / WEIGHTS, kinds, tensor)
        write_json(folder / CONFIG, config)
        folder.rename(out)
    return config


def write_tensors(
    path: Path, kinds: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], tensor: Callable[[str], Tensor]
) -> dict[str, Any]:
    """Write a file of safetensors, one tensor after the other; returns its line of a manifest.

    The format (huggingface.co/docs/safetensors): 8 bytes that say how long the header is, the header in JSON, and the
    tensors' bytes. What `safetensors` itself writes it wants to have in memory as a whole.
    """
    called = {dtype: name for name, dtype in DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end, names = 0, sorted(kinds, key=lambda name: -kinds[name][0].itemsize)  # so that all are aligned
    for name in names:
        dtype, size = kinds[name]
        begin, end = end, end + math.prod(size) * dtype.itemsize
        header[name] = {"dtype": called[dtype], "shape": list(size), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(tensor(name).contiguous().view(-1).view(torch.uint8).numpy().data)
    return describe(path)


# ---- from Hugging Face


def from_hugging_face(folder: Path, out: Path) -> Path:
    """Make a checkpoint of step 0 in ``out`` of a folder with a config.json and safetensors. Returns its path.

    Raises CheckpointError for what is missing there or does not fit, and for an ``out`` that has checkpoints.
    """
    if out.exists() and not out.is_dir():
        raise CheckpointError(f"out is {str(out)!r}, which is a file: give a folder")
    if found := checkpoints(out):
        raise CheckpointError(
            f"out is {str(out)!r}, which has checkpoints up to step {step_of(found[-1])}: give another folder"
        )
    shape, model_type = _model(folder)
    weights = WeightMap(shape, model_type)
    source = _Files(folder, weights)
    sources: dict[str, list[str]] = {}
    for theirs, parts in weights.parts.items():
        for ours, _ in parts:
            sources.setdefault(ours, []).append(theirs)

    def tensor(key: str) -> Tensor:
        ours = key.partition("/")[2]
        whole = torch.zeros(weights.sizes[ours], dtype=kinds[key][0])
        for theirs in sources.get(ours, ()):
            for name, offsets, view in weights.views(theirs, source.read(theirs)):
                if name == ours:
                    box = tuple(slice(at, at + n) for at, n in zip(offsets, view.shape, strict=True))
                    whole[box] = view
        return whole

    kinds = {
        weights.key(name): (torch.float32 if name in weights.buffers else source.dtype, size)
        for name, size in weights.sizes.items()
    }
    whole = out / "step-00000000"
    with _aside(out, f".{whole.name}") as part:
        files = [write_tensors(part / "rank-00000-0.safetensors", kinds, tensor)]
        write_json(part / "rank-00000.json", {**_about(shape, model_type), "files": files})
        if not commit(part, whole, 1):
            raise CheckpointError(f"out is {str(out)!r}, which another writer has taken: give another folder")
    return whole


def _about(shape: ModelShape, model_type: str) -> dict[str, Any]:
    """What the manifest says of weights that no run of ours has made."""
    return {
        "format": FORMAT,
        "version": __version__,
        "step": 0,
        "layout": "",
        "ranks": 1,
        "shape": dataclasses.asdict(shape),
        "config": {},
        "corpus": None,
        "skipped_batches": 0,
        "guard": None,
        "loss_scale": None,
        "amax_count": None,
        "optimizer_steps": {},
        "source": model_type,
    }


def _model(folder: Path) -> tuple[ModelShape, str]:
    if not folder.is_dir():
        raise CheckpointError(f"model is {str(folder)!r}, but must be a folder with a {CONFIG}")
    config = read_file(folder / CONFIG, "the model's", CheckpointError)
    if not isinstance(config, dict):
        raise CheckpointError(f"the model's file {str(folder / CONFIG)!r} must hold a table")
    try:
        return dataclasses.replace(model_of(config), name=folder.absolute().name), config["model_type"]
    except ShapeError as error:
        raise CheckpointError(f"{folder / CONFIG}: {error}") from None


class _Files:
    """The tensors of a folder, from one file or those of an index; only what the map has a place for."""

    def __init__(self, folder: Path, weights: WeightMap):
        self.folder = folder
        files = self._files()
        kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
        #: The file of each tensor.
        self.where: dict[str, Path] = {}
        for path in files:
            with self._opened(path) as file:
                for name in file.keys():  # noqa: SIM118  (no mapping)
                    piece = file.get_slice(name)
                    kinds[name], self.where[name] = (piece.get_dtype(), tuple(piece.get_shape())), path
        #: By the name in the map: files of a bare model have no name for it (GPT-2's do: ``wte.weight``).
        self.names = {name: self._called(name) for name in weights.parts}
        tied = ("lm_head.weight",) if weights.shape.tied else ()
        known = {*self.names.values(), *tied}
        for name in sorted(kinds.keys() - known):
            if not name.endswith(DERIVED):
                raise CheckpointError(
                    f"model {str(folder)!r} has {name}, which its {CONFIG} has no place for"
                )
        for name, theirs in self.names.items():
            dtype, size = kinds[theirs]
            if size != weights.size(name):
                raise CheckpointError(
                    f"model {str(folder)!r} has {theirs} of {size}, but its {CONFIG} says {weights.size(name)}"
                )
            if dtype not in DTYPES:
                raise CheckpointError(
                    f"model {str(folder)!r} has {theirs} in {dtype}, but it must be one of {', '.join(DTYPES)}"
                )
        #: What the checkpoint has all weights in: a format that holds each of theirs.
        self.dtype = reduce(torch.promote_types, {DTYPES[kinds[theirs][0]] for theirs in self.names.values()})

    def read(self, name: str) -> Tensor:
        """A tensor by its name in the map."""
        theirs = self.names[name]
        with self._opened(self.where[theirs]) as file:
            return file.get_tensor(theirs)

    def _called(self, name: str) -> str:
        for theirs in (name, name.partition(".")[2]):
            if theirs in self.where:
                return theirs
        raise CheckpointError(f"model {str(self.folder)!r} has no {name}, which its {CONFIG} asks for")

    def _files(self) -> list[Path]:
        if (self.folder / WEIGHTS).is_file():
            return [self.folder / WEIGHTS]
        index = self.folder / INDEX
        if not index.is_file():
            pickles = sorted(path.name for path in self.folder.glob("*.bin"))
            more = f": {pickles[0]} is a pickle, which can run code and is not read" if pickles else ""
            raise CheckpointError(f"model {str(self.folder)!r} has no {WEIGHTS} and no {INDEX}{more}")
        try:
            text = index.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"index {str(index)!r} cannot be read ({error})") from None
        table = read_json(text, f"index {str(index)!r}", CheckpointError)
        names = table.get("weight_map") if isinstance(table, dict) else None
        if not isinstance(names, dict) or not names or not all(isinstance(n, str) for n in names.values()):
            raise CheckpointError(f"index {str(index)!r} has no weight_map of files")
        for name in names.values():
            if Path(name).name != name:
                raise CheckpointError(f"index {str(index)!r} names {name!r}, which is not in its folder")
        return [self.folder / name for name in sorted(set(names.values()))]

    @contextmanager
    def _opened(self, path: Path) -> Iterator[Any]:
        try:
            with safe_open(path, framework="pt") as file:
                yield file
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"file {str(path)!r} cannot be read as safetensors ({error})") from None


# ---- writing aside


@contextmanager
def _aside(parent: Path, name: str) -> Iterator[Path]:
    """A folder for what gets its name when it is whole; what is left of it is removed. Raises CheckpointError."""
    made = not parent.exists()
    folder = parent / f"{name}.{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir(parents=True)
        yield folder
    except OSError as error:
        raise CheckpointError(f"{str(parent)!r} cannot be written to ({error.strerror or error})") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if made and parent.is_dir() and not any(parent.iterdir()):
            parent.rmdir()
