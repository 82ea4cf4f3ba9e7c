"""Exercises of the chapter first-steps."""
