"""The module runs as the script does."""

import subprocess
import sys


def test_module_is_the_command_line():
    def run(*arguments):
        return subprocess.run([sys.executable, "-m", "playbook", *arguments], capture_output=True, text=True)

    assert "train" in run("--help").stdout
    wrong = run("train", "--layout", "dp=0")
    assert wrong.returncode == 2
    assert "dp" in wrong.stderr
    assert "Traceback" not in wrong.stderr
