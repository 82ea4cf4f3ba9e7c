"""Exercises of the chapter ring-all-reduce."""
