"""The controls of the memory calculator as a reader meets them: choices, names and sizes come from the library."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from playbook.hardware import ACCELERATORS, RESERVE, UNITS, Accelerator
from playbook.layout import SCHEDULES
from playbook.planning.recipes import RECIPES
from playbook.precision.recipes import FP8_RECIPES
from playbook.registry import places
from playbook.shapes import PRESETS, ModelShape, MoE


@dataclass(frozen=True)
class Control:
    """One setting as a reader meets it.

    ``kind`` is number (slider over ``stops``, and a field), size (the same, of bytes with a unit), choice (a row of
    buttons), select, switch or model (a list of presets, and a text to paste). ``brief`` says
    the value in the heading of a folded group, unless the value is ``quiet``. A control that ``follows`` is derived from
    other sizes of the model until it is set. ``notes`` are what is said of a choice while it is made.
    """

    field: str
    label: str
    help: str
    kind: str = "number"
    stops: tuple[float, ...] = ()
    choices: tuple[tuple[Any, str], ...] = ()
    notes: tuple[tuple[Any, str], ...] = ()
    unit: str = ""
    brief: str = ""
    quiet: Any = None
    follows: bool = False


@dataclass(frozen=True)
class Group:
    """Controls under one heading, if any; a ``folded`` one starts closed. ``empty`` is its brief when all is quiet."""

    title: str
    controls: tuple[Control, ...]
    empty: str = ""
    folded: bool = False


def doublings(low: int, high: int, *, threes: bool = True) -> tuple[int, ...]:
    """Powers of two from ``low`` to ``high`` and, between them, three times powers of two."""
    twos = [2**k for k in range(high.bit_length())]
    both = [*twos, *(3 * n for n in twos)] if threes else twos
    return tuple(sorted({n for n in both if low <= n <= high}))


def of_presets(size: Callable[[ModelShape], float | None], more: Iterable[float] = ()) -> tuple[float, ...]:
    """The values that a size has among the presets, and ``more``."""
    found = (size(shape) for shape in PRESETS.values())
    return tuple(sorted({*(value for value in found if value is not None), *more}))


def start(names: Iterable[str]) -> Group:
    """What every plan starts from, the model and the GPU: always in view, under no heading."""
    gpus = [ACCELERATORS[name] for name in names]
    return Group(
        "",
        (
            Control("model", "Model", "A published model, one by its config.json, or a run of another framework, pasted.",
                    "model"),
            Control("accelerator", "GPU", "Its memory as the driver reports it: the line to stay below.",
                    "select", choices=tuple((gpu.name, gpu.title) for gpu in gpus),
                    notes=tuple((gpu.name, memory_in_words(gpu)) for gpu in gpus)),
            Control("memory", "GPU memory", "That of another GPU, or less of this one, with its unit: 96GB, 89GiB.",
                    "size", stops=(8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 144, 192, 256, 288)),
            Control("reserve", "Kept free", "For what no plan counts: the CUDA context, NCCL's buffers, fragmentation. "
                    f"{100 * RESERVE:g} % of the memory unless you set it.", "size",
                    stops=(0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16)),
            Control("unit", "Unit", "GB are 10⁹ bytes; GiB are 2³⁰, in which nvidia-smi and PyTorch count.", "choice",
                    choices=_same(UNITS)),
        ),
    )  # fmt: skip


def memory_in_words(gpu: Accelerator) -> str:
    """A GPU's memory in both units, which is not the number in its name."""
    gib, gb = (f"{gpu.memory_bytes / UNITS[unit]:.1f} {unit}" for unit in ("GiB", "GB"))
    return f"{gib} = {gb}"


