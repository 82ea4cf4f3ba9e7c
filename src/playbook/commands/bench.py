"""``playbook bench``: ours beside the best public peer."""

from __future__ import annotations

import argparse
from typing import Any

from playbook._json import to_json


def add(commands: Any) -> None:
    p = commands.add_parser(
        "bench",
        help="measure ours against the best public peer, side by side",
        description="Alternate ours and a peer in one run and print the ratio of medians (below 1: ours is faster).",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    p.add_argument(
        "what", choices=["train"], help="train: one model's forward and backward, and recomputation"
    )
    p.add_argument("--model", default="tiny", metavar="M", help="preset name, TOML file or inline JSON")
    p.add_argument("--micro-batch", type=int, default=4, metavar="N", help="samples")
    p.add_argument("--seq", type=int, default=256, metavar="N", help="tokens per sample")
    p.add_argument("--repeats", type=int, default=9, metavar="N", help="turns; the median counts")
    p.add_argument("--device", help="cpu or cuda (default: cuda when there is one)")
    p.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    p.set_defaults(run=_bench)


def _bench(args: argparse.Namespace) -> int:
    from playbook.errors import ConfigError
    from playbook.shapes import load

    shape = load(args.model)
    for field in ("micro_batch", "seq", "repeats"):
        if getattr(args, field) < 1:
            raise ConfigError(f"{field} is {getattr(args, field)}, but must be at least 1")
    if args.seq > shape.max_seq:
        raise ConfigError(
            f"seq is {args.seq}, but this model has positions for at most max_seq={shape.max_seq} tokens"
        )

    from playbook.bench import bench_train, report_train
    from playbook.training.trainer import check_device, default_device

    device = args.device or default_device()
    check_device(shape, device)
    result = bench_train(shape, args.micro_batch, args.seq, args.repeats, device)
    print(to_json(result) if args.json else report_train(result))
    return 0
