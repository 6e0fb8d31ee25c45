"""The live state of the models for open pages: one snapshot per second for all of them.

In:  readings, which are made only while a page is open. Out: server-sent events. The first event of
     a page has every model that its key may see, a later one only the rows that have changed.
Rule: without a page there is no timer, and nothing is computed.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from naiad import log
from naiad.console.model_reading import ModelReading
from naiad.console.model_row import ModelRow, build_row
from naiad.core.identity import Identity
from naiad.errors import NaiadError
from naiad.frontends.http.response import EVENT_STREAM
from naiad.keys.api_class import MODEL_REPOSITORY
from naiad.transport.http1.exchange import Exchange

INTERVAL_S = 1.0
WINDOW_S = 5.0
"""Rates are those of the last five seconds."""
NAMES_INTERVAL_S = 10.0
_encoder = msgspec.json.Encoder()


class ServerState(msgspec.Struct, frozen=True):
    """What an event says about the server itself."""

    is_ready: bool
    num_connections: int
    memory_bytes: int
    uptime_s: int
    last_log_line: int


class Snapshot(msgspec.Struct, frozen=True):
    time_s: float
    server: ServerState
    models: list[ModelRow]
    removed: list[str] = []
    """Models that are gone since the last event."""
    is_full: bool = True
    """`models` has all models, not only those that have changed."""


class Subscriber:
    """A page that is open."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.is_paused = False
        self.shown: dict[str, ModelRow] | None = None
        """The rows that the page has; None if it needs all of them."""

    def set_flow(self, is_paused: bool) -> None:
        self.is_paused = is_paused


class Live:
    def __init__(
        self,
        read: Callable[[Iterable[str]], list[ModelReading]],
        read_names: Callable[[], Awaitable[Iterable[str]]],
        read_server: Callable[[], ServerState],
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        """`read` reads the models of these names and those that are loaded. `read_names` may be
        slow; it is called every ten seconds."""
        self._read = read
        self._read_names = read_names
        self._read_server = read_server
        self._clock_s = clock_s
        self._subscribers: set[Subscriber] = set()
        self._task: asyncio.Task[None] | None = None
        self._names: list[str] = []
        self._latest: list[ModelRow] = []
        self._window: deque[tuple[float, dict[str, ModelReading]]] = deque()
        self.seed: Callable[[], tuple[float, dict[str, ModelReading]] | None] = lambda: None
        """Returns an earlier reading for the rates of the first event, if there is a recent one."""

    @property
    def num_pages(self) -> int:
        return len(self._subscribers)

    @property
    def is_running(self) -> bool:
        return self._task is not None

    async def snapshot(self, identity: Identity | None) -> Snapshot:
        """The state now, for a script."""
        self._names = sorted(await self._read_names())
        return Snapshot(self._clock_s(), self._read_server(), visible_rows(self._rows(), identity))

    def subscribe(self, exchange: Exchange) -> None:
        subscriber = Subscriber(exchange)
        exchange.start_stream(200, EVENT_STREAM)
        exchange.on_flow(subscriber.set_flow)
        self._subscribers.add(subscriber)
        exchange.on_disconnect(lambda: self._unsubscribe(subscriber))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        elif self._latest:
            self._send(subscriber, self._latest, self._read_server())

    def _unsubscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.discard(subscriber)
        if not self._subscribers:
            self._cancel()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
            self._window.clear()
            self._latest = []

    def stop(self) -> None:
        """Ends the streams of all pages. They reconnect by themselves."""
        self._cancel()
        subscribers, self._subscribers = self._subscribers, set()
        for subscriber in subscribers:
            subscriber.exchange.end_stream()

    async def _run(self) -> None:
        """A fault ends the streams. The pages connect again, and the log has the reason."""
        try:
            await self._repeat()
        except asyncio.CancelledError:
            raise
        except Exception as fault:
            log.error(
                f"the console's live state failed: {type(fault).__name__}: {fault}",
                traceback.format_exc(),
            )
            self.stop()

    async def _repeat(self) -> None:
        next_names_s = 0.0
        while True:
            if self._clock_s() >= next_names_s:
                next_names_s = self._clock_s() + NAMES_INTERVAL_S
                self._names = sorted(await self._read_names())
            self._latest = self._rows()
            server = self._read_server()
            for subscriber in list(self._subscribers):
                self._send(subscriber, self._latest, server)
            await asyncio.sleep(INTERVAL_S)

    def _rows(self) -> list[ModelRow]:
        now_s = self._clock_s()
        readings = self._read(self._names)
        if not self._window and (seed := self.seed()) is not None:
            self._window.append(seed)
        old_s, old = self._window[0] if self._window else (now_s, {})
        rows = [build_row(new, old.get(new.name), now_s - old_s) for new in readings]
        if self._subscribers:
            self._window.append((now_s, {reading.name: reading for reading in readings}))
            while len(self._window) > 1 and now_s - self._window[0][0] >= WINDOW_S:
                self._window.popleft()
        return rows

    def _send(self, subscriber: Subscriber, rows: list[ModelRow], server: ServerState) -> None:
        exchange = subscriber.exchange
        gate = exchange.head.route.gate
        admission = None if gate is None else gate.check(exchange.peer)
        if isinstance(admission, NaiadError):
            exchange.send_chunk(_event("refused", {"error": admission.message}))
            self._unsubscribe(subscriber)
            exchange.end_stream()
            return
        if subscriber.is_paused:
            return
        visible = visible_rows(rows, None if admission is None else admission.identity)
        shown = {row.name: row for row in visible}
        before = subscriber.shown
        snapshot = Snapshot(self._clock_s(), server, visible)
        if before is not None:
            changed = [row for row in visible if before.get(row.name) != row]
            removed = [name for name in before if name not in shown]
            snapshot = Snapshot(snapshot.time_s, server, changed, removed, is_full=False)
        subscriber.shown = shown
        exchange.send_chunk(_event("state", snapshot))


def visible_rows(rows: list[ModelRow], identity: Identity | None) -> list[ModelRow]:
    """What a key may see. Reasons and models that do not serve belong to the index, so they need
    its scope."""
    if identity is None:
        return rows
    rows = [_without_hidden_steps(row, identity) for row in rows if identity.may_see(row.name)]
    if MODEL_REPOSITORY in identity.scopes:
        return rows
    return [
        msgspec.structs.replace(row, reason="", reason_line="", versions=[], location="")
        for row in rows
        if row.platform
    ]


def _without_hidden_steps(row: ModelRow, identity: Identity) -> ModelRow:
    steps = [step for step in row.steps if identity.may_see(step.model)]
    return row if len(steps) == len(row.steps) else msgspec.structs.replace(row, steps=steps)


def _event(name: str, data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encoder.encode(data))
