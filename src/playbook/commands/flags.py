"""What subcommands share: flags from fields of dataclasses, which say what they are (`_checks.told`); lines on stderr."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import textwrap
from collections.abc import Collection
from pathlib import Path
from typing import Any

from playbook._checks import MOST, check_int
from playbook.errors import ConfigError, LayoutError
from playbook.layout import Layout
from playbook.planning.flags import read
from playbook.planning.job import Job
from playbook.schedules.actions import Schedule
from playbook.schedules.validate import schedule_of
from playbook.shapes import load

#: How a flag says the unit of a field in bytes, and how many these are.
UNITS = {"MiB": ("mb", 2**20)}
#: What argparse calls the value of a field of a type, and how it is read.
VALUES = {"int": (int, "N"), "float": (float, "X"), "float | str": (lambda text: _number(text), "X")}


class Help(argparse.HelpFormatter):
    """Defaults where they say something and nobody has said them; of a text, lines that are too long are wrapped."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text, default = action.help or "", action.default
        said = (
            default in (None, "", argparse.SUPPRESS) or isinstance(default, bool | list) or "(default" in text
        )
        return text if said else f"{text} (default: %(default)s)"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        wrapped = []
        for line in text.splitlines():
            further = " " * (len(line) - len(line.lstrip()) + 2) if line.startswith(" ") else ""
            wrapped.append(
                textwrap.fill(line, width, subsequent_indent=further) if len(line) > width else line
            )
        return textwrap.indent("\n".join(wrapped), indent)


def whole(text: str) -> int:
    """An integer as people write it: 8192, 8,192, 8k (times 1,024) or 1e5. Raises ValueError for what is none."""
    found = re.fullmatch(r"\s*(-?(?:\d{1,3}(?:,\d{3})+|\d+))(?:e\+?(\d{1,2})|(k))?\s*", text, re.IGNORECASE)
    if not found:
        raise ValueError(f"{text!r} is no integer")
    digits, power, k = found.groups()
    return int(digits.replace(",", "")) * 10 ** int(power or 0) * (1024 if k else 1)


def say(text: str) -> None:
    """A line for people, on stderr, at once: results go to stdout."""
    print(text, file=sys.stderr, flush=True)


def add_fields(parser: argparse.ArgumentParser, kind: type, names: Collection[str] | None = None) -> None:
    """A flag for each field of ``kind`` that says what it is, if need be for those of ``names`` alone.

    What a layout's text has, and micro-batches among it, is None as a flag that is not given.
    """
    for field in _fields(kind, names):
        said, options = field.metadata, _options(field)
        default: Any = field.default
        if kind is Layout and field.name not in Layout().options:
            before, default = f" (default: the layout's, {default})", None
        else:
            before, default = "", default // UNITS[said["unit"]][1] if "unit" in said else default
        choices = said.get("choices", ())
        text = f"{', '.join(choices[:-1])} or {choices[-1]}: {said['help']}" if choices else said["help"]
        text += (f", in {said['unit']}" if "unit" in said else "") + before
        parser.add_argument(_flag(field), default=default, help=text, **options)


def read_fields(args: argparse.Namespace, kind: type, names: Collection[str] | None = None) -> dict[str, Any]:
    """The values of these flags, by field. Raises ConfigError for a size that is none."""
    return {field.name: _value(field, args) for field in _fields(kind, names)}


def layout_of(args: argparse.Namespace, names: Collection[str]) -> Layout:
    """The layout that --layout writes, with flags for fields of it: what is said twice must be the same.

    A ``schedule`` may be a file, as ``playbook schedule --json`` prints it.
    """
    layout = Layout.parse(args.layout, getattr(args, "gpus", None))
    given = {name: value for name, value in read_fields(args, Layout, names).items() if value is not None}
    for name in named(args) & {*given}:
        if given[name] != getattr(layout, name):
            raise ConfigError(
                f"{name} is {given[name]!r}, but {getattr(layout, name)!r} in the layout: give it once"
            )
    if text := given.get("schedule"):
        if layout.pp == 1:
            raise ConfigError(f"schedule is {text!r}, but the layout has no pipeline: give it pp=2 or more")
        if text.endswith(".json"):
            given["own_schedule"] = _schedule(given.pop("schedule"))
    return layout.replace(**given)