def _sizes() -> Group:
    shape = ModelShape.__dataclass_fields__
    activations, norms = (shape[f].metadata["choices"] for f in ("activation", "norm"))
    return Group(
        "Sizes of the model",
        (
            Control("layers", "Layers", "Transformer blocks, one after the other.",
                    stops=of_presets(lambda s: s.layers, doublings(1, 192)), brief="{} layers"),
            Control("hidden", "Hidden size", "Width of the residual stream.",
                    stops=of_presets(lambda s: s.hidden, doublings(256, 32768)), brief="hidden {}"),
            Control("heads", "Attention heads", "Query heads of each block.",
                    stops=of_presets(lambda s: s.heads, doublings(4, 256)), brief="{} heads"),
            Control("kv_heads", "Key/value heads", "Fewer than query heads is grouped-query attention; 1 is multi-query.",
                    stops=of_presets(lambda s: s.kv_heads, doublings(1, 128)), follows=True),
            Control("head_dim", "Head size", "Width of one head's query and key.",
                    stops=of_presets(lambda s: s.head_dim, doublings(16, 512)), follows=True),
            Control("ffn", "Feed-forward size", "Inner width of the dense MLP.",
                    stops=of_presets(lambda s: s.ffn, doublings(512, 131072)), follows=True),
            Control("vocab", "Vocabulary", "Tokens that the model knows: rows of the embedding and of the head.",
                    stops=of_presets(lambda s: s.vocab, doublings(256, 262144, threes=False))),
            Control("activation", "Activation", "Function inside the MLP. ReLU saves its output only.",
                    "choice", choices=_same(activations)),
            Control("gated", "Gated MLP", "Three matrices instead of two: down(act(gate(x)) · up(x)).", "switch"),
            Control("norm", "Norm", "LayerNorm keeps two statistics per token, RMSNorm one.", "choice",
                    choices=_same(norms)),
            Control("bias", "Biases", "Linear layers and LayerNorm have biases.", "switch"),
            Control("tied", "Tied head", "The output head shares the embedding's table.", "switch"),
            Control("dropout", "Dropout", "Above 0, a mask is kept after attention and MLP (1 byte per element).",
                    stops=of_presets(lambda s: s.dropout, (0, 0.05, 0.2, 0.3))),
        ),
        folded=True,
    )  # fmt: skip


def _experts() -> Group:
    def moe(key: str, more: Iterable[float]) -> tuple[float, ...]:
        return of_presets(lambda s: getattr(s.moe, key) if s.moe else None, more)

    size = MoE.__dataclass_fields__
    scores, balance_over = (size[f].metadata["choices"] for f in ("scores", "balance_over"))
    return Group(
        "Experts",
        (
            Control("moe.experts", "Experts", "MLPs of which the router picks some for each token; 0 is a dense model.",
                    stops=moe("experts", (0, *doublings(2, 512, threes=False))), brief="{} experts", quiet=0),
            Control("moe.top_k", "Experts per token", "How many experts work on each token.",
                    stops=tuple(range(1, 17)), brief="top {}", quiet=0),
            Control("moe.ffn", "Expert width", "Inner width of one expert.", stops=moe("ffn", doublings(256, 32768))),
            Control("moe.shared_experts", "Shared experts", "Experts that see every token.", stops=tuple(range(9))),
            Control("moe.dense_layers", "Dense layers", "First blocks that keep an ordinary MLP.",
                    stops=tuple(range(17))),
            Control("moe.every", "Every n-th block", "Of the other blocks, each n-th has experts: 2 is every second one.",
                    stops=tuple(range(1, 9)), brief="1 in {} blocks", quiet=1),
            Control("moe.scores", "Router's scores", "A softmax over the experts, or a sigmoid of each.", "choice",
                    choices=_same(scores)),
            Control("moe.normalized", "Weights sum to 1", "The chosen scores are divided by their sum, which is kept.",
                    "switch"),
            Control("moe.balance_loss", "Balancing loss", "Coefficient; above 0, loads are kept for backward.",
                    stops=moe("balance_loss", (0, 0.0001, 0.001, 0.01, 0.1))),
            Control("moe.balance_over", "Balanced over", "Tokens whose load the balancing loss evens out.", "select",
                    choices=tuple((over, _TOKENS.get(over, over)) for over in balance_over)),
            Control("moe.z_loss", "z-loss", "Coefficient; above 0, the router's logits are kept for backward.",
                    stops=moe("z_loss", (0, 0.0001, 0.001, 0.01))),
        ),
        empty="none, a dense model",
        folded=True,
    )  # fmt: skip


