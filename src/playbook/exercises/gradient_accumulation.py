"""Exercises of the chapter gradient-accumulation."""
