"""Exercises of the chapter context."""
