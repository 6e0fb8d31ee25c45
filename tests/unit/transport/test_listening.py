from __future__ import annotations

import socket

import pytest

from naiad.transport.listening import bind


@pytest.mark.parametrize(
    ("address", "clients"),
    [("127.0.0.1", ["127.0.0.1"]), ("::1", ["::1"]), ("::", ["127.0.0.1", "::1"])],
)
def test_an_address_takes_its_clients(address: str, clients: list[str]) -> None:
    """FOUND_2 N11: `::` took both families for the server, and one for the router."""
    try:
        listener = bind(address, 0)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listener:
        listener.listen()
        port = listener.getsockname()[1]
        for host in clients:
            socket.create_connection((host, port), timeout=10).close()


def test_a_port_in_use_is_an_error() -> None:
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        with pytest.raises(OSError, match="in use"):
            bind("127.0.0.1", listener.getsockname()[1])
