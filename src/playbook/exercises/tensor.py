"""Exercises of the chapter tensor."""
