"""What a model is made of: its sizes, and how many parameters they come to.

One description, :class:`ModelShape`, serves the model that runs, the planner that predicts and the command
line. It covers the GPT-2 block and the Llama block, grouped-query attention, mixtures of experts (Mixtral,
Qwen 3, DeepSeek) and DeepSeek's latent attention. Standard library only.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from playbook._checks import check_divides, check_fields, check_int, check_positive, told, unknown
from playbook._tables import check_keys, check_table, read_file, read_json
from playbook.block import NORMS, PARTS, Kind, norm, size, symbols, weighty
from playbook.errors import ShapeError
from playbook.presets import HUB, SIZES, preset_name
from playbook.registry import lab

#: Ten times the depth of the deepest transformer published (DeepNet, Wang et al. 2022, arXiv 2203.00555: 1,000 layers).
#: A pipeline has at most as many stages, so that whatever goes over stages ends soon for any sizes that are let in.
MOST_LAYERS = 10_000
_TRAIN = r"full|lora:[1-9]\d{0,5}|(PART\+)*PART".replace("PART", f"({'|'.join(PARTS)})")
#: Over which tokens the load-balancing loss counts: see :class:`MoE`.
BALANCE_OVER = ("sample", "micro_batch", "global_batch")


@dataclass(frozen=True)
class MoE:
    """A mixture of experts in place of the MLP.

    Each token is sent to ``top_k`` of ``experts`` MLPs of width ``ffn``. ``shared_experts`` see every
    token. The first ``dense_layers`` blocks keep an ordinary MLP (DeepSeek-V3: 3); of the others, each
    ``every``-th has experts (Llama 4 Maverick: 2).

    The router scores experts by a ``softmax`` over them or by a ``sigmoid`` of each. The weights of the chosen are
    divided by their sum if ``normalized``, and multiplied by ``scale``. With ``groups`` a token chooses ``top_groups``
    groups of experts first, and experts in those alone: node-limited routing (DeepSeek-V3, arXiv 2412.19437, section
    2.1.2). ``capacity`` c lets an expert take ceil(c · s · top_k / experts) tokens of a sample of s; None takes all that
    come.

    What keeps the load even: ``balance_loss`` and ``z_loss`` are coefficients of losses beside the model's own, the first
    over the tokens of a ``sample``, a ``micro_batch`` or all of a ``global_batch`` so far (``balance_over``);
    ``bias_rate`` is what a step changes the biases of experts by that only the choice sees.
    """

    experts: int
    top_k: int
    ffn: int
    shared_experts: int = field(default=0, metadata={"least": 0})
    dense_layers: int = field(default=0, metadata={"least": 0})
    every: int = 1
    scores: str = field(default="softmax", metadata={"choices": ("softmax", "sigmoid")})
    normalized: bool = True
    scale: float = field(default=1.0, metadata={"least": 0.0})
    groups: int = 1
    top_groups: int = 1
    capacity: float | None = None
    balance_loss: float = field(default=0.0, metadata={"least": 0.0})
    balance_over: str = field(default="micro_batch", metadata={"choices": BALANCE_OVER})
    z_loss: float = field(default=0.0, metadata={"least": 0.0})
    bias_rate: float = field(default=0.0, metadata={"least": 0.0})

    def __post_init__(self) -> None:
        check_fields(self, ShapeError, "moe.")
        if self.capacity is not None:
            check_positive("moe.capacity", self.capacity, ShapeError)
        check_divides("moe.groups", self.groups, "moe.experts", self.experts, ShapeError)
        if self.top_groups > self.groups:
            raise ShapeError(
                f"moe.top_groups must be at most moe.groups = {self.groups}, got {self.top_groups}"
            )
        within = self.top_groups * (self.experts // self.groups)
        if self.top_k > within:
            where = "moe.experts" if self.groups == 1 else "the experts of moe.top_groups groups"
            raise ShapeError(f"moe.top_k must be at most {where} = {within}, got {self.top_k}")


@dataclass(frozen=True)
class MLA:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Keys and values come from one latent vector. ``kv_rank`` is its width, ``q_rank`` that of the queries'
    (None: queries are not compressed). A head's query and key have ``nope_dim`` dims without position and
    ``rope_dim`` rotary ones, its value ``value_dim``.
    """

    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    def __post_init__(self) -> None:
        check_fields(self, ShapeError, "mla.")
        if self.rope_dim % 2:
            raise ShapeError(f"mla.rope_dim must be even (rotary dims turn in pairs), got {self.rope_dim}")
        if self.value_dim > self.nope_dim + self.rope_dim:
            widest = self.nope_dim + self.rope_dim
            raise ShapeError(
                f"mla.value_dim must be at most nope_dim + rope_dim = {widest}, got {self.value_dim}"
            )


