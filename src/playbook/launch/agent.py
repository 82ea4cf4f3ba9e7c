"""torchrun for one node of a cold launch, and the end of all that it started.

    python -m playbook.launch.agent FOLDER TORCHRUN_ARGUMENTS…

torchrun gives each rank a session of its own and knows nothing of what ranks start. Here whatever loses its parent
becomes a child of this process, which ends everything once torchrun has ended, or when its own parent says so or is gone.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys

from playbook.launch.processes import adopt_orphans, die_with_parent, end_children


def main() -> int:
    """Run torchrun, and return its status. Without a parent the job's folder is of no use to anybody."""
    parent = os.getppid()
    folder, *arguments = sys.argv[1:]
    adopt_orphans()
    torchrun = subprocess.Popen(
        [sys.executable, "-P", "-m", "torch.distributed.run", *arguments],
        stdin=subprocess.DEVNULL,
        preexec_fn=die_with_parent,  # should this process be killed
    )
    needed = True
    while needed and torchrun.poll() is None:
        word, _, _ = select.select([0], [], [], 0.05)
        needed = not word and os.getppid() == parent
    if torchrun.poll() is None:
        torchrun.kill() if sys.platform == "linux" else torchrun.terminate()
    status = torchrun.wait()
    end_children()
    if not needed and (os.getppid() != parent or not os.read(0, 1)):
        shutil.rmtree(folder, ignore_errors=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
