"""Ways to look for the fastest layout, set side by side. A chapter opens this lab; the core does not know it.

landscape.py   the layouts of a problem as choices, and an evaluator that counts
methods.py     methods that propose layouts: exhaustive, bounds, random, one at a time, evolution, policy gradient
compare.py     all of them on the same problems: evaluations that they take, and regret
partition.py   which blocks go to which stage: dynamic programming, integer programming, brute force
"""