def add_run(parser: argparse.ArgumentParser) -> None:
    """A flag for a run of another framework, which stands for the flags that say what is trained and how."""
    parser.add_argument(
        "--from",
        metavar="FILE",
        dest="pasted",
        help="a run as another framework is told of it, in place of model, layout, seq and precision: a script with "
        "flags of Megatron-LM, a TOML of torchtitan, a JSON of DeepSpeed, a YAML of Accelerate (- is stdin); --model "
        "and --seq say what the file does not",
    )


#: The model where none is named.
MODEL = "llama3-8b"
#: Help of --document.
DOCUMENT = "of packed documents, tokens of the one that a token is in, on average (Σl² over Σl)"
#: Flags that say what a text says, but for those that change what it says.
SAID = (
    "layout", "precision", "fp8", "attention", "fused", "bucket_mb", "stage_layers", "optimizer_bytes", "offload",
    "optimizer", "muon",
)  # fmt: skip


def pasted(args: argparse.Namespace, parser: argparse.ArgumentParser) -> Job | None:
    """What ``--from`` describes, with other GPUs, batches or recomputation where flags say so.

    What it leaves open goes to stderr, and into ``args.left_open`` for ``--json``. Raises ConfigError for what cannot be
    read, and for a flag that says it, too.
    """
    args.left_open = {}
    if args.pasted is None:
        return None
    for name in SAID:
        if getattr(args, name, None) != parser.get_default(name):
            raise ConfigError(f"{name} is given beside --from, whose text says it: change it there")
    try:
        path = Path(args.pasted)
        text = sys.stdin.read() if args.pasted == "-" else path.read_text("utf-8-sig", errors="replace")
    except OSError as error:
        raise ConfigError(f"from: {error.strerror}: {args.pasted!r}") from None
    run = read(text)
    if args.gpus is not None:
        run.layout.pop("dp", None)
        run.gpus = args.gpus
    for name in ("micro_batch", "grad_acc", "recompute"):
        if (value := getattr(args, name, None)) is not None:
            run.layout[name] = value
            run.samples = None if name == "grad_acc" else run.samples
    run.samples = getattr(args, "global_batch", None) or run.samples
    args.left_open = {"left_open": run.spread()[1]}
    for what in args.left_open["left_open"]:
        say(f"# {run.framework}: {what}")
    job = run.job(None if args.model is None else load(args.model), args.seq)
    return dataclasses.replace(job, shape=load(job.shape, args.train))


def named(args: argparse.Namespace) -> set[str]:
    """The fields that the layout's text names."""
    return {part.partition("=")[0].strip() for part in args.layout.split(",")}


def _schedule(name: str) -> Schedule:
    try:
        data = json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"schedule {name} cannot be read: {error}") from error
    return schedule_of(data)


def _fields(kind: type, names: Collection[str] | None) -> list[dataclasses.Field]:
    """Fields that say what they are."""
    told = [field for field in dataclasses.fields(kind) if field.metadata.get("help")]
    return [field for field in told if names is None or field.name in names]


def _flag(field: dataclasses.Field) -> str:
    unit = field.metadata.get("unit")
    return "--" + (f"{field.name}_{UNITS[unit][0]}" if unit else field.name).replace("_", "-")


def _options(field: dataclasses.Field) -> dict[str, Any]:
    """What argparse is told of a field's type."""
    kind = str(field.type).removesuffix(" | None")
    if kind == "bool":
        return {"action": argparse.BooleanOptionalAction if field.default else "store_true"}
    read, metavar = VALUES.get(kind, (str, None))
    metavar = field.metadata.get("metavar", metavar)
    return {"type": read, **({"metavar": metavar} if metavar else {})}


def _number(text: str) -> float | str:
    """A number, or a word that the field knows or refuses."""
    try:
        return float(text)
    except ValueError:
        return text


def _value(field: dataclasses.Field, args: argparse.Namespace) -> Any:
    name = _flag(field)[2:].replace("-", "_")
    value = getattr(args, name)
    if unit := field.metadata.get("unit"):
        size = UNITS[unit][1]
        return check_int(name, value, ConfigError, most=MOST // size) * size
    return _stage_layers(value) if field.name == "stage_layers" else value


def _stage_layers(text: str | None) -> tuple[int, ...] | None:
    """``3,5`` as the layers of each stage; None stays None. Raises LayoutError for what are no whole numbers."""
    try:
        return None if text is None else tuple(int(size) for size in text.split(","))
    except ValueError:
        raise LayoutError(
            f"stage_layers is {text!r}, but must be whole numbers, one for each stage, as in 3,5"
        ) from None
