"""Reads a script or flags of Megatron-LM, core 0.16, with the defaults of its arguments.py."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from playbook.errors import ConfigError
from playbook.layout.fields import MODULES
from playbook.planning.flags.megatron import BALANCE, CONTEXT, SHARDED
from playbook.planning.flags.pasted import Pasted, number, preset_of
from playbook.precision.recipes import FP8_RECIPES
from playbook.shapes import MLA, PRESETS, ModelShape, MoE

#: Words of a vocabulary that a tokenizer has of itself; of one that is not here they are unknown.
TOKENIZERS = {"GPT2BPETokenizer": 50257}
_ASSIGNED = re.compile(
    r"(?:^|[;\s)])(?:(?:export|local|declare|readonly)\s+)?(\w+)(\+?)=(?:\"([^\"]*)\"|'([^']*)'|([^\s(;&|]+))",
    re.MULTILINE,
)
_USED = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?[-=]([^}]*))?\})")
_NODES = re.compile(r"^#SBATCH\s+(?:--nodes[= ]|-N ?)(\d+)", re.MULTILINE)
_EACH = re.compile(r"^#SBATCH\s+--(?:gpus-per-node|gres)[= ](?:gpu:)?(?:\w+:)?(\d+)", re.MULTILINE)
_OTHERS = re.compile(r"pretrain_(bert|t5|ict|mamba|vlm|retro|vision)|--(hybrid)-|--spec\s+\S*(mamba)")
#: Characters of a script once its variables stand in it.
_LONGEST = 2**22
_T = TypeVar("_T")


class Flags:
    """The flags of a text, as each is asked for: with what it says, or with a default."""

    def __init__(self, text: str, unknown: list[str]):
        self.unknown, every = unknown, dict[str, list[list[str]]]()
        self.asked: set[str] = set()
        found: list[str] | None = None
        for word in _words(text, unknown):
            if word.startswith("--"):
                name, equals, value = word[2:].partition("=")
                found = [value] if equals else []
                every.setdefault(name.replace("_", "-"), []).append(found)
            elif found is not None and word not in ("(", ")"):
                found.append(word if word.count("(") == word.count(")") else word.rstrip(")"))
        self.given = {name: values[-1] for name, values in every.items()}
        for name, values in every.items():
            if len(said := dict.fromkeys(value[0] for value in values if value)) > 1:
                unknown.append(f"--{name} is there with {' and '.join(said)}: the last is read")

    def on(self, name: str) -> bool:
        """Whether a switch is there."""
        self.asked.add(name)
        return name in self.given and self.given[name][:1] not in (["false"], ["False"])

    def word(self, name: str, default: str = "") -> str:
        """The first word behind a flag."""
        return (self.given[name] or [default])[0] if self.on(name) else default

    def number(self, name: str, default: _T, read: Callable[[str], Any] = int) -> Any | _T:
        """A number of at least 1, or of 0 where that is the default; one that cannot be read is unknown: a variable
        that is set elsewhere. Raises ConfigError for others."""
        text = self.word(name)
        try:
            value: Any = read(text) if text else default
        except ValueError:
            instead = "left out" if default is None else f"read as {default}"
            self.unknown.append(f"--{name} {text}: no number, so that it is {instead}")
            return default
        if read is int and value is not None and value < (least := 0 if default == 0 else 1):
            raise ConfigError(f"--{name} must be at least {least}, got {value}")
        return value

    def left(self) -> set[str]:
        return {f"--{name}" for name in self.given.keys() - self.asked}


def read(text: str) -> Pasted:
    """The run that a script or a list of flags starts. Raises ConfigError for sizes that no model can have."""
    if other := _OTHERS.search(text):
        raise ConfigError(
            f"the text trains no decoder of attention alone, which is all that is read: {other[0]}"
        )
    run = Pasted("Megatron-LM")
    flags = Flags(text, run.unknown)
    if re.search(r"^\s*(if|case)\b", text, re.MULTILINE):
        run.unknown.append("if and case: what all of their branches say is read, the last where they differ")
    run.seq = flags.number("seq-length", None)
    _layout(run, flags)
    each = number(flags.word("nproc-per-node")) or number(flags.word("gpus-per-node")) or _sbatch(_EACH, text)
    nodes = (
        number(flags.word("nnodes"))
        or _sbatch(_NODES, text)
        or (1 if "$" not in flags.word("nnodes") else None)
    )
    run.gpus = nodes * each if each and nodes else None
    run.samples = flags.number("global-batch-size", None)
    run.shape = _shape(run, flags)
    if run.shape:
        _stages(run, flags, run.shape.layers)
    _precision(run, flags)
    for name in ("rdzv-backend", "rdzv-endpoint", "master-addr", "master-port", "node-rank"):
        flags.on(name)
    run.left(flags.left())
    return run


def _sbatch(pattern: re.Pattern[str], text: str) -> int | None:
    return int(found[1]) if (found := pattern.search(text)) else None


def _words(text: str, unknown: list[str]) -> list[str]:
    """The words of a script, its variables as they are set in it, and what stands in quotes apart."""
    text = re.sub(r"\\\n", " ", re.sub(r"(^|\s)#.*", r"\1", text))
    known: dict[str, str] = {}
    for found in _ASSIGNED.finditer(text):
        name, more, *values = found.groups()
        value, before = next((v for v in values if v is not None), ""), known.get(name, "")
        own = re.compile(
            rf"\$(?:{name}\b|\{{{name}(?::?[-=]([^}}]*))?\}})"
        )  # NAME=${{NAME:-8}}, and what is added
        value = before * bool(more) + own.sub(lambda m, old=before: old or m[1] or "", value)
        if before and before not in value:
            unknown.append(f"{name} is set to {_short(before)} and {_short(value)}: the last is read")
        known[name] = value
    for _ in range(4):  # variables of variables
        text = _USED.sub(lambda m: known.get(m[1] or m[2], m[3] or m[0]), text)
        text = re.sub(r"\$\(\(([^()]+)\)\)", lambda m: _computed(m, known), text)
        if len(text) > _LONGEST:
            raise ConfigError(
                f"the text has more than {_LONGEST:,} characters once its variables stand in it"
            )
    text = re.sub(r"\((?=--)", "( ", text)
    try:
        words = shlex.split(text)
    except ValueError:  # quotes that do not end: a part of a script
        words = text.replace('"', " ").replace("'", " ").split()
    return [
        part for word in words for part in (word.split() if re.search(r"^--.* |[ =]--", word) else [word])
    ]


def _short(text: str) -> str:
    return text if len(text) < 40 else f"{text[:36]} …"


def _computed(found: re.Match[str], known: Mapping[str, str]) -> str:
    """What the shell computes of whole numbers, by whose names it may call them."""
    text = re.sub(r"[A-Za-z_]\w*", lambda m: known.get(m[0], m[0]), found[1])
    if not re.fullmatch(r"[\d\s+*/-]+", text) or "**" in text:
        return found[0]
    return str(eval(text.replace("/", "//"), {"__builtins__": {}}))


def _shape(run: Pasted, flags: Flags) -> ModelShape | None:
    layers, hidden, heads = (
        flags.number(name, None) for name in ("num-layers", "hidden-size", "num-attention-heads")
    )
    if not (layers and hidden and heads):
        run.unknown.append("the model: the text has no --num-layers, --hidden-size and --num-attention-heads")
        return None
    gated = flags.on("swiglu")
    ffn = flags.number("ffn-hidden-size", int(8 * hidden / 3 / 64) * 64 if gated else 4 * hidden)
    bias, latent = not flags.on("disable-bias-linear"), flags.on("multi-latent-attention")
    queries = flags.number("num-query-groups", 1)
    turned = flags.on("use-rotary-position-embeddings")
    kind = flags.word("position-embedding-type", "rope" if turned else "learned_absolute")
    positions = {"learned_absolute": "learned", "rope": "rotary", "none": "none"}.get(kind, "rotary")
    if kind not in ("learned_absolute", "rope", "none"):
        run.unknown.append(f"--position-embedding-type {kind}: read as rope")
    heads_norm = flags.on("qk-layernorm")
    sizes: dict[str, Any] = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "ffn": ffn,
        "gated": gated,
        "activation": "silu" if gated else "gelu",
        "kv_heads": queries if flags.on("group-query-attention") and not latent else None,
        "norm": "rmsnorm" if flags.word("normalization") == "RMSNorm" else "layernorm",
        "norm_eps": flags.number("norm-epsilon", 1e-5, float),
        "positions": positions,
        "max_seq": flags.number("max-position-embeddings", run.seq or 1024),
        "rope_theta": flags.number("rotary-base", 10000.0, float),
        "rope_scaling": f"llama3:factor={flags.number('rope-scaling-factor', 8.0, float):g},original=8192"
        if flags.on("use-rope-scaling")
        else "",
        "bias": bias,
        "qkv_bias": True if flags.on("add-qkv-bias") and not bias else None,
        "qk_norm": heads_norm and not latent,
        "tied": not flags.on("untie-embeddings-and-output-weights"),
        "dropout": flags.number("hidden-dropout", 0.1, float),
    }
    if flags.number("attention-dropout", 0.1, float) != sizes["dropout"]:
        run.unknown.append("--attention-dropout: read as --hidden-dropout")
    width = flags.number("kv-channels", None)
    sizes |= {"mla": _latent(flags)} if latent else {"head_dim": width}
    if experts := flags.number("num-experts", None):
        sizes["moe"] = _experts(run, flags, experts, layers, ffn)
    if flags.word("experimental-attention-variant") == "gated_delta_net":
        sizes |= _states(run, flags, layers)
    sizes["vocab"] = _vocabulary(run, flags, sizes)
    return preset_of(ModelShape(**sizes))


def _states(run: Pasted, flags: Flags, layers: int) -> dict[str, Any]:
    """Layers with a state in place of attention: those that are 1 of a list, or all but each so many."""
    text = flags.word("linear-attention-freq", "4")
    every = number(text)
    each = (
        [int((i + 1) % every > 0) for i in range(layers)] if every else _ones("linear-attention-freq", text)
    )
    if len(each) != layers or not any(each):
        raise ConfigError(f"linear-attention-freq must be 1 for some of the {layers} layers, got {text}")
    period = next(n for n in range(1, layers + 1) if all(one == each[i % n] for i, one in enumerate(each)))
    names = {
        "heads": "num-value-heads",
        "head_dim": "value-head-dim",
        "groups": "num-key-heads",
        "state": "key-head-dim",
    }
    known = {"heads": 32, "head_dim": 128, "groups": 16, "state": 128}
    found = {name: flags.number(f"linear-{flag}", known[name]) for name, flag in names.items()}
    found |= {"rule": "delta", "kernel": flags.number("linear-conv-kernel-dim", 4)}
    found |= {"gate": flags.on("attention-output-gate")}
    return {"recurrent": found, "windows": [-one for one in each[:period]]}


def _latent(flags: Flags) -> MLA:
    flags.on("rope-type")
    return MLA(
        flags.number("q-lora-rank", None),
        flags.number("kv-lora-rank", 32),
        flags.number("qk-head-dim", 128),
        flags.number("qk-pos-emb-head-dim", 64),
        flags.number("v-head-dim", 128),
    )


def _vocabulary(run: Pasted, flags: Flags, sizes: dict[str, Any]) -> int:
    """Rows of the embedding: the words of a tokenizer, padded. Of one that nobody knows here those of a like preset."""
    kind, known = flags.word("tokenizer-type"), flags.number("vocab-size", None)
    multiple = flags.number("make-vocab-size-divisible-by", 128) * run.layout.get("tp", 1)
    if known is None:
        known = TOKENIZERS.get(kind)
    elif kind == "NullTokenizer":
        known += 1  # its end of document
    if known is None:
        same = ("layers", "hidden", "heads", "ffn", "rope_theta")
        like = [preset for preset in PRESETS.values() if all(getattr(preset, k) == sizes[k] for k in same)]
        known = like[0].vocab if like else 128256
        run.unknown.append(f"the vocabulary, which its tokenizer says: read as {known:,} words")
    return -(-known // multiple) * multiple


def _experts(run: Pasted, flags: Flags, experts: int, layers: int, ffn: int) -> MoE:
    width, top_k = flags.number("moe-ffn-hidden-size", ffn), flags.number("moe-router-topk", 2)
    scores = flags.word("moe-router-score-function", "softmax")
    shared = flags.number("moe-shared-expert-intermediate-size", 0)
    if shared % width:
        run.unknown.append(
            f"--moe-shared-expert-intermediate-size {shared}: no multiple of an expert's {width}"
        )
    dense, every = _where(run, flags.word("moe-layer-freq", "1"), layers)
    kinds = {told: over for over, told in BALANCE.items()}
    kind = flags.word("moe-router-load-balancing-type", "aux_loss")
    before = flags.on("moe-router-pre-softmax")
    for name in (
        "moe-grouped-gemm",
        "moe-token-dispatcher-type",
        "moe-router-dtype",
        "moe-token-drop-policy",
    ):
        flags.on(name)
    coefficient = flags.number("moe-aux-loss-coeff", 0.0, float)
    bias = flags.number("moe-router-bias-update-rate", 1e-3, float)
    return MoE(
        experts,
        top_k,
        width,
        shared_experts=shared // width,
        dense_layers=dense,
        every=every,
        scores=scores,
        normalized=top_k > 1 if scores == "sigmoid" else not before,
        scale=flags.number("moe-router-topk-scaling-factor", 1.0, float),
        groups=flags.number("moe-router-num-groups", 1),
        top_groups=flags.number("moe-router-group-topk", 1),
        capacity=flags.number("moe-expert-capacity-factor", None, float),
        balance_loss=coefficient if kind in kinds else 0.0,
        balance_over=kinds.get(kind, "micro_batch"),
        z_loss=flags.number("moe-z-loss-coeff", 0.0, float),
        bias_rate=bias if flags.on("moe-router-enable-expert-bias") else 0.0,
    )


def _where(run: Pasted, text: str, layers: int) -> tuple[int, int]:
    """How many layers at the start are dense, and of the others one in how many has experts."""
    if number(text) == 1:
        return 0, 1
    if text.isdigit() and int(text) > 1:  # the first of each so many layers there, the last of them here
        if layers % int(text):
            run.unknown.append(f"--moe-layer-freq {text}: read as {layers // int(text)} layers with experts")
        return 0, int(text)
    has = _ones("moe-layer-freq", text)
    first = has.index(1) if 1 in has else layers
    every = has.index(1, first + 1) - first if has.count(1) > 1 else 1
    dense = 0 if first == every - 1 else first
    if [layer >= dense and (layer + 1) % every == 0 for layer in range(layers)] != [bool(one) for one in has]:
        run.unknown.append(f"--moe-layer-freq {text}: read as experts in every layer from {dense} on")
        return dense, 1
    return dense, every


def _ones(flag: str, text: str) -> list[int]:
    """A list as Megatron-LM evaluates it. Raises ConfigError for another text."""
    try:
        return _list(ast.parse(text, mode="eval").body)
    except (SyntaxError, RecursionError, ValueError):
        raise ConfigError(f"{flag} must be a number or a list such as ([0]*3+[1]*58)") from None


def _list(node: ast.AST) -> list[int]:
    """A list of ones and zeros, written with + and *."""
    match node:
        case ast.List(elts=elements):
            return [bool(one.value) for one in elements if isinstance(one, ast.Constant)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _list(left) + _list(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=ast.Constant(value=int(times))) if times <= 1000:
            return (_list(left) * times)[:1000]
    raise ValueError


def _layout(run: Pasted, flags: Flags) -> None:
    layout = run.layout
    for axis, name in {
        "tp": "tensor-model",
        "pp": "pipeline-model",
        "cp": "context",
        "ep": "expert-model",
    }.items():
        layout[axis] = flags.number(f"{name}-parallel-size", 1)
    ways = {told: name for name, told in CONTEXT.items()}
    layout["context"] = ways.get(way := flags.word("cp-comm-type", "p2p"), "ring")
    if way not in ways:
        run.unknown.append(f"--cp-comm-type {way}: read as p2p")
    layout["sp"] = flags.on("sequence-parallel") and layout["tp"] > 1
    layout["micro_batch"] = flags.number("micro-batch-size", 1)
    each = flags.number("expert-tensor-parallel-size", layout["tp"])
    if each == 1 < layout["tp"] and layout["ep"] > 1 and layout["sp"]:
        layout["etp"] = 1
    elif each != layout["tp"] and layout["ep"] > 1:
        run.unknown.append(f"--expert-tensor-parallel-size {each}: read as that of attention, {layout['tp']}")
    shards = {told: stage for stage, told in SHARDED.items()}
    layout["zero"] = int(flags.on("use-distributed-optimizer"))
    if flags.on("use-megatron-fsdp") or flags.on("use-torch-fsdp2"):
        layout["zero"] = shards.get(flags.word("data-parallel-sharding-strategy", "optim_grads_params"), 1)
    _optimizer(run, flags)
    layout["replicate"] = flags.number("num-distributed-optimizer-instances", 1)
    for name in ("overlap-grad-reduce", "overlap-param-gather", "ckpt-format"):
        flags.on(name)
    kind = flags.word("recompute-granularity") or "selective" * flags.on("recompute-activations")
    modules = flags.given.get("recompute-modules", ["core_attn"])
    flags.on("recompute-modules")
    each = flags.number("recompute-num-layers", 1)
    layout["recompute"] = kind if kind in ("full", "selective") else "none"
    if kind == "selective" and modules != ["core_attn"]:
        layout["recompute"] = "+".join(name for name in modules if name in MODULES) or "none"
        run.unknown += [f"--recompute-modules {name}: left out" for name in modules if name not in MODULES]
    if flags.word("recompute-method") == "block" and kind == "full":
        layout["recompute"] += f":{each}"
    elif kind == "full" and each > 1:
        run.unknown.append(f"--recompute-num-layers {each}: read as each layer by itself")


def _optimizer(run: Pasted, flags: Flags) -> None:
    """Adam, or one of its Muons, of which one keeps whole tensors' states on one replica each."""
    name, mode, layout = flags.word("optimizer", "adam"), flags.word("muon-tp-mode", "blockwise"), run.layout
    if "muon" not in name:
        run.unknown += [f"--optimizer {name}: read as AdamW"] if name != "adam" else []
        return
    run.optimizer, layout["muon"] = "muon", "gather"
    if name == "dist_muon" or layout["zero"]:
        layout |= {"muon": "owner", "zero": 1}
        run.unknown.append(
            f"--optimizer {name}: whole tensors' states on ranks: read as zero=1, with one owner each"
        )
    if layout["tp"] > 1 and mode != "duplicated":
        run.unknown.append(f"--muon-tp-mode {mode}: read as duplicated, whole matrices")
    if (steps := flags.number("muon-num-ns-steps", 5)) != 5:
        run.unknown.append(f"--muon-num-ns-steps {steps}: read as 5")


