"""What the book's labs, and parts of the core that few runs need, offer to the rest: the one place that names both.
Nothing is imported before it is asked for: who runs 1F1B loads no other schedule."""

from playbook.registry import register

register(
    {
        "schedule": {
            "naive": "playbook.schedules.afab:naive",
            "afab": "playbook.schedules.afab:afab",
            "1f1b": "playbook.schedules.one_f_one_b:one_f_one_b",
            "interleaved": "playbook.schedules.interleaved:interleaved",
            "zb-h1": "playbook.schedules.zero_bubble:zb_h1",
            "zb-h2": "playbook.schedules.zero_bubble:zb_h2",
            "zb-v": "playbook.schedules.zero_bubble:zb_v",
            "dualpipe": "playbook.schedules.dualpipe:dualpipe",
            "dualpipev": "playbook.schedules.dualpipe:dualpipe_v",
            "fitted": "playbook.schedules.solver.heuristic:zero_bubble",
            "exact": "playbook.schedules.solver.exact:solve",
        },
        "schedule check": {"own": "playbook.schedules.validate:check"},
        "kernels": {"fused": "playbook.kernels.ops:FusedOps"},
        "fp8": {
            "layers": "playbook.model.fp8:use_fp8",
            "gathers": "playbook.training.fp8_gathers:FP8Gathers",
            "sent": "playbook.planning.fp8_traffic:scales",
            "gathered": "playbook.planning.fp8_traffic:gathered_bytes",
            "quantize": "playbook.kernels.quantize:quantize",
            "quantize_both": "playbook.kernels.quantize:quantize_both",
            "scales": "playbook.kernels.quantize:scales_by_kernel",
            "requantize_columns": "playbook.kernels.quantize:requantize_columns",
            "turn": "playbook.kernels.quantize:turn",
            "product": "playbook.kernels.fp8_matmul:fp8_matmul",
            "state": "playbook.precision.products:narrow",
        },
        "recipe": {
            "nvfp4": "playbook.precision.four_bits:nvfp4",
            "mxfp4": "playbook.precision.four_bits:mxfp4",
        },
        "fp4": {
            "layers": "playbook.model.fp4:use_fp4",
            "check": "playbook.planning.four_bits:check",
            "copies": "playbook.planning.four_bits:copies",
            "told": "playbook.planning.four_bits:told",
            "tensor": "playbook.planning.four_bits:by_precision",
        },
        "data parallel": {
            "method": "playbook.decentralized.methods:parse",
            "replicas": "playbook.decentralized.strategies:replicas",
        },
        "model": {
            "config.json": "playbook.huggingface:shape_of",
            "presets": "playbook.planned_presets:SIZES",
            "recurrent": "playbook.recurrent:Recurrent",
        },
        "recurrent": {
            "kept": "playbook.planning.recurrent:kept",
            "gated": "playbook.planning.recurrent:gated",
            "backward": "playbook.planning.recurrent:backward",
            "flops": "playbook.planning.recurrent:flops",
            "passes": "playbook.planning.recurrent:passes",
        },
        "documents": {
            "attention": "playbook.documents.attention:attention",
            "ends": "playbook.documents.attention:ends",
            "hidden": "playbook.documents.attention:hidden",
            "own": "playbook.documents.attention:own_documents",
            "batches": "playbook.documents.packing:PackedBatches",
            "check": "playbook.documents.packing:check",
        },
        "rope": {
            "check": "playbook.rope_scaling:check",
            "frequencies": "playbook.rope_scaling:frequencies",
        },
        "kept": {"offload": "playbook.model.offload:in_cpu_memory"},
        "train": {
            "some": "playbook.model.lora:freeze",
            "frozen": "playbook.model.lora:FrozenShards",
            "muon": "playbook.training.muon:of_run",
        },
        "muon": {
            "check": "playbook.planning.muon:check",
            "sent": "playbook.planning.muon:sent",
            "states": "playbook.planning.muon:states",
            "working": "playbook.planning.muon:working",
            "seconds": "playbook.planning.muon:seconds",
        },
    }
)
