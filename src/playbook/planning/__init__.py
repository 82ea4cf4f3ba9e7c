"""Costs predicted without running: FLOPs, memory, communication. Standard library only."""
