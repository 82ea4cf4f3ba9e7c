"""Exercises of the chapters: what a reader hands in is graded, and a known mistake gets a hint, never the answer.

    from playbook_book.exercises import check
    check("zero.traffic", 1.5e9)            # a number
    check("pipeline.scale", accumulate)     # a function, written or repaired by the reader

The questions and their solutions stand in the chapters. The module of a chapter grades the answers.
"""

from playbook_book.exercises.exercise import Exercise, NotYet
from playbook_book.exercises.grading import Verdict, check, exercises, grade

__all__ = ["Exercise", "NotYet", "Verdict", "check", "exercises", "grade"]
