"""Ports for a server that is about to be started."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from naiad.tools import free_port
from naiad.tools.free_port import PORTS, client_ports, free_ports


def test_none_is_a_clients_and_all_are_free() -> None:
    found = free_ports(20)
    assert len(set(found)) == 20
    assert not set(found) & set(client_ports())


def test_one_that_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as one, socket.socket() as other:
        for held in (one, other):
            held.bind(("", 0))
        ports = [int(held.getsockname()[1]) for held in (one, other)]
        monkeypatch.setattr(free_port, "PORTS", ports)
        monkeypatch.setattr(free_port, "client_ports", lambda: range(0))
        assert free_ports(2) == []


def test_a_system_that_serves_clients_from_everywhere_or_does_not_tell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(free_port, "CLIENT_RANGE", tmp_path / "range")
    assert client_ports() == range(0)
    (tmp_path / "range").write_text("1024\t65535\n")
    assert client_ports() == range(1024, 65536)
    (found,) = free_ports(1)
    assert found in PORTS
