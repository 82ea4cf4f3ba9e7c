"""The text that models are trained on by default: the topics of Python 3.11.7's help, the same on every Python."""

import gzip
from pathlib import Path


def python_topics() -> bytes:
    """466 kB of English (licence: LICENSE-python.txt): chapters of the Python language reference."""
    return gzip.decompress(Path(__file__).with_name("python_topics.txt.gz").read_bytes())
