"""One look for the whole book: colours, figure style, and figures that read in light and in dark.

>>> from playbook.figures import use, display, PALETTE
>>> use()
>>> figure, axes = plt.subplots()
>>> axes.bar(["parameters"], [16], color=PALETTE["parameters"])
>>> display(figure, alt="One bar: parameters take 16 bytes each.")
"""

from playbook.figures.inline import Figure, display
from playbook.figures.style import PALETTE, colour, css_variables, use
from playbook.figures.tables import Table, table

__all__ = ["PALETTE", "Figure", "Table", "colour", "css_variables", "display", "table", "use"]