def _parallelism() -> Group:
    axis = doublings(1, 64)
    return Group(
        "Parallelism",
        (
            Control("gpus", "GPUs", "All of them; data parallelism takes what the other axes leave.",
                    stops=doublings(1, 16384)),
            Control("dp", "Data parallel (DP)", "Replicas, each with its own samples.",
                    stops=doublings(1, 2048), brief="DP {}", quiet=1),
            Control("tp", "Tensor parallel (TP)", "Ranks that share every matrix; fast links only, so at most a node.",
                    stops=doublings(1, 64), brief="TP {}", quiet=1),
            Control("sp", "Sequence parallel", "Between tensor-parallel regions each rank keeps its share of the tokens.",
                    "switch", brief="SP", quiet=False),
            Control("cp", "Context parallel (CP)", "Ranks that share the tokens of each sample, attention included.",
                    stops=axis, brief="CP {}", quiet=1),
            Control("pp", "Pipeline stages (PP)", "Ranks that hold consecutive layers.",
                    stops=axis, brief="PP {}", quiet=1),
            Control("schedule", "Schedule", "Order of forward and backward passes: how many micro-batches are in flight.",
                    "select", choices=tuple((s, _SCHEDULES.get(s, s.upper())) for s in SCHEDULES)),
            Control("vpp", "Model chunks (VPP)", "Pieces of the model on each stage, for interleaved schedules.",
                    stops=(1, 2, 3, 4, 5, 6, 8, 10, 12, 16), brief="VPP {}", quiet=1),
            Control("ep", "Expert parallel (EP)", "Ranks over which the experts are spread; divides DP · CP.",
                    stops=doublings(1, 256), brief="EP {}", quiet=1),
            Control("etp", "Experts over TP", "Each expert cut as attention is, or whole: EP then divides DP · CP · TP.",
                    "choice", choices=((0, "cut"), (1, "whole")), brief="whole experts", quiet=0),
            Control("zero", "ZeRO", "What the replicas share: 1 optimizer states, 2 also gradients, 3 also parameters.",
                    "choice", choices=tuple((stage, str(stage)) for stage in range(4)), brief="ZeRO-{}", quiet=0),
            Control("replicate", "Replicas (HSDP)", "ZeRO shards over DP / this many neighbours; divides DP.",
                    stops=doublings(1, 256), brief="{} groups of shards", quiet=1),
        ),
        empty="one GPU",
    )  # fmt: skip


_SCHEDULES = {
    "naive": "one after another", "interleaved": "interleaved 1F1B", "breadth-first": "breadth-first",
    "dualpipe": "DualPipe", "dualpipev": "DualPipeV",
}  # fmt: skip


_TOKENS = {"micro_batch": "micro-batch", "global_batch": "global batch"}


def _batch() -> Group:
    return Group(
        "Batch",
        (
            Control("micro_batch", "Micro-batch", "Samples in one forward pass.",
                    stops=doublings(1, 256), unit="samples", brief="micro-batch {}"),
            Control("grad_acc", "Gradient accumulation", "Micro-batches before each optimizer step, on every replica.",
                    stops=doublings(1, 512), brief="× {}", quiet=1),
            Control("seq", "Sequence length", "Tokens of one sample.",
                    stops=doublings(128, 2**20), unit="tokens", brief="{} tokens"),
        ),
    )  # fmt: skip


