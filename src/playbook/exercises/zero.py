"""Exercises of the chapter zero."""
