"""The user of a TCP connection on this machine."""

from __future__ import annotations

import os
import socket
import struct
import sys
from pathlib import Path

import pytest

from naiad.machine import peer_user
from naiad.machine.peer_user import GONE, tcp_user


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_finds_the_user_of_a_connection(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listener, socket.create_connection(listener.getsockname()[:2]) as client:
        accepted, peer = listener.accept()
        with accepted:
            assert tcp_user(peer[:2], accepted.getsockname()[:2]) == os.geteuid()
        assert client.getsockname()[:2] == peer[:2]


def test_an_ipv4_connection_of_an_ipv6_socket_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        try:
            client = socket.socket(socket.AF_INET6)
            client.connect(("::ffff:127.0.0.1", listener.getsockname()[1]))
        except OSError:
            pytest.skip("this machine has no IPv6")
        with client:
            accepted, peer = listener.accept()
            with accepted:
                assert tcp_user(peer, accepted.getsockname()) == os.geteuid()


def test_a_connection_that_is_not_there_is_gone() -> None:
    assert tcp_user(("127.0.0.1", 1), ("127.0.0.1", 2)) == GONE


@pytest.mark.skipif(sys.byteorder != "little", reason="the table is one of a little-endian machine")
def test_a_client_elsewhere_has_no_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "tcp"
    table.write_text(
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
        "   0: 0100007F:1F40 0200000A:C350 01 00000000:00000000 00:00000000 00000000     0  0 1\n"
    )
    monkeypatch.setattr(peer_user, "TABLES", (table,))
    assert tcp_user(("10.0.0.2", 50000), ("127.0.0.1", 8000)) is None
    monkeypatch.setattr(peer_user, "TABLES", (tmp_path / "nothing",))
    assert tcp_user(("127.0.0.1", 50000), ("127.0.0.1", 8000)) is None


@pytest.mark.skipif(sys.byteorder != "little", reason="the table is one of a little-endian machine")
def test_reads_another_users_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "tcp"
    table.write_text(
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
        "   0: 0100007F:1F40 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0  0 1\n"
        "   1: 0100007F:C350 0100007F:1F40 01 00000000:00000000 00:00000000 00000000  1001  0 2\n"
    )
    monkeypatch.setattr(peer_user, "TABLES", (table,))
    assert tcp_user(("127.0.0.1", 50000), ("127.0.0.1", 8000)) == 1001


@pytest.mark.parametrize("linger_s", [None, 0])
def test_a_connection_that_its_client_has_closed_is_gone(linger_s: int | None) -> None:
    """The kernel's table shows root as its owner, whoever opened it, or nothing after a reset."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        client.sendall(b"x")
        accepted, peer = listener.accept()
        with accepted:
            if linger_s is not None:
                linger = struct.pack("ii", 1, linger_s)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            client.close()
            assert tcp_user(peer, accepted.getsockname()) == GONE
            assert accepted.recv(1) == b"x"
