"""All frontend processes of the server: starts them, gives them connections, keeps them up to date,
replaces those that die or hang, and stops them.

In:  the launcher, the core, and the server's own endpoints. Out: connections that frontends serve;
     the server serves every connection itself while no frontend can.
Rule: a load, an unload, a change of the keys or of the trace settings has reached every frontend
      before it is answered (`publish`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import count
from typing import Any

import msgspec

from naiad import log
from naiad.errors import NaiadError
from naiad.frontend_process.balance import find_unevenness
from naiad.frontend_process.launcher import LauncherProcess
from naiad.frontend_process.messages import (
    GRPC,
    HTTP,
    Accept,
    ForkFrontend,
    FromLauncher,
    GiveUp,
    KillFrontend,
    Leave,
    Logging,
    MethodKind,
    ReadAgain,
    Stop,
)
from naiad.frontend_process.peer import through_tunnel
from naiad.frontend_process.remote_guard import has_session
from naiad.frontend_process.served_models import ServedModels
from naiad.frontend_process.session import FrontendSession
from naiad.frontends.http.load_report import FORMAT_HEADER
from naiad.inference import InferenceCore
from naiad.instances.channel import Channel
from naiad.instances.restart import RestartPolicy, Restarts
from naiad.ipc.messages import Exited, Forked
from naiad.keys.keys import Keys
from naiad.shm.arena import SLOT_IDLE_NS, Arena
from naiad.shm.directory import SlotDirectory
from naiad.transport.grpc.endpoint import GrpcEndpoint
from naiad.transport.http1.connection import Http1Connection
from naiad.transport.http1.endpoint import Http1Endpoint
from naiad.transport.http1.head import Head

ASK_S = 1.0
"""How often frontends are asked whether they are alive."""
HUNG_S = 10.0
"""A frontend that has not responded for this long is killed and replaced."""
SLOW_S = 2.0
"""A frontend that has not responded for this long gets no more connections."""
PUBLISH_LIMIT_S = HUNG_S + 2.0
START_LIMIT_S = 10.0
FORK_RETRY_S = 1.0
MAX_MOVES = 8
"""A connection that has moved this often stays in the server process."""
MAX_ACCEPTS = 64
"""Connections that are accepted in one turn of the event loop."""
ACCEPT_PAUSE_S = 0.1
"""How long accepting pauses when there are no descriptors left."""


class Frontends:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        launcher: LauncherProcess,
        core: InferenceCore,
        directory: SlotDirectory | None,
    ) -> None:
        self._loop = loop
        self._launcher = launcher
        self._core = core
        self._arena = Arena(directory=directory)
        self._models = ServedModels(core)
        self._http: Http1Endpoint
        self._grpc: GrpcEndpoint
        self._numbers = count(1)
        self._sessions: dict[int, FrontendSession] = {}
        """By the number that the launcher knows; one per process that lives."""
        self._places = list(range(1, launcher.num_processes + 1))
        """Free places in the shared page."""
        self._restarts = Restarts(RestartPolicy())
        self._gone_faults: dict[str, Counter[str]] = {HTTP: Counter(), GRPC: Counter()}
        self._gone_busy_s = 0.0
        self._gone_lines = 0
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._exits: dict[int, asyncio.Future[None]] = {}
        self._log_settings = log.shown_settings()
        """What the frontends have been told."""
        self._is_stopping = False
        self._is_refresh_due = False
        self._keys: Keys | None = None
        self._sent_keys = 0
        """The generation of the key table that frontends have been sent."""
        self._encoded_keys: tuple[int, bytes] = 0, b""
        """(generation, the keys as frontends read them)."""
        self._launcher_channel: Channel[FromLauncher] = Channel(
            loop,
            launcher.sock,
            msgspec.msgpack.Decoder(FromLauncher),
            Arena(),
            self._on_launcher_message,
            self._on_launcher_closed,
            "process that starts frontends",
        )
        self._launcher_channel.pid = launcher.pid

    # Start.

    async def start(self, http: Http1Endpoint, grpc: GrpcEndpoint, keys: Keys | None) -> None:
        """Returns when every frontend serves. `http` and `grpc` are the server's own endpoints.
        `keys` is None where nobody needs an API key."""
        self._http, self._grpc, self._keys = http, grpc, keys
        if keys is not None:
            keys.guard.table.on_change = self._refresh_keys_soon
            if keys.watch is not None:
                keys.watch.publish = self.publish
        http.move = self._move
        http.num_elsewhere = lambda: self.num_connections(HTTP)
        grpc.num_elsewhere = lambda: self.num_connections(GRPC)
        self._core.on_models_changed = self.publish
        self._core.repository.watch(self._refresh_soon)
        self._models.refresh()
        for _ in range(self._launcher.num_processes):
            self._fork()
        end_s = time.monotonic() + START_LIMIT_S
        while not all(session.is_serving for session in self._sessions.values()):
            if not await self._changes_before(end_s):
                log.error("a frontend process did not start in time; the others serve without it")
                break
        self._start_task(self._watch())

    def _fork(self) -> None:
        if self._launcher_channel.is_closed or not self._places:
            return
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            log.error(f"a frontend process could not be started: {error.strerror}")
            self._loop.call_later(FORK_RETRY_S, self._replace)
            return
        number, place = next(self._numbers), self._places.pop(0)
        self._sessions[number] = FrontendSession(
            self._loop,
            ours,
            place,
            self._core,
            self._models,
            self._grpc.methods,
            self._arena,
            self._on_leave,
            self._on_alive,
            self._on_current,
            lambda session, reason: self._on_closed(number, session, reason),
            self._grpc.make_gate,
            None if self._keys is None else self._keys.guard,
        )
        if self._keys is not None and self._keys.key_set is not None:
            self._sessions[number].on_unknown_key = self._keys.key_set.on_unknown_key
        kinds = [
            MethodKind(method.path, method.api, method.stream is not None, method.is_compressed)
            for method in self._grpc.methods.values()
        ]
        with theirs:
            self._launcher_channel.send(ForkFrontend(number, place, kinds), [theirs.fileno()])

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _changes_before(self, end_s: float) -> bool:
        """Waits until a frontend has started, ended or confirmed a state."""
        self._changed.clear()
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            return False
        try:
            await asyncio.wait_for(self._changed.wait(), left_s)
        except TimeoutError:
            return False
        return True

    # The launcher.

    def _on_launcher_message(self, message: FromLauncher) -> None:
        match message:
            case Forked():
                session = self._sessions.get(message.worker)
                if session is not None:
                    session.pid = message.pid
            case Exited():
                session = self._sessions.get(message.worker)
                if session is not None:
                    session.close(f"the process has ended ({_describe(message.status)})")
                future = self._exits.pop(message.worker, None)
                if future is not None and not future.done():
                    future.set_result(None)
            case _:
                pass

    def _on_launcher_closed(self, reason: str) -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._launcher.pid, os.WNOHANG)
        for future in self._exits.values():
            if not future.done():
                future.set_result(None)
        if not self._is_stopping:
            log.error(
                "the process that starts frontends has ended: the server process serves all "
                "connections from now on, until it is restarted"
            )
            for session in list(self._sessions.values()):  # they die with the launcher
                session.close("the process that starts frontends has ended")

    # Frontends.

    def _on_alive(self, session: FrontendSession) -> None:
        """The frontend has started, or responds again."""
        session.send(Logging(self._log_settings))
        if self._keys is not None:
            self._send_keys(session, self._keys)
        session.send(self._models.message)
        self._changed.set()

    def _on_current(self, session: FrontendSession) -> None:
        self._changed.set()

    def _on_closed(self, number: int, session: FrontendSession, reason: str) -> None:
        del self._sessions[number]
        for endpoint, faults in session.counted.faults.items():
            self._gone_faults[endpoint].update(faults)
        self._gone_busy_s = max(self._gone_busy_s, session.counted.max_busy_s)
        self._gone_lines += session.counted.num_lines_lost
        self._launcher.budget.forget(session.place)
        self._places.append(session.place)
        self._changed.set()
        if self._is_stopping:
            return
        if self._launcher_channel.is_closed:
            return
        self._launcher_channel.send(KillFrontend(number))
        delay_s = self._restarts.next_delay_s(time.monotonic_ns())
        log.error(
            f"frontend process {session.pid} is gone: {reason}; its connections are closed, and it "
            f"is replaced in {delay_s:g} s"
        )
        self._loop.call_later(delay_s, self._replace)

    def _replace(self) -> None:
        if not self._is_stopping:
            self._fork()

    async def _watch(self) -> None:
        was_tracing = False
        while True:
            due_ns = time.monotonic_ns() + int(ASK_S * 1e9)
            await asyncio.sleep(ASK_S)
            late_ns = max(time.monotonic_ns() - due_ns, 0)
            if log.shown_settings() != self._log_settings:
                self._log_settings = log.shown_settings()
                for session in self._sessions.values():
                    session.send(Logging(self._log_settings))
            if self._core.tracing.is_on != was_tracing:
                was_tracing = not was_tracing
                self._refresh()
            dropped = self._arena.trim(SLOT_IDLE_NS)
            for session in list(self._sessions.values()):
                session.drop_slots(dropped)
                session.forgive(late_ns)
                self._check(session, time.monotonic_ns())
            self._balance()

    def _refresh_soon(self) -> None:
        """The models that serve have changed, and may change again in this turn of the loop."""
        if not self._is_refresh_due:
            self._is_refresh_due = True
            self._loop.call_soon(self._refresh)

    def _refresh(self) -> None:
        self._is_refresh_due = False
        if self._models.refresh():
            self._send_models()

    def _refresh_keys_soon(self) -> None:
        """The keys may change again in this turn of the loop."""
        self._loop.call_soon(self._refresh_keys)

    def _refresh_keys(self) -> None:
        keys = self._keys
        if keys is None or keys.guard.table.generation == self._sent_keys:
            return
        self._sent_keys = keys.guard.table.generation
        for session in list(self._sessions.values()):
            if session.is_serving:
                self._send_keys(session, keys)

    def _send_keys(self, session: FrontendSession, keys: Keys) -> None:
        table = keys.guard.table
        if self._encoded_keys[0] != table.generation:
            self._encoded_keys = table.generation, msgspec.json.encode(table.document)
        key_set = b"" if keys.key_set is None else keys.key_set.data
        try:
            session.send_keys(table.generation, self._encoded_keys[1], key_set)
        except NaiadError as error:
            session.close(f"the API keys could not be sent to it: {error.message}")

    def _check(self, session: FrontendSession, now_ns: int) -> None:
        waited_s = (now_ns - session.asked_ns) / 1e9 if session.asked_ns else 0.0
        if waited_s > HUNG_S:
            session.close(f"it has not responded for {HUNG_S:g} s")
            return
        session.is_slow = waited_s > SLOW_S
        session.ask_alive(now_ns)

    def _balance(self) -> None:
        """Moves connections of a frontend that has most of the work. What that has changed shows
        when it has responded again, so its next turn is two looks away."""
        serving = {
            session: session.busy for session in self._sessions.values() if session.is_serving
        }
        uneven = find_unevenness(serving)
        for session in serving:
            was_hot, session.is_hot = session.is_hot, False
            if uneven is not None and session is uneven.hottest and not was_hot:
                session.is_hot = True
                session.send(GiveUp(uneven.share))

    # What frontends know.

    def _send_models(self) -> None:
        for session in self._sessions.values():
            if session.is_serving:
                session.send(self._models.message)

    async def publish(self) -> None:
        """Returns when every frontend acts on the present state of the repository, of the keys and
        of the trace settings. One that does not respond is killed before this returns."""
        self._refresh()
        self._refresh_keys()
        generation, key_generation = self._models.message.generation, self._sent_keys
        end_s = time.monotonic() + PUBLISH_LIMIT_S
        while late := [
            session
            for session in self._sessions.values()
            if session.is_serving
            and (session.generation < generation or session.key_generation < key_generation)
        ]:
            if not await self._changes_before(end_s):
                for session in late:
                    session.drain()  # this process may have been stopped meanwhile
                    if session.generation < generation or session.key_generation < key_generation:
                        session.close("it did not confirm a change of the models or of the keys")

    def read_again(self) -> None:
        """SIGHUP."""
        for session in self._sessions.values():
            session.send(ReadAgain())

    # Connections.

    def num_connections(self, endpoint: str) -> int:
        return sum(session.num_connections(endpoint) for session in self._sessions.values())

    def faults(self, endpoint: str) -> Counter[str]:
        """Faults of clients since the start, those of frontends that are gone included."""
        total = Counter(self._gone_faults[endpoint])
        for session in self._sessions.values():
            total.update(session.counted.faults.get(endpoint, {}))
        return total

    @property
    def num_lines_lost(self) -> int:
        """Lines of the log that frontends could not write, since the start."""
        return self._gone_lines + sum(
            session.counted.num_lines_lost for session in self._sessions.values()
        )

    # The event loops of the frontends (naiad.metrics.loop_lag.LoopTimes).

    @property
    def max_lag_s(self) -> float:
        return max((one.counted.max_lag_s for one in self._sessions.values()), default=0.0)

    @property
    def max_busy_s(self) -> float:
        """Those of frontends that are gone included."""
        busy_s = (one.counted.max_busy_s for one in self._sessions.values())
        return max([self._gone_busy_s, *busy_s])

    def leaves(self, connection: Http1Connection, head: Head, name: str, version: str) -> bool:
        """Whether a frontend serves this connection, which has sent an inference request. A
        connection that ends with its request is not worth a move."""
        return (
            self._models.is_served(name, version)
            and FORMAT_HEADER not in head.headers
            and self._may_leave(connection, head)
        )

    def leaves_openai(self, connection: Http1Connection, head: Head) -> bool:
        """Whether a frontend serves this connection, which has sent an inference request of
        OpenAI's. Its model is in the body: a frontend that does not serve the model gives the
        connection back."""
        return self._may_leave(connection, head)

    def _may_leave(self, connection: Http1Connection, head: Head) -> bool:
        return (
            head.keep_alive
            and connection.num_moves < MAX_MOVES
            and not self._core.tracing.is_on
            and (self._keys is None or not has_session(head.headers.get(b"cookie", b"")))
            and _family(connection) in (socket.AF_INET, socket.AF_INET6)
            and self._least_loaded(HTTP) is not None
        )

    def _least_loaded(self, endpoint: str) -> FrontendSession | None:
        """The frontend with the fewest connections of this kind, one with too much work last; None
        if no frontend serves."""
        serving = [
            session
            for session in self._sessions.values()
            if session.is_serving and not session.is_slow
        ]
        if self._is_stopping or not serving:
            return None
        return min(
            serving,
            key=lambda session: (
                session.is_hot,
                session.num_connections(endpoint),
                session.num_connections(HTTP) + session.num_connections(GRPC),
            ),
        )

    def _move(self, connection: Http1Connection, data: bytes) -> None:
        session = self._least_loaded(HTTP)
        transport = connection.transport
        if session is not None:
            sock: socket.socket = transport.get_extra_info("socket")
            message = Accept(HTTP, data, connection.num_moves + 1)
            session.send_connection(HTTP, message, sock.fileno())
        transport.abort()

    def _on_leave(self, sock: socket.socket, message: Leave) -> None:
        """A frontend gives a connection back. TLS connections come as one end of a socket pair."""
        self._start_task(self._adopt(sock, message))

    async def _adopt(self, sock: socket.socket, message: Leave) -> None:
        def make() -> Http1Connection:
            connection = self._http.protocol_factory()
            connection.resume_after_move(message.data, message.num_moves)
            if message.peer is not None:
                connection.wrap_transport = partial(through_tunnel, peer=message.peer)
            return connection

        sock.setblocking(False)
        try:
            await self._loop.connect_accepted_socket(make, sock)
        except OSError:
            sock.close()  # the client has gone

    def listen(
        self,
        endpoint: str,
        sock: socket.socket,
        backlog: int,
        serve_here: Callable[[socket.socket], Coroutine[Any, Any, None]],
    ) -> None:
        """Accepts connections and gives each to the frontend that has the fewest. `serve_here`
        serves one in this process, while no frontend can."""
        sock.listen(backlog)
        self._loop.add_reader(sock, self._accept, endpoint, sock, serve_here)

    def _accept(
        self,
        endpoint: str,
        listener: socket.socket,
        serve_here: Callable[[socket.socket], Coroutine[Any, Any, None]],
    ) -> None:
        for _ in range(MAX_ACCEPTS):
            try:
                sock, _address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error(f"a connection could not be accepted: {error.strerror}")
                self._loop.remove_reader(listener)
                self._loop.call_later(
                    ACCEPT_PAUSE_S, self._accept_again, endpoint, listener, serve_here
                )
                return
            sock.setblocking(False)
            session = self._least_loaded(endpoint)
            if session is None or self._is_full(endpoint):
                self._start_task(serve_here(sock))
            else:
                with sock:
                    session.send_connection(endpoint, Accept(endpoint), sock.fileno())

    def _accept_again(
        self,
        endpoint: str,
        listener: socket.socket,
        serve_here: Callable[[socket.socket], Coroutine[Any, Any, None]],
    ) -> None:
        if listener.fileno() >= 0 and not self._is_stopping:
            self._loop.add_reader(listener, self._accept, endpoint, listener, serve_here)

    def _is_full(self, endpoint: str) -> bool:
        """The server's own endpoint refuses connections above the limit."""
        if endpoint == GRPC:
            num, limit = len(self._grpc.connections), self._grpc.options.max_connections
        else:
            num, limit = len(self._http.connections), self._http.limits.max_connections
        return num + self.num_connections(endpoint) >= limit

    # The end.

    async def announce_stop(self, limit_s: float) -> None:
        """Tells the gRPC clients of all frontends to begin nothing new; see GrpcEndpoint."""
        announced = [session.announce_stop(limit_s) for session in self._sessions.values()]
        if announced and not self._launcher_channel.is_closed:
            await asyncio.wait(announced, timeout=limit_s + 0.5)

    async def stop(self, grace_s: float) -> None:
        """Finishes the requests of all frontends within `grace_s`, and ends them."""
        self._is_stopping = True
        exits = []
        for number, session in list(self._sessions.items()):
            future = self._exits[number] = self._loop.create_future()
            exits.append(future)
            session.send(Stop(grace_s))
        if exits and not self._launcher_channel.is_closed:
            await asyncio.wait(exits, timeout=grace_s + 1.0)

    def close(self) -> None:
        """Ends what is left. Blocks for the few milliseconds that processes need to die."""
        self._is_stopping = True
        for task in list(self._tasks):
            task.cancel()
        for session in list(self._sessions.values()):
            session.close("the server stops")
        self._launcher_channel.close("the server stops")


def _family(connection: Http1Connection) -> int:
    sock = connection.transport.get_extra_info("socket")
    return -1 if sock is None else sock.family


def _describe(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    return f"status {os.waitstatus_to_exitcode(status)}"