def _nested(key: str, kind: type[Any], value: Any) -> Any:
    """``value`` as what describes a part: a :class:`MoE`, say, built if it is a table."""
    if value is None or isinstance(value, kind):
        return value
    check_table(value, kind, key, ShapeError)
    return kind(**value)


def _windows(given: Any) -> tuple[int, ...]:
    """The windows of a model; those of a model that has none are ()."""
    if not isinstance(given, list | tuple):
        raise ShapeError(f"windows must be a list of whole numbers, got {given!r}")
    windows = tuple(check_int("windows", window, ShapeError, least=-1) for window in given)
    return windows if any(windows) else ()


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder-only transformer.

    Fields left at None are filled in: ``kv_heads = heads``, ``head_dim = hidden // heads``, ``ffn = 4 *
    hidden``, ``qkv_bias = bias``, ``norm_bias = bias`` where the norm is LayerNorm. ``norms`` are before attention and
    MLP, after them, both, or one for the two in parallel; norms of queries and keys are over one head or all ``heads``.
    ``windows`` are the last keys that a query sees, block by block and again from the start (0: all keys): (4096, 0) are
    Gemma 2's. ``train`` says what learns: all (full), some of `block.PARTS` (mlp+head), or adapters of rank 16 beside
    frozen matrices (lora:16; PEFT's all-linear, alpha twice the rank). What is `planned` or ``differs`` is not trained.
    Raises :class:`ShapeError` for sizes from which no model can be built.
    """

    layers: int = field(metadata={"most": MOST_LAYERS})
    hidden: int
    heads: int
    vocab: int
    kv_heads: int | None = None
    head_dim: int | None = None
    ffn: int | None = None
    gated: bool = False
    activation: str = field(default="gelu", metadata={"choices": ("gelu", "relu", "silu")})
    norm: str = field(default="layernorm", metadata={"choices": ("layernorm", "rmsnorm")})
    norms: str = field(default="before", metadata={"choices": tuple(NORMS)})
    positions: str = field(default="learned", metadata={"choices": ("learned", "rotary", "none")})
    max_seq: int = 1024
    bias: bool = True
    qkv_bias: bool | None = None
    norm_bias: bool | None = None
    qk_norm: bool = False
    qk_norm_over: str = field(default="head", metadata={"choices": ("head", "heads")})
    tied: bool = True
    dropout: float = field(default=0.0, metadata={"least": 0.0})
    norm_eps: float = field(default=1e-5, metadata={"least": 0.0})
    rope_theta: float = field(default=10000.0, metadata={"least": 1.0})
    rope_scaling: str = told("", "stretched rotary angles", metavar="yarn:factor=4,original=32768")
    moe: MoE | None = None
    mla: MLA | None = None
    recurrent: Any = None
    windows: tuple[int, ...] = ()
    train: str = told("full", "what learns: full, adapters (lora:16), or parts (mlp+head)", metavar="lora:16")
    differs: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        recurrent = (("recurrent", lab("model", "recurrent")),) if self.recurrent else ()
        for key, kind in (("moe", MoE), ("mla", MLA), *recurrent):
            object.__setattr__(self, key, _nested(key, kind, getattr(self, key)))
        object.__setattr__(self, "windows", _windows(self.windows))
        check_fields(self, ShapeError)
        for key, value in self._filled_in().items():
            if getattr(self, key) is None:
                object.__setattr__(self, key, value)
        self._check()

    def _filled_in(self) -> dict[str, int | bool]:
        """What the optional fields become when they are left out."""
        values = {"kv_heads": self.heads, "ffn": 4 * self.hidden, "qkv_bias": self.bias}
        values |= {"norm_bias": self.bias and self.norm == "layernorm"}
        if self.mla:
            return {**values, "head_dim": self.mla.nope_dim + self.mla.rope_dim}
        if self.hidden % self.heads == 0:
            return {**values, "head_dim": self.hidden // self.heads}
        if self.head_dim is None:
            raise ShapeError(
                f"hidden must be a multiple of heads = {self.heads} where no head_dim is given, "
                f"got {self.hidden}"
            )
        return values

    def _check(self) -> None:
        if self.heads % self.n_kv_heads:
            raise ShapeError(f"kv_heads must divide heads = {self.heads}, got {self.kv_heads}")
        if self.positions == "rotary" and not self.mla and self.qk_dim % 2:
            raise ShapeError(f"head_dim must be even for rotary positions, got {self.head_dim}")
        if self.rope_scaling:
            lab("rope", "check")(self.rope_scaling)
        for key in ("name", "differs"):  # they go into tables and into the names of files
            if not getattr(self, key).isprintable():
                raise ShapeError(f"{key} must be one line of printable text, got {getattr(self, key)!r}")
        if not re.fullmatch(_TRAIN, self.train):
            raise ShapeError(f"train must be full, lora:16 or parts of {'+'.join(PARTS)}, got {self.train!r}")
        if self.train != "full" and self.moe:
            raise ShapeError(f"train is {self.train}, which leaves nothing to experts: leave out moe")
        if self.dropout >= 1:
            raise ShapeError(f"dropout must be at least 0 and below 1, got {self.dropout}")
        if self.moe and self.moe.dense_layers > self.layers:
            raise ShapeError(
                f"moe.dense_layers must be at most layers = {self.layers}, got {self.moe.dense_layers}"
            )
        if self.recurrent is None and -1 in self.windows:
            raise ShapeError(
                "windows has -1, a state in place of attention: recurrent must say of what sizes"
            )
        if self.mla:
            for key, valid in (("qkv_bias", False), ("qk_norm", False), ("kv_heads", self.heads)):
                if (value := getattr(self, key)) != valid:
                    raise ShapeError(f"{key} must be left out with latent attention (mla), got {value!r}")

    @property
    def planned(self) -> str:
        """What this model has that the book's does not, so that it is planned alone; "" if it can be trained."""
        ours: dict[str, Any] = {"windows": (), "recurrent": None, "norms": "before", "qk_norm_over": "head"}
        ours |= {"norm_bias": self._filled_in()["norm_bias"]}
        others = [key for key, value in ours.items() if getattr(self, key) != value]
        return self.differs or (f"{others[0]} is {getattr(self, others[0])!r}" if others else "")

    @property
    def lora(self) -> int:
        """The rank of the adapters; 0 where there are none."""
        return int(self.train.partition(":")[2] or 0)

    @cached_property
    def trained(self) -> frozenset[str]:
        """Those of `block.PARTS` whose weights learn; of tied ends both do, or none."""
        parts, ends = set(PARTS if self.train == "full" else self.train.split("+")), {"embedding", "head"}
        return frozenset(parts | ends if self.tied and parts & ends else parts)

    @property
    def n_kv_heads(self) -> int:
        """Key and value heads."""
        return self.kv_heads or self.heads

    @property
    def qk_dim(self) -> int:
        """Width of one head's query and key."""
        return self.head_dim or 0

    @property
    def v_dim(self) -> int:
        """Width of one head's value."""
        return self.mla.value_dim if self.mla else self.qk_dim

    @property
    def rope_dim(self) -> int:
        """Dims of a head's query and key that turn with the position."""
        return self.mla.rope_dim if self.mla else self.qk_dim

    @property
    def ffn_dim(self) -> int:
        """Inner width of the dense MLP."""
        return self.ffn or 0

    def is_moe(self, layer: int) -> bool:
        """Whether block ``layer`` (from 0) holds experts instead of one MLP."""
        moe = self.moe
        return moe is not None and layer >= moe.dense_layers and (layer + 1) % moe.every == 0

    def kind(self, layer: int) -> Kind:
        """The kind of block ``layer`` (from 0)."""
        window = self.windows[layer % len(self.windows)] if self.windows else 0
        return Kind(self.is_moe(layer), window)

    def blocks(
        self, runs: Iterable[range] | None = None, again: int | None = None, wide: tuple[int, ...] = ()
    ) -> dict[Kind, int]:
        """How many blocks of each kind are in ``runs`` (by default all): only kinds that are there, those with experts
        last. Blocks of a kind are alike, so a sum over layers is a product. ``again``: of each run all but the first so
        many are `Kind.whole`. ``wide``: so many of the model's first and last are `Kind.wide`.
        """
        if again is not None:
            runs = list(runs or [range(self.layers)])
            rest = self.blocks((run[again:] for run in runs), None, wide)
            kinds = {k._replace(whole=True): n for k, n in rest.items()}
            return self.blocks((run[:again] for run in runs), None, wide) | kinds
        runs = [range(self.layers)] if runs is None else list(runs)
        if wide:
            first, border = wide[0], self.layers - wide[1]
            ends = [range(run.start, min(run.stop, first)) for run in runs]
            ends += [range(max(run.start, border), run.stop) for run in runs]
            kinds = {k._replace(wide=True): n for k, n in self.blocks(ends).items()}
            return self.blocks(range(max(run.start, first), min(run.stop, border)) for run in runs) | kinds
        counts: Counter[Kind] = Counter()
        first, period = (self.moe.dense_layers, self.moe.every) if self.moe else (0, 1)
        period = math.lcm(period, len(self.windows) or 1)
        for run in runs:
            # Before the first block with experts, and from there on, kinds repeat themselves.
            for part in (range(run.start, min(first, run.stop)), range(max(first, run.start), run.stop)):
                for i, layer in enumerate(part[:period]):
                    counts[self.kind(layer)] += len(part[i::period])
        return {kind: counts[kind] for kind in sorted(counts)}

    def replace(self, **changes: Any) -> ModelShape:
        """A copy with some fields changed. Fields that had their filled-in value are filled in again.

        ``replace(hidden=512)`` therefore also halves ``head_dim`` and ``ffn`` of a shape of hidden 1024
        that never named them. Raises :class:`ShapeError` for an unknown field.
        """
        check_keys(changes, ModelShape, "a model shape", ShapeError)
        again = {key: None for key, value in self._filled_in().items() if getattr(self, key) == value}
        return dataclasses.replace(self, **{**again, **changes})

    def sizes(self) -> dict[str, Any]:
        """The fields that differ from their defaults and from what is filled in, as :func:`load` takes them."""
        given: dict[str, Any] = {}
        filled = self._filled_in()
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if f.name != "name" and value != filled.get(f.name, f.default):
                nested = f.name in ("moe", "mla", "recurrent")
                given[f.name] = dataclasses.asdict(value) if nested else value
        return given

    def block_parameters(self, kind: Kind) -> dict[str, int]:
        """Parameters of a block by part: attention, mlp, router if any, norms."""
        values, parts = symbols(self), {"attention": 0, "mlp": 0}
        if kind.experts:
            parts["router"] = 0
        parts["norms"] = 0
        for layer in weighty(self, kind):
            parts["mlp" if layer.part.endswith("experts") else layer.part] += size(layer, values)
        return parts

    def parameters(self) -> dict[str, int]:
        """Parameters by part, summed over the layers; only parts that exist. A tied head counts nothing."""
        parts = {"embedding": self.vocab * self.hidden}
        if self.positions == "learned":
            parts["positions"] = self.max_seq * self.hidden
        for kind, blocks in self.blocks().items():
            for part, count in self.block_parameters(kind).items():
                parts[part] = parts.get(part, 0) + blocks * count
        parts["final norm"] = size(norm(self, "final norm"), symbols(self))
        if not self.tied:
            parts["head"] = self.vocab * self.hidden
        return parts

    @cached_property
    def num_parameters(self) -> int:
        """All parameters, what ``sum(p.numel() for p in model.parameters())`` counts."""
        return sum(self.parameters().values())

    @cached_property
    def active_parameters(self) -> int:
        """What one token meets: all but the experts it is not sent to. The embedding counts in full."""
        if not self.moe:
            return self.num_parameters
        values = symbols(self)
        rows = weighty(self, Kind(experts=True))
        experts = sum(size(layer, values) for layer in rows if layer.part == "experts")
        idle = experts // self.moe.experts * (self.moe.experts - self.moe.top_k)
        return self.num_parameters - idle * sum(n for kind, n in self.blocks().items() if kind.experts)


PRESETS = {name: ModelShape(name=name, **sizes) for name, sizes in (SIZES | lab("model", "presets")).items()}


#: Keys of which a config.json of Hugging Face has one at least, and which no shape has.
THEIRS = {"model_type", "architectures", "hidden_size", "n_embd", "text_config"}


def load(spec: ModelShape | Mapping[str, Any] | str | Path, train: str = "full") -> ModelShape:
    """A shape from a preset's name, here or on Hugging Face, a TOML or JSON file, inline JSON, a mapping, or a shape.

    A file holds the fields at its top or in a table ``[model]``. JSON and a mapping may also be the ``config.json`` of a
    model on Hugging Face (:mod:`playbook.huggingface`). ``train`` says what of it learns, where that is not said there.
    Raises :class:`ShapeError` in one sentence.
    """
    if train != ModelShape.train:
        return load(spec).replace(train=train)
    if isinstance(spec, ModelShape):
        return spec
    if isinstance(spec, Mapping):
        return _from_table(spec)
    if isinstance(spec, Path):
        return _from_file(spec)
    if not isinstance(spec, str):
        raise ShapeError(f"a model is a preset name, a TOML or JSON file or inline JSON, got {spec!r}")
    text = spec.strip()
    if text.startswith("{"):
        return _from_table(read_json(text, "the model's inline JSON", ShapeError))
    if (name := preset_name(text)) in PRESETS:
        return PRESETS[name]
    if text.endswith((".toml", ".json")) or text.startswith((".", "/", "~")) or Path(text).is_file():
        return _from_file(Path(text))
    if found := HUB.fullmatch(text):
        where = "https://huggingface.co/" + "/".join(found.groups())
        raise ShapeError(f"no preset is {text!r}: save {where}/raw/main/config.json, and give that file")
    raise ShapeError(unknown("model", text, PRESETS) + " (or give a .toml or .json file or inline JSON)")


def _from_file(path: Path) -> ModelShape:
    document = read_file(path, "the model", ShapeError)
    if isinstance(document, dict) and set(document) == {"model"}:
        document = document["model"]
    name = path.absolute().parent.name if path.name == "config.json" else path.stem
    try:
        shape = _from_table(document)
        return shape if shape.name else dataclasses.replace(shape, name=name)
    except ShapeError as error:
        raise ShapeError(f"{path}: {error}") from None


def _from_table(sizes: Any) -> ModelShape:
    if isinstance(sizes, Mapping) and THEIRS & set(sizes):
        return lab("model", "config.json")(sizes)
    check_table(sizes, ModelShape, "a model shape", ShapeError)
    return ModelShape(**sizes)
