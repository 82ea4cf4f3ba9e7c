"""The library behind the book: one model, one layout, one schedule, one memory model, one trainer.

Importing ``playbook`` stays cheap: no torch until a module that computes is imported.
"""

from playbook.source import show

__all__ = ["show"]
__version__ = "0.1.0"
