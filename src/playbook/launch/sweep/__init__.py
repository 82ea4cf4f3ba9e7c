"""A table of layouts, run for real one after the other or as jobs of a cluster, resumable: ``playbook sweep``.

    results.py     sweep.json, which says what all layouts of a folder share, and results.csv, a line for each of them
    task.py        one configuration: ``playbook train`` in a process of its own, and what its log says
    jobs.py        tasks as jobs of a Slurm cluster, or as processes of this machine that outlive the sweep

Beside these a sweep's folder has runs/ (a log of steps for each run), logs/ (what runs printed), jobs.json (which jobs
there are) and jobs/ (of each its task, what it printed, and its result).
"""
