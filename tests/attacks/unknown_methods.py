"""Calls of gRPC methods that do not exist. Each ends normally, and costs the server as much as a
stream that is opened and reset, so as many are too many."""

from __future__ import annotations

import contextlib

from naiad.transport.http2.frame import END_HEADERS, END_STREAM, PREFACE, SETTINGS
from tests.attacks.attack import MIB, attack
from tests.attacks.slow import frame, headers
from tests.attacks.target import Target

NUM_CALLS = 250_000
NUM_PER_PIECE = 1000


@attack(32 * MIB)
def unknown_grpc_methods(target: Target) -> None:
    sock = target.connect("grpc")
    num_sent, num_bytes = 0, 0
    try:
        sock.sendall(PREFACE + frame(SETTINGS, 0, 0))
        for start in range(0, NUM_CALLS, NUM_PER_PIECE):
            calls = range(start, start + NUM_PER_PIECE)
            piece = b"".join(
                headers("/no.Such/Method", 2 * call + 1, END_HEADERS | END_STREAM) for call in calls
            )
            sock.sendall(piece)
            num_sent += NUM_PER_PIECE
            with contextlib.suppress(BlockingIOError):
                sock.setblocking(False)
                while received := sock.recv(1 << 16):
                    num_bytes += len(received)
            sock.setblocking(True)
    except OSError:
        pass  # the server has ended the connection
    finally:
        sock.close()
    target.sent_bytes += num_sent * 100
    assert num_sent < NUM_CALLS, f"all {num_sent} calls were answered, with {num_bytes} bytes"
