"""Exercises of the chapter zero-bubble."""
