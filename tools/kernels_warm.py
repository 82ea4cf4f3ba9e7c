"""Imported by the fork server: what chapters, their ranks and Sphinx import in the end, once for all of them.

Whatever looks at its import for the IPython that runs stays out: ipywidgets, the backend of figures.
"""

import importlib
import os

os.environ.pop("PYTHONWARNINGS", None)
os.environ["PYTHONPATH"] = os.environ["PYTHONPATH"].partition(os.pathsep)[2]  # kernels need no tools
# Threads that wait for their turn sleep: spinning costs chapters minutes on a machine that does other things as well.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")  # as in a kernel

KERNEL = ("ipykernel.kernelapp", "nbclient", "matplotlib.pyplot", "playbook.cli", "playbook.figures")
SPHINX = ("sphinx.application", "jupyter_book.config", "myst_nb", "sphinx_book_theme")
for module in (*KERNEL, *SPHINX):
    importlib.import_module(module)
importlib.import_module("playbook.launch.warm_process").warm_up()
