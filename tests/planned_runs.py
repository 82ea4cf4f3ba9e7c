"""Runs as a command plans them, for what is said of them in other words."""

from playbook.hardware import CLUSTERS
from playbook.layout import Layout
from playbook.planning.calibration import load_calibration
from playbook.planning.job import Job
from playbook.planning.jobs import precision_of
from playbook.planning.simulator import Run
from playbook.shapes import load

LAYOUT = "dp=4,tp=4,pp=4,sp,zero=1,schedule=interleaved,vpp=5,grad_acc=8,micro_batch=2,recompute=selective"


def run(model, layout, seq=4096, precision="bf16", **options):
    """What a command plans."""
    cluster = CLUSTERS["h100-8"]
    job = Job(load(model), Layout.parse(layout).replace(**options), seq=seq, recipe=precision_of(precision))
    return Run(job, cluster, load_calibration(None, cluster.accelerator))


def layout_for(shape):
    """One over as many axes as the shape allows, its stages uneven where its layers say so."""
    whole = [
        shape.heads,
        shape.n_kv_heads,
        shape.vocab,
        *([shape.recurrent.groups] if shape.recurrent else []),
    ]
    tp = next(n for n in (4, 3, 2, 1) if not any(number % n for number in whole))
    experts = "ep=2," if shape.moe else ""
    stages = "pp=4,grad_acc=4," if shape.layers >= 4 else ""
    tokens = "" if shape.recurrent else "cp=2,"
    return f"dp=2,{tokens}tp={tp},{'sp,' if tp > 1 else ''}{experts}{stages}zero=1"
