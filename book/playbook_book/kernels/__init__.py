"""Kernels that chapters write first, and what looks at kernels: compiled code, sectors of memory, threads one by one."""