def _stages(run: Pasted, flags: Flags, layers: int) -> None:
    pp, text = run.layout["pp"], flags.word("pipeline-model-parallel-layout")
    first, last = (flags.number(f"decoder-{end}-pipeline-num-layers", 0) for end in ("first", "last"))
    each = flags.number("num-layers-per-virtual-pipeline-stage", 0)
    ranks = flags.number("num-virtual-stages-per-pipeline-rank", 1)
    if text:
        text = re.sub(r"\(([^()]*)\)\*(\d+)", lambda m: m[1] * min(int(m[2]), 1000), text)
        run.stages([sum(int(n or 1) for n in re.findall(r"t(?:\*(\d+))?", part)) for part in text.split("|")])
    elif first or last:
        between = pp - bool(first) - bool(last)
        inner = (layers - first - last) // max(1, between)
        run.stages([*([first] if first else []), *[inner] * between, *([last] if last else [])])
    elif each or ranks > 1:
        run.stages([each or layers // (pp * ranks)] * (layers // each if each else pp * ranks))


def _precision(run: Pasted, flags: Flags) -> None:
    run.precision = "bf16-mixed" if flags.on("bf16") or flags.on("fp16") else "fp32"
    wide = not flags.on("grad-reduce-in-bf16")
    if flags.on("fp16"):
        wide = flags.on("accumulate-allreduce-grads-in-fp32")
    if run.precision != "fp32" and wide:
        run.precision = "bf16-mixed-main-grads"
    if flags.on("fp8-format") or flags.on("fp8-recipe"):
        run.fp8 = flags.word("fp8-recipe", "delayed")
        if run.fp8 not in FP8_RECIPES:
            run.unknown.append(f"--fp8-recipe {run.fp8}: read as delayed")
            run.fp8 = "delayed"
    if flags.on("fp4-format") or flags.on("fp4-recipe"):
        some, last = flags.on("first-last-layers-bf16"), flags.number("num-layers-at-end-in-bf16", 1)
        layers = flags.number("num-layers", 1)
        first = flags.number("num-layers-at-start-in-bf16", 1) if some else 0
        run.fp8 = (
            f"{flags.word('fp4-recipe', 'nvfp4')},wide={last / layers if some else 0:.6g}"
            + f",first={first}" * (first > 0)
        )
    for name in ("fp8-amax-history-len", "fp8-amax-compute-algo"):
        flags.on(name)
    kernels = flags.word("attention-backend", "auto")
    run.attention = "reference" if kernels in ("unfused", "local") else "sdpa"
    fused = {"swiglu": not flags.on("no-bias-swiglu-fusion")}
    fused["cross-entropy"] = flags.on("cross-entropy-loss-fusion")
    fused["weight-gradients"] = not flags.on("no-gradient-accumulation-fusion")
    run.fused = ",".join(name for name, on in fused.items() if on) or "none"
