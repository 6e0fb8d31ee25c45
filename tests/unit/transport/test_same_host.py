"""Connections of this machine are not paced; others keep the system's congestion control."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from naiad.transport.same_host import is_same_host, stop_pacing


class FakeSocket:
    def __init__(self, error: OSError | None = None) -> None:
        self.options: list[tuple[int, int, bytes]] = []
        self.error = error

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        if self.error is not None:
            raise self.error
        self.options.append((level, option, value))


class FakeTransport(asyncio.BaseTransport):
    def __init__(self, peer: Any, sock: FakeSocket | None) -> None:
        super().__init__({"peername": peer, "sockname": ("10.0.0.1", 8000), "socket": sock})


@pytest.mark.parametrize(
    ("peer", "own", "expected"),
    [
        (("127.0.0.1", 4000), ("127.0.0.1", 8000), True),
        (("127.0.0.2", 4000), ("127.0.0.1", 8000), True),
        (("10.0.0.1", 4000), ("10.0.0.1", 8000), True),
        (("::1", 4000, 0, 0), ("::1", 8000, 0, 0), True),
        (("::ffff:127.0.0.1", 4000, 0, 0), ("::ffff:127.0.0.1", 8000, 0, 0), True),
        (("10.0.0.2", 4000), ("10.0.0.1", 8000), False),
        (("::1f", 4000, 0, 0), ("::2", 8000, 0, 0), False),
        (("2001:db8::2", 4000, 0, 0), ("2001:db8::1", 8000, 0, 0), False),
        ("", "/run/socket", False),
        (None, None, False),
    ],
)
def test_who_is_on_this_machine(peer: Any, own: Any, expected: bool) -> None:
    assert is_same_host(peer, own) is expected


def test_a_client_of_this_machine_is_not_paced() -> None:
    sock = FakeSocket()
    stop_pacing(FakeTransport(("10.0.0.1", 4000), sock))
    assert sock.options == [(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")]


def test_a_client_from_elsewhere_keeps_what_the_system_chose() -> None:
    sock = FakeSocket()
    stop_pacing(FakeTransport(("10.0.0.2", 4000), sock))
    assert sock.options == []


def test_a_system_without_the_choice_is_left_alone() -> None:
    stop_pacing(FakeTransport(("10.0.0.1", 4000), FakeSocket(OSError("no such algorithm"))))
    stop_pacing(FakeTransport(("10.0.0.1", 4000), None))
