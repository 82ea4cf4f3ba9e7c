"""Instruments that one chapter looks through."""
