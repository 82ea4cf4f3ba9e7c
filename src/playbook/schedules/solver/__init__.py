"""Schedules made for given times and a limit of memory: a heuristic, and an integer program. Found by name."""
