"""What the options of techniques can be: the choices of `Layout`'s fields, and of what AdamW keeps."""

from __future__ import annotations

#: How replicas without ZeRO add up gradients, the naive way first.
DATA_PARALLEL = ("naive", "overlapped", "bucketed")
#: How messages and products of tensor parallelism share the time: one after the other, side by side, or in chunks.
TENSOR_OVERLAP = ("none", "async", "chunked")
#: When ZeRO-1 and 2 fetch the parameters that other ranks have updated.
GATHER = ("after", "lazily")
#: How tokens reach experts on other ranks: all go to all ranks (the naive way), each row to the rank of its expert, or
#: each token to the nodes of its experts first.
DISPATCH = ("gather", "all-to-all", "two-step")
#: Bytes of a gradient bucket, and of the first one: PyTorch's own.
BUCKET = 25 * 2**20
FIRST_BUCKET = 2**20
#: Elements that the optimizer of a 16-bit model updates at a time: their gradients exist in fp32 for that long.
OPTIMIZER_CHUNK = 2**24
#: What AdamW's first and second moment are kept in, by name: all fp32, as DeepSeek-V3, or as FP8-LM.
MOMENTS = {"fp32": ("fp32", "fp32"), "bf16": ("bf16", "bf16"), "fp8": ("e4m3", "fp16")}
#: What the masters of 16-bit weights can be kept in.
MASTERS = ("fp32", "fp16", "bf16")
