"""Packed documents: a sample is several of them, each for itself, whatever ranks it is cut over."""
