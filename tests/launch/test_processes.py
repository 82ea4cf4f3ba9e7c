"""What processes are given that must not be another's."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

import pytest

from playbook.launch.processes import free_port

GIVEN = Path("/proc/sys/net/ipv4/ip_local_port_range")


@pytest.mark.skipif(not GIVEN.exists(), reason="another kernel")
def test_a_free_port_is_none_that_connections_are_given():
    """Unless somebody has told the kernel to give more of them than it does by itself."""
    ports = {free_port() for _ in range(100)}
    assert max(ports) < max(30_000, int(GIVEN.read_text().split()[0]))
    assert len(ports) > 90


def test_a_port_at_which_somebody_listens_is_not_free(monkeypatch):
    with socket.create_server(("127.0.0.1", free_port())) as listener:
        taken = listener.getsockname()[1]
        drawn = [taken - 10_000, 1, 2, 3]
        monkeypatch.setattr(secrets, "randbelow", lambda below: drawn.pop(0))
        assert free_port() != taken
    assert len(drawn) < 3
