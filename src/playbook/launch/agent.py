"""torchrun for one node of a cold launch, and the end of all that it started: ``python -m playbook.launch.agent …``.

torchrun gives each rank a session of its own and knows nothing of what ranks start. Here whatever loses its parent
becomes a child of this process, which ends everything once torchrun has ended, or when its own parent says so or is gone.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys

from playbook.launch.processes import adopt_orphans, die_with_parent, end_children


def main() -> int:
    """Run torchrun with the arguments of the command line; its status."""
    parent = os.getppid()
    adopt_orphans()
    torchrun = subprocess.Popen(
        [sys.executable, "-P", "-m", "torch.distributed.run", *sys.argv[1:]],
        stdin=subprocess.DEVNULL,
        preexec_fn=die_with_parent,  # should this process be killed
    )
    while torchrun.poll() is None and os.getppid() == parent:
        told, _, _ = select.select([sys.stdin], [], [], 0.05)
        if told:
            break
    if torchrun.poll() is None:
        torchrun.kill() if sys.platform == "linux" else torchrun.terminate()
    status = torchrun.wait()
    end_children()
    return status


if __name__ == "__main__":
    sys.exit(main())
