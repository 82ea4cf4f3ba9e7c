"""Published tokens per second of frameworks on A100 and H100: rows of `published`, as their authors print them.

Standard library only.
"""

#: MosaicML's LLM Foundry, scripts/train/benchmarking/README.md (2023): MPT models with PyTorch's FSDP, and FlashAttention
#: as a Triton kernel. By size: layers, hidden, heads.
MPT = {
    "125m": (12, 768, 12), "350m": (24, 1024, 16), "760m": (24, 1536, 12), "1b": (24, 2048, 16), "3b": (32, 2560, 20),
    "7b": (32, 4096, 32), "13b": (40, 5120, 40), "30b": (48, 7168, 56), "70b": (80, 8192, 64),
}  # fmt: skip
#: About a third of its rows, of all sizes: model, tokens of a sample, GPUs, whether activations are recomputed in full,
#: micro-batch, micro-batches, tokens/s of a GPU.
FSDP_H100 = (
    ("70b", 2048, 64, True, 8, 4, 1039),
    ("70b", 2048, 32, True, 2, 16, 882),
    ("30b", 8192, 8, True, 1, 21, 1384),
    ("30b", 2048, 32, True, 14, 3, 2308),
    ("30b", 2048, 8, True, 3, 21, 2002),
    ("13b", 32768, 8, True, 1, 3, 1976),
    ("13b", 4096, 8, True, 10, 3, 4717),
    ("13b", 2048, 64, False, 2, 1, 4800),
    ("13b", 2048, 8, False, 2, 1, 4792),
    ("7b", 65536, 8, True, 1, 2, 1956),
    ("7b", 8192, 8, True, 8, 2, 6935),
    ("7b", 2048, 8, False, 6, 1, 10643),
    ("7b", 1024, 8, True, 64, 2, 10203),
    ("3b", 16384, 8, False, 1, 6, 11152),
    ("3b", 4096, 8, False, 5, 6, 20964),
    ("3b", 2048, 64, False, 6, 3, 22525),
    ("3b", 512, 8, False, 40, 6, 27965),
    ("1b", 32768, 8, False, 1, 4, 12025),
    ("1b", 8192, 8, False, 3, 4, 29157),
    ("1b", 2048, 64, False, 20, 1, 44402),
    ("1b", 1024, 8, False, 18, 4, 48910),
    ("760m", 16384, 8, False, 3, 2, 27815),
    ("760m", 2048, 32, False, 24, 1, 67971),
    ("760m", 512, 8, False, 96, 2, 83749),
)
#: The same in FP8.
FSDP_H100_FP8 = (
    ("3b", 32768, 8, True, 3, 6, 5856),
    ("3b", 8192, 8, False, 3, 6, 19146),
    ("3b", 2048, 8, False, 10, 6, 30586),
    ("3b", 512, 8, False, 40, 6, 36527),
    ("1b", 32768, 8, False, 1, 4, 12580),
    ("1b", 8192, 8, False, 2, 4, 32010),
    ("1b", 512, 8, False, 56, 4, 70315),
    ("350m", 16384, 8, False, 2, 4, 42929),
    ("350m", 512, 8, False, 56, 4, 154420),
)
#: The same on A100 with 200 Gb/s for each GPU.
FSDP_A100 = (
    ("70b", 2048, 64, True, 8, 4, 410),
    ("70b", 2048, 32, True, 2, 16, 373),
    ("30b", 8192, 8, True, 1, 21, 574),
    ("30b", 4096, 8, True, 1, 21, 814),
    ("30b", 2048, 8, True, 3, 21, 916),
    ("30b", 512, 8, True, 12, 21, 967),
    ("13b", 32768, 8, True, 1, 3, 1016),
    ("13b", 8192, 8, True, 5, 3, 1795),
    ("13b", 2048, 8, False, 2, 3, 2262),
    ("7b", 65536, 8, True, 1, 2, 1013),
    ("7b", 16384, 8, True, 4, 2, 2453),
    ("7b", 4096, 8, True, 16, 2, 3684),
    ("7b", 2048, 8, False, 6, 2, 4641),
    ("3b", 32768, 8, True, 3, 6, 3029),
    ("3b", 16384, 8, False, 1, 6, 5529),
    ("3b", 4096, 8, False, 5, 6, 9457),
    ("3b", 512, 8, False, 40, 6, 12127),
    ("1b", 65536, 8, True, 1, 2, 3044),
    ("1b", 16384, 8, False, 2, 4, 9956),
    ("1b", 2048, 8, False, 14, 4, 20513),
    ("1b", 512, 8, False, 56, 4, 23148),
    ("760m", 8192, 8, False, 6, 2, 20933),
    ("760m", 2048, 8, False, 24, 2, 32434),
    ("350m", 32768, 8, False, 2, 2, 13652),
    ("350m", 4096, 8, False, 16, 2, 49555),
    ("350m", 512, 8, False, 128, 2, 69330),
    ("125m", 65536, 8, False, 1, 2, 20368),
    ("125m", 8192, 8, False, 8, 2, 90392),
    ("125m", 2048, 8, False, 32, 2, 141737),
    ("125m", 512, 8, False, 128, 2, 165681),
)
#: NVIDIA's NeMo, docs/source/performance/performance_summary.md (container 24.07), on DGX-H100 in FP8, models whose sizes
#: are published: layers, hidden, heads, key-value heads, ffn, vocabulary, gated; GPUs, batch, micro-batch, tokens of a
#: sample, tp, pp, cp, chunks, tokens/s of a GPU.
NEMO = (
    ("GPT-3 5B", 24, 4096, 32, 32, 16384, 51200, False, 64, 2048, 4, 2048, 1, 1, 1, 1, 22521),
    ("GPT-3 20B", 44, 6144, 48, 48, 24576, 51200, False, 64, 256, 2, 2048, 2, 1, 1, 1, 5851),
    ("GPT-3 175B", 96, 12288, 96, 96, 49152, 51200, False, 128, 256, 1, 2048, 4, 8, 1, 6, 726),
    ("GPT-3 175B", 96, 12288, 96, 96, 49152, 51200, False, 512, 2048, 2, 2048, 4, 8, 1, 6, 782),
    ("Llama 2 7B", 32, 4096, 32, 32, 11008, 32000, True, 8, 128, 1, 4096, 1, 1, 1, 1, 16847),
    ("Llama 2 13B", 40, 5120, 40, 40, 13824, 32000, True, 16, 128, 1, 4096, 1, 4, 1, 10, 8646),
    ("Llama 2 70B", 80, 8192, 64, 8, 28672, 32000, True, 64, 128, 1, 4096, 4, 4, 1, 20, 1707),
    ("Nemotron 8B", 32, 4096, 32, 32, 16384, 256000, False, 64, 256, 4, 4096, 2, 1, 1, 1, 12701),
    ("Nemotron 340B", 96, 18432, 96, 8, 73728, 256000, False, 128, 32, 1, 4096, 8, 8, 1, 12, 322),
    ("Llama 3 8B", 32, 4096, 32, 8, 14336, 128256, True, 8, 128, 1, 8192, 1, 1, 2, 1, 12036),
    ("Llama 3 70B", 80, 8192, 64, 8, 28672, 128256, True, 64, 128, 1, 8192, 4, 4, 2, 5, 1533),
)
