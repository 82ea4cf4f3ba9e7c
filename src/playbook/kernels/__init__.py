"""Kernels in Triton, one in a file: its formula, the bytes it moves, its twin in PyTorch, and what autograd needs."""
