"""Exercises of the chapter memory."""
