"""Find Slurm's programs for the tests that send it jobs, or install them.

Usage: python tools/slurm.py              status 1 and a loud message without them
       python tools/slurm.py --install    the same, after trying to install what is missing
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

DAEMONS = ("munged", "slurmctld", "slurmd")
#: Daemons are not on everybody's path.
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
#: Why such a test is skipped, and what is said then.
MISSING = "no Slurm"
NONE = """\
════════════════════════════════════════════════════════════════════════════
NO SLURM: the tests in tests/launch/test_real_slurm.py, which send jobs to
one, do NOT run. Install it (apt-get install slurmctld slurmd munge) and call
make test again.
════════════════════════════════════════════════════════════════════════════"""


def find() -> dict[str, str] | None:
    """Paths of the daemons by name; ``None`` where one is missing."""
    found = {name: path for name in DAEMONS if (path := shutil.which(name, path=PATH))}
    return found if len(found) == len(DAEMONS) else None


def install() -> None:
    """Try the system's packages, as root. Their services have no configuration, and nothing of Slurm starts."""
    apt = shutil.which("apt-get")
    if apt and hasattr(os, "geteuid") and os.geteuid() == 0:
        print("No Slurm here: installing Debian's", file=sys.stderr, flush=True)
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in (
            ["update"],
            ["install", "-y", "--no-install-recommends", "slurmctld", "slurmd", "munge"],
        ):
            subprocess.run([apt, "-qq", *words], stdout=sys.stderr, env=env)


def main() -> int:
    if not find() and "--install" in sys.argv[1:]:
        install()
    found = find()
    print("\n".join(found.values()) if found else NONE, file=sys.stdout if found else sys.stderr, flush=True)
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
