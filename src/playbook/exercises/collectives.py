"""Exercises of the chapter collectives."""
