"""Exercises of the chapter sequence."""
