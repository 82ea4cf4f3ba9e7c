"""Exercises of the chapter profiling."""
