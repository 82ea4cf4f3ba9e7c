"""``playbook checkpoint``: what checkpoints a folder has, whether they are whole, and other programs' weights."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from playbook._json import to_json
from playbook.commands.flags import say
from playbook.errors import CheckpointError


def add(commands: Any) -> None:
    p = commands.add_parser(
        "checkpoint",
        help="what checkpoints there are, whether they are whole; weights for Hugging Face, and from there",
        description="Look at checkpoints that `playbook train --checkpoint DIR` has made, and convert them.",
    )
    actions = p.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in (
        ("show", "step, layout, size and tensors of a checkpoint, or of all in a folder"),
        ("verify", "read every file, and compare it with the checksum that it was written with"),
    ):
        action = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        action.add_argument("path", type=Path, metavar="DIR", help="a checkpoint, or a folder of them")
        action.add_argument("--json", action="store_true", help="print one JSON object on stdout")
        action.set_defaults(run=_show if name == "show" else _verify)
    _add_convert(actions)


def _add_convert(actions: Any) -> None:
    text = "weights for Hugging Face's transformers, or from there"
    p = actions.add_parser(
        "convert",
        help=text,
        description=f"Write {text}: a folder of config.json and model.safetensors. What comes from there is a checkpoint "
        "of step 0, with weights alone, that `playbook train --resume` begins with. Layouts need none of this: any one "
        "reads the checkpoints of any other.",
    )
    p.add_argument(
        "path",
        type=Path,
        metavar="FROM",
        help="a checkpoint, or a folder of them (its newest); or a folder with config.json and *.safetensors",
    )
    p.add_argument("out", type=Path, metavar="OUT", help="a folder to be made; nothing is overwritten")
    p.add_argument("--to", required=True, choices=("hugging-face", "playbook"), help="what is written")
    p.set_defaults(run=_convert)


def _paths(path: Path) -> list[Path]:
    """The checkpoint at a path, or those in it, oldest first."""
    from playbook.training.saving import checkpoints

    if not path.is_dir():
        raise CheckpointError(f"checkpoint is {str(path)!r}, but must be a folder")
    found = [path] if path.name.startswith("step-") else checkpoints(path)
    if not found:
        raise CheckpointError(f"checkpoint folder {str(path)!r} has no checkpoints")
    return found


def _show(args: argparse.Namespace) -> int:
    from playbook.training.checkpoint import read_manifest

    found = [(path, read_manifest(path)) for path in _paths(args.path)]
    if args.json:
        print(to_json({"checkpoints": [{"path": str(path), **manifest} for path, manifest in found]}))
        return 0
    for path, manifest in found:
        size = sum(file["bytes"] for file in manifest["files"])
        print(
            f"{path}: step {manifest['step']} of {manifest['shape']['name'] or 'a model'}, {_origin(manifest)}, "
            f"{size / 1e6:,.1f} MB in "
            f"{len(manifest['files'])} files"
        )
    return 0


def _origin(manifest: Mapping[str, Any]) -> str:
    if "source" in manifest:
        return f"weights alone, from a {manifest['source']} of Hugging Face"
    return f"written by {manifest['ranks']} ranks ({manifest['layout'] or 'one device'})"


def _convert(args: argparse.Namespace) -> int:
    from playbook.training.convert import from_hugging_face, to_hugging_face

    if args.to == "playbook":
        path = from_hugging_face(args.path, args.out)
        say(
            f"{path} has the weights: begin with `playbook train --model {args.path / 'config.json'} --checkpoint "
            f"{args.out} --resume`, in any layout"
        )
        return 0
    path = _paths(args.path)[-1]
    config = to_hugging_face(path, args.out)
    say(
        f"{args.out} has the weights of {path}, as {config['architectures'][0]} in {config['dtype']}: read them with "
        f"transformers.AutoModelForCausalLM.from_pretrained({str(args.out)!r})"
    )
    return 0


def _verify(args: argparse.Namespace) -> int:
    from playbook.training.checkpoint import read_manifest, verify

    faults: dict[str, str] = {}
    paths = _paths(args.path)
    for path in paths:
        try:
            verify(path)
        except CheckpointError as error:
            faults[str(path)] = str(error)
    whole = [path for path in paths if str(path) not in faults]
    if args.json:
        print(to_json({"whole": [str(path) for path in whole], "faults": faults}))
    for fault in faults.values():
        say(fault)
    if whole:
        size = math.fsum(file["bytes"] for path in whole for file in read_manifest(path)["files"])
        say(f"{len(whole)} of {len(paths)} whole: {size / 1e6:,.1f} MB as they were written")
    return 1 if faults else 0
