"""Runs a model's `is_ready` in the worker, when the server asks, in a thread of its own: while a
batch executes, too.

In:  questions on a socket (naiad.ipc.readiness). Out: one response for each.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from naiad.ipc.readiness import NOT_READY, READY


def start_ready_thread(sock: socket.socket, is_ready: Callable[[], bool]) -> None:
    """The thread ends when the server has closed its end of the socket. `is_ready` does not
    raise."""
    threading.Thread(target=_run, args=(sock, is_ready), name="is_ready", daemon=True).start()


def _run(sock: socket.socket, is_ready: Callable[[], bool]) -> None:
    with sock:
        try:
            while sock.recv(1):
                sock.sendall(READY if is_ready() else NOT_READY)
        except OSError:  # The server has closed its end.
            pass
