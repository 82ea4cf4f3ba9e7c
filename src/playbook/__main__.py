"""``python -m playbook …``: the command line, where the ``playbook`` script is not on the path (a notebook's shell)."""

import sys

from playbook.cli import main

sys.exit(main())
