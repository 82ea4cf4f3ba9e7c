"""``playbook bench final-losses``: where training ends that sends less, beside all-reduce, on the same tokens.

All begin with the same ``start`` steps of whole gradients, which are trained once; bytes are those of the steps after.
The loss at the end is that of the one model that is kept: of replicas that are apart, their average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from playbook import launch
from playbook.bench import provenance
from playbook.layout import Layout
from playbook.parallel.mesh import Mesh
from playbook.planning.communication import ring_bytes_sent
from playbook.shapes import ModelShape
from playbook.training.checks import check_fit
from playbook.training.config import TrainConfig
from playbook.training.data import load_corpus
from playbook.training.trainer import Trainer, make_trainer

#: What is compared, unless others are asked for.
METHODS = (
    "local:H=16", "slowmo:H=16", "diloco:H=16", "gossip:one-peer-exponential", "powersgd:r=4", "topk:0.01",
)  # fmt: skip
_TIMEOUT = 7200.0


def bench_final_losses(
    shape: ModelShape, config: TrainConfig, ranks: Sequence[int], methods: Sequence[str], start: int
) -> dict[str, Any]:
    """Final losses in nats, and bytes that a rank has sent, of all-reduce and every one of ``methods``.

    ``config`` is that of a run on one process; every number of ``ranks`` trains it as so many replicas, on CPUs over
    gloo. Raises ConfigError and LayoutError for methods, models or batches that cannot be.
    """
    configs = {n: [config_of(config, n, how) for how in ("all-reduce", *methods)] for n in ranks}
    for one in (one for some in configs.values() for one in some):
        one.layout.check(shape, seq=one.seq)
        check_fit(shape, load_corpus(), one)
    groups = []
    for n, (whole, *others) in configs.items():
        told = launch.run(train_each, shape, whole, others, start, ranks=n, timeout=_TIMEOUT).values
        groups.append({"ranks": n, **told[0], "same_on_all_ranks": _same([one["rows"] for one in told])})
    return {
        "provenance": provenance("cpu"),
        "model": shape.name,
        "parameters": shape.num_parameters,
        **{name: getattr(config, name) for name in ("steps", "global_batch", "seq", "lr")},
        "start": start,
        "groups": groups,
    }


def config_of(config: TrainConfig, n: int, how: str) -> TrainConfig:
    """A run of ``config`` as n replicas that hear of each other by the method ``how``."""
    return replace(config, layout=Layout(dp=n, data_parallel=how), micro_batch=None)


def train_each(
    shape: ModelShape, whole: TrainConfig, others: Sequence[TrainConfig], start: int
) -> dict[str, Any]:
    """In one rank: the common steps, and from there all-reduce and each of ``others`` to the end."""
    corpus = load_corpus()
    with launch.process_group() as world:
        torch.set_num_threads(1)

        def trainer_of(config: TrainConfig) -> Trainer:
            return make_trainer(shape, corpus, config, Mesh(config.layout))

        common = trainer_of(whole)
        while common.step_count < start:
            common.step()
        begun, state = held_out(common), common.engine.state_dict()
        step_bytes = ring_bytes_sent("all_reduce", shape.num_parameters, 4, world.size, world.rank)
        rows = []
        for config in (whole, *others):
            trainer = trainer_of(config)
            trainer.engine.load_state_dict(state)
            trainer.step_count = start
            trainer.run()
            (replicas,) = trainer.engine.sets
            network = getattr(replicas, "network", None)
            after = network.sent[0] if network else (config.steps - start) * step_bytes
            row = {"method": config.layout.data_parallel, "loss": held_out(trainer)}
            rows.append(row | {"sent": int(after)})
            del trainer, replicas
        return {"loss_after_start": begun, "sent_in_start": int(start * step_bytes), "rows": rows}


def held_out(trainer: Trainer) -> float:
    """The mean loss over windows of the text that are drawn after those of all steps, of the model that this rank has."""
    batches = [trainer.batches.batch(trainer.config.steps + i) for i in range(8)]
    with torch.no_grad():
        return sum(trainer.model.loss(x, y)[0].item() / y.numel() for x, y in batches) / len(batches)


def _same(told: Sequence[Sequence[dict[str, Any]]]) -> bool:
    """Whether all ranks end with one model: within what rounding makes of losses."""
    return all(
        abs(one["loss"] - first["loss"]) < 1e-5
        for rows in told
        for one, first in zip(rows, told[0], strict=True)
    )


def report_final_losses(result: dict[str, Any]) -> str:
    """The result of ``bench_final_losses`` as tables for people."""
    lines = [
        f"{result['model']}, {result['parameters']:,} parameters, {result['steps']} steps of {result['global_batch']} × "
        f"{result['seq']} tokens, the first {result['start']} with whole gradients in all. Bytes are those of a rank in "
        "the steps after."
    ]
    for group in result["groups"]:
        whole, first = group["rows"][0], group["sent_in_start"]
        lines.append(
            f"\n{group['ranks']} workers; after the first steps the loss is {group['loss_after_start']:.3f}"
        )
        head = f"{'loss':>7} {'to all-reduce':>14} {'MB sent':>9} {'fewer':>7} {'in the whole run':>17}"
        lines.append(f"  {'':30} {head}")
        for row in group["rows"]:
            name = "all-reduce" if row is whole else row["method"]
            apart, sent = row["loss"] - whole["loss"], row["sent"]
            fewer, in_all = whole["sent"] / sent, (first + whole["sent"]) / (first + sent)
            cells = f"{row['loss']:7.3f} {apart:+14.3f} {sent / 1e6:9.1f} {fewer:6.1f}× {in_all:16.1f}×"
            lines.append(f"  {name:30} {cells}")
    return "\n".join(lines)
