"""Errors that a reader can act on: one sentence naming the field, its value and what would be valid."""


class PlaybookError(ValueError):
    """Bad input. The command line prints the message alone and exits with status 2."""


class ShapeError(PlaybookError):
    """A model shape that cannot be built."""


class LayoutError(PlaybookError):
    """A parallel layout that does not fit the model or the machine."""


class DataError(PlaybookError):
    """Training text that cannot be read or is too short."""


class ConfigError(PlaybookError):
    """A training configuration that cannot run."""


class LaunchError(PlaybookError):
    """Ranks that cannot be started as asked."""


class ScheduleError(PlaybookError):
    """A pipeline schedule that cannot be made, read or run."""


class CheckpointError(PlaybookError):
    """A checkpoint that cannot be written, or is not what is asked for."""
