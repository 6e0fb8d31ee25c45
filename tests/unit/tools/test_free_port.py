"""Tests the choice of ports for a server that is about to start."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from naiad.tools import free_port
from naiad.tools.free_port import PORTS, ephemeral_ports, free_ports


def test_ports_are_different_and_not_ephemeral() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert not set(ports) & set(ephemeral_ports())


def test_skips_a_port_that_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as one, socket.socket() as other:
        for held in (one, other):
            held.bind(("", 0))
        ports = [int(held.getsockname()[1]) for held in (one, other)]
        monkeypatch.setattr(free_port, "PORTS", ports)
        monkeypatch.setattr(free_port, "ephemeral_ports", lambda: range(0))
        assert free_ports(2) == []


def test_works_if_the_ephemeral_range_is_unknown_or_covers_everything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(free_port, "EPHEMERAL_RANGE", tmp_path / "range")
    assert ephemeral_ports() == range(0)
    (tmp_path / "range").write_text("1024\t65535\n")
    assert ephemeral_ports() == range(1024, 65536)
    (port,) = free_ports(1)
    assert port in PORTS
