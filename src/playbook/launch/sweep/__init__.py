"""A table of layouts, run for real one after the other or as jobs of a cluster, resumable: ``playbook sweep``.

    layouts.py     what is run: layouts from a list or a grid, and the specification that all of them share
    results.py     results.csv: whole lines, whatever happens; the last line of a configuration counts
    runs.py        one configuration: ``playbook train`` in a process of its own, and what its log says
    jobs.py        the same through submitit, on a Slurm cluster or as processes of this machine

A sweep has a folder: sweep.json (the specification), results.csv, runs/ (a log of steps for each run), logs/ (what runs
printed), jobs/ and jobs.json (those of submitit).
"""