#: What Megatron-LM fuses by default or by a flag, as `playbook memory --fused` says it.
MEGATRON = "cross-entropy,swiglu,weight-gradients"


#: What is recomputed, from little to all: modules as Megatron-LM names them.
_AGAIN = (
    ("none", "none"), ("selective", "attention core (selective)"), ("layernorm+moe_act", "norms, experts' activations"),
    ("layernorm+mla_up_proj+moe_act", "as DeepSeek-V3: norms, latents' projections, activations"),
    ("mlp", "MLP"), ("core_attn+mlp", "attention core and MLP"), ("moe", "experts"),
    ("core_attn+mlp+moe", "attention core, MLP and experts"),
    *((f"full:{n}", f"of each stage the first {n} blocks") for n in (1, 2, 4, 8, 16, 32)),
    ("full", "whole blocks (full)"), ("offload", "none, kept in CPU memory"),
    ("full+offload", "full, inputs in CPU memory"),
)  # fmt: skip


def _savers() -> Group:
    return Group(
        "Memory savers",
        (
            Control("recompute", "Recomputation", "What backward computes again: the attention core, modules, or all.",
                    "select", choices=_AGAIN, brief="{} recomputation", quiet="none"),
            Control("attention", "Attention", "Flash kernels never write the matrix of scores.",
                    "choice", choices=(("sdpa", "Flash"), ("reference", "scores in memory")),
                    brief="{}", quiet="sdpa"),
            Control("fused", "Fused kernels", "One kernel each for SwiGLU, norms and the loss, which keep less.",
                    "choice", choices=(("none", "none"), ("all", "all"), (MEGATRON, "Megatron-like")),
                    brief="{} fused", quiet="none"),
            Control("offload", "Optimizer on CPU", "Master weights and moments stay in the host's memory.",
                    "switch", brief="CPU offload", quiet=False),
            Control("bucket_mb", "Bucket", "Size of one communication bucket of gradients.",
                    stops=(1, 5, 10, 25, 40, 50, 100, 200, 500, 1000), unit="MB"),
        ),
        empty="none",
    )  # fmt: skip


def precisions() -> tuple[Control, ...]:
    """What learns, in what it is kept, and in what linear layers multiply."""
    recipes = tuple((r.name, f"{r.name}, {r.states.total} B") for r in RECIPES.values())
    ranks = tuple((f"lora:{r}", f"LoRA of rank {r}") for r in (4, 8, 16, 32, 64, 128, 256))
    some = ("mlp+norms", "attention+norms", "embedding+head", "head")
    parts = tuple((p, p.replace("+", ", ").replace("mlp", "MLP")) for p in some)
    return (
        Control("train", "What learns", "All weights, adapters beside frozen layers, or parts of the model.", "select",
                choices=(("full", "all weights"), *ranks, *parts), brief="{}", quiet="full"),
        Control("precision", "Recipe", "Bytes per parameter with Adam, and of what is computed.", "select",
                choices=recipes, brief="{}"),
        Control("fp8", "FP8 products", "Recipe by which linear layers multiply: kept inputs, scales, copies of weights.",
                "select", choices=(("", "none"), *_same((*FP8_RECIPES, *places("recipe")))), brief="products in {}",
                quiet=""),
    )  # fmt: skip


def _precision() -> Group:
    return Group(
        "Precision",
        (
            *precisions(),
            Control(
                "optimizer_bytes",
                "Optimizer bytes (k)",
                "Per parameter, master copy included: Adam 12, momentum 8, SGD 4 in mixed precision.",
                stops=(0, 2, 4, 6, 8, 12, 16),
                unit="bytes",
            ),
        ),
    )


def _same(names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, name) for name in names)


def groups() -> tuple[Group, ...]:
    """All controls, in the order of the page."""
    return (
        start(name for name in ACCELERATORS if name != "cpu"),
        _parallelism(),
        _batch(),
        _savers(),
        _precision(),
        _sizes(),
        _experts(),
    )
