"""Exercises of the chapter recomputation."""
