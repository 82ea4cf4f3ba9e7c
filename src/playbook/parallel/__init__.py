"""Parallel training: one file for each technique, applied to a model that knows nothing of them."""
