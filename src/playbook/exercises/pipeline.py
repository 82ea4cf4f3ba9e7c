"""Exercises of the chapter pipeline."""
