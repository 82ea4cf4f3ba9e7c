"""Exercises for a class: packs to hand out, and what comes back graded."""
