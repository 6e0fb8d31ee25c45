"""Asks a model's own `is_ready`, through a socket that nothing else uses.

In:  questions, when a client asks whether the model is ready. Out: the model's response for every
     asker, or False when it takes too long.
Rules: the hook runs only when a client asks, and once at a time: an asker that comes while it runs
       gets the result of that run. It runs in a thread of its own in the worker
       (naiad.worker.ready_thread), so neither batches nor the heartbeat wait for it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from naiad import log
from naiad.core.clock import Clock, Timer
from naiad.ipc.readiness import QUESTION, READY

LIMIT_NS = 5_000_000_000
"""How long one asker waits."""

OnReadiness = Callable[[bool], None]


class _Asker:
    def __init__(self, on_readiness: OnReadiness) -> None:
        self.on_readiness = on_readiness
        self.timer: Timer | None = None


class ReadyHook:
    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._sock: socket.socket | None = None
        """None unless a worker serves whose model has the hook."""
        self._is_running = False
        self._askers: list[_Asker] = []

    @property
    def is_there(self) -> bool:
        return self._sock is not None

    def begin(self, sock: socket.socket) -> None:
        """A worker serves whose model has the hook. The socket is closed by `end`."""
        sock.setblocking(False)
        self._sock = sock
        asyncio.get_running_loop().add_reader(sock, self._on_readable)

    def end(self) -> None:
        """The worker does not serve any more."""
        sock, self._sock = self._sock, None
        if sock is not None:
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()
        self._finish_run(False)

    def ask(self, on_readiness: OnReadiness) -> None:
        """The callback may come before this returns."""
        asker = _Asker(on_readiness)
        asker.timer = self._clock.call_at(
            self._clock.now_ns() + LIMIT_NS, lambda: self._give_up(asker)
        )
        self._askers.append(asker)
        if not self._is_running:
            self._start_run()

    def _start_run(self) -> None:
        self._is_running = True
        try:
            if self._sock is None or self._sock.send(QUESTION) != len(QUESTION):
                self._finish_run(False)
        except OSError:  # The worker has just ended.
            self._finish_run(False)

    def _on_readable(self) -> None:
        assert self._sock is not None
        try:
            reply = self._sock.recv(1)
        except BlockingIOError:
            return
        except OSError:
            reply = b""
        if not reply:
            self.end()
        else:
            self._finish_run(reply == READY)

    def _finish_run(self, is_ready: bool) -> None:
        self._is_running = False
        askers, self._askers = self._askers, []
        for asker in askers:
            if asker.timer is not None:
                asker.timer.cancel()
            asker.on_readiness(is_ready)

    def _give_up(self, asker: _Asker) -> None:
        """The run goes on, and later askers wait for it."""
        self._askers.remove(asker)
        log.error(f"is_ready() of '{self._name}' did not return within {LIMIT_NS / 1e9:g} s")
        asker.on_readiness(False)
