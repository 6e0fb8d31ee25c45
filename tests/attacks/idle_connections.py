"""Thousands of connections that ask for nothing: new clients are served, and memory is bounded."""

from __future__ import annotations

import contextlib
import socket
import time

from tests.attacks.attack import MIB, attack
from tests.attacks.target import Target

NUM_EACH = 2500
HOLD_S = 3.0


@attack(128 * MIB)
def idle_connections(target: Target) -> None:
    with contextlib.ExitStack() as stack:
        for kind in ("http", "grpc"):
            address = ("127.0.0.1", target.server.port(kind))
            for _ in range(NUM_EACH):
                stack.enter_context(socket.create_connection(address, timeout=10))
        time.sleep(HOLD_S)
        assert target.num_descriptors() > 2 * NUM_EACH
        assert target.get("/v2/health/live")[0] == 200
        assert target.call("ServerLive", b"") == "OK"
