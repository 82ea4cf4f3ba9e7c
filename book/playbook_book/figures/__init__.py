"""Drawings of one chapter each."""
