#!/usr/bin/env python
"""torchrun whose ranks are forked from it, once it has imported PyTorch: agents, rendezvous and restarts are its own.

Of ``TOGETHER``, in a folder of their own, none begins before all have come so far.
"""

import gc
import os
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path

gc.disable()  # nothing that is imported becomes garbage

from torch.distributed import run  # noqa: E402
from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: E402

if "train" in sys.argv:
    import torch._dynamo  # noqa: F401 (any optimizer imports it)

    import playbook.commands.training  # noqa: F401

gc.freeze()
gc.enable()


def rank(*command: str) -> None:
    """What ``python COMMAND`` does, which is ``-u PROGRAM ARGUMENTS…`` or ``-u -m MODULE ARGUMENTS…``: it ends by a
    signal as any program, not as an agent, and prints what it raises, of which PyTorch would leave a file behind."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    module = command[1] == "-m"
    sys.argv = list(command[1 + module :])
    try:
        (runpy.run_module if module else runpy.run_path)(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code:
            os._exit(end.code)
    except Exception:
        traceback.print_exc()
        os._exit(1)


def forked(config: LaunchConfig, entrypoint: str) -> elastic_launch:
    config.start_method = "fork"
    return elastic_launch(config, rank)


if __name__ == "__main__":
    run.elastic_launch = forked
    if "TOGETHER" in os.environ:
        Path(f"torchrun-{os.getpid()}").touch()
        while len(list(Path().glob("torchrun-*"))) < int(os.environ["TOGETHER"]):
            time.sleep(0.01)
    run.main()
