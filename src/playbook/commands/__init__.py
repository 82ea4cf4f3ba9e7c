"""Subcommands of ``playbook``: each module adds its parser and runs it. torch is imported only where it is used."""
