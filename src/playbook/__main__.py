"""The command's front door, of the ``playbook`` script and of ``python -m playbook`` (where that is not on the path).

Ctrl-C ends the command in one word, however early it comes: nothing of weight is imported before that is arranged.
"""

import sys


def main() -> int:
    """Run the command line and return its exit status."""
    try:
        from playbook._interrupt import leave_at_once

        leave_at_once()
        from playbook.cli import main

        return main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
