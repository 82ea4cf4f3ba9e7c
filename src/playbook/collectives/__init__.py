"""What collectives cost: messages of α–β links, and how many of them go around a ring."""

from playbook.errors import PlaybookError


class CollectiveError(PlaybookError):
    """A collective asked for wrongly: an unknown algorithm, a root outside the group, a size that does not fit."""
