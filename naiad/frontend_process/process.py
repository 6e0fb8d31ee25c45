"""A frontend process: it serves client connections and sends their inference requests to the server
process.

In:  a channel to the server process, which sends it connections and responses. Out: exit 0 when the
     server tells it to stop, or is gone.
Rule: nothing here schedules, counts requests or changes models.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
import time
from collections.abc import Awaitable

import uvloop

from naiad import log
from naiad.core.memory_trim import IdleTrim, MemoryTrim
from naiad.errors import NaiadError
from naiad.frontend_process.grpc_endpoint import FrontendGrpc
from naiad.frontend_process.http_endpoint import FrontendHttp
from naiad.frontend_process.messages import (
    GRPC,
    HTTP,
    Accept,
    Alive,
    AnnounceStop,
    AskAlive,
    BadOutputs,
    CallFinish,
    CallIdle,
    CallPause,
    CallReply,
    CallSend,
    Connections,
    Counted,
    Current,
    Entered,
    GiveUp,
    KeysCurrent,
    KeyState,
    Leave,
    Logging,
    MethodKind,
    Models,
    Peer,
    Rates,
    ReadAgain,
    Respond,
    Stop,
    StopAnnounced,
    ToFrontend,
)
from naiad.frontend_process.options import FrontendOptions
from naiad.frontend_process.remote_core import (
    ModelTable,
    RemoteCore,
    RemoteRequests,
    ServingCore,
)
from naiad.frontend_process.remote_guard import RemoteGuard
from naiad.frontend_process.response_decoder import ResponseDecoder
from naiad.frontend_process.shared_budget import SharedBudget, SharedPage
from naiad.instances.channel import Channel
from naiad.ipc.framing import LostDescriptorError
from naiad.metrics.loop_lag import LoopLag
from naiad.shm.arena import SLOT_IDLE_NS, Arena
from naiad.transport.certificate_watch import CertificateWatch
from naiad.transport.http1.connection import Http1Connection
from naiad.transport.tls import HANDSHAKE_TIMEOUT_S
from naiad.worker.host_policy import apply_place

SWITCH_INTERVAL_S = 0.001
"""As in the server process: a thread that decodes gives the interpreter lock back this soon."""
REPORT_S = 0.02
"""How soon the server process hears of connections that have ended."""
SWEEP_S = 1.0
TRIM_S = 2.0


def run_frontend(
    sock: socket.socket,
    options: FrontendOptions,
    methods: list[MethodKind],
    page: SharedPage,
    place: int,
) -> None:
    """Runs in the forked process, and returns when it must exit."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the server process handles them for all
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _apply_host_policy(options, place - 1)
    gc.freeze()
    uvloop.run(FrontendProcess(sock, options, methods, page, place).run())


def _apply_host_policy(options: FrontendOptions, index: int) -> None:
    """What cannot be applied does not keep the process from serving."""
    if not options.places:
        return
    host_place = options.places[index]
    try:
        not_applied = apply_place(host_place.cpu_cores, host_place.numa_node)
    except NaiadError as error:
        not_applied = error.message
    if not_applied:
        log.warning(f"the host policy of frontend process {index} is not applied: {not_applied}")


def _worked_s() -> float:
    """The time that this thread has run, or has waited for a CPU: on a machine that others share,
    the first alone would show an overloaded thread as idle."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            ran_ns, waited_ns, _ = map(int, file.read().split())
    except (OSError, ValueError):  # not every kernel counts it
        return time.thread_time()
    return (ran_ns + waited_ns) / 1e9


class FrontendProcess:
    def __init__(
        self,
        sock: socket.socket,
        options: FrontendOptions,
        methods: list[MethodKind],
        page: SharedPage,
        place: int,
    ) -> None:
        self._sock = sock
        self._options = options
        self._methods = methods
        self._budget = SharedBudget(options.memory_bytes, page, place)
        self._ended: asyncio.Future[str]
        self._tasks: set[asyncio.Task[None]] = set()
        self._tls: dict[str, CertificateWatch | None] = {}
        self._num_accepted = {HTTP: 0, GRPC: 0}
        self._is_report_due = False
        self._measured = time.monotonic(), _worked_s()
        """When the work of the event loop was last measured, and how much it was by then."""
        self._counted = Counted({}, 0.0, 0.0, 0)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._ended = loop.create_future()
        options, arena = self._options, Arena()
        self._arena = arena
        self._channel: Channel[ToFrontend] = Channel(
            loop,
            self._sock,
            ResponseDecoder(self._on_bad_outputs),
            arena,
            self._on_message,
            self._on_close,
            is_trusted=True,
        )
        self._channel.link.tolerate_lost_descriptors()
        self._requests = RemoteRequests(loop, self._channel)
        self._models = ModelTable(self._requests, arena)
        self._guard = (
            None
            if options.keys is None
            else RemoteGuard(options.keys, self._channel, self._requests.flush)
        )
        guard = None if self._guard is None else self._guard.guard
        if self._guard is not None:
            self._requests.caller_of = self._guard.caller
        self._http = FrontendHttp(
            RemoteCore(HTTP, self._models, self._requests, arena),
            ServingCore(HTTP, self._models, self._requests, arena),
            self._models,
            options.http,
            self._budget,
            self._send_away,
            guard,
        )
        self._grpc = FrontendGrpc(
            RemoteCore(GRPC, self._models, self._requests, arena),
            ServingCore(GRPC, self._models, self._requests, arena),
            self._models,
            options.grpc,
            self._methods,
            self._budget,
            self._channel,
            guard,
            is_namespacing=options.is_namespacing,
        )
        self._http.endpoint.on_forgotten = self._report_soon
        self._grpc.endpoint.on_forgotten = self._report_soon
        self._tls = {HTTP: options.http_tls(), GRPC: options.grpc_tls()}
        for watch in self._tls.values():
            if watch is not None:
                self._start(watch.run())
        self._start(self._sweep())
        self._start(self._trim())
        self._lag = LoopLag(loop, self._report_soon)
        self._lag.start()
        self._channel.send(Alive(0))
        await self._ended
        self._lag.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        log.flush()

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # From the server process.

    def _on_message(self, message: ToFrontend) -> None:
        match message:
            case Respond():
                self._requests.on_responses(message)
            case Accept():
                try:
                    sock = socket.socket(fileno=self._channel.link.pop_fd())
                except LostDescriptorError:
                    log.error("no descriptors are left: a connection was lost")
                    self._num_accepted[message.endpoint] += 1
                    self._report_soon()
                else:
                    self._start(self._accept(message, sock))
            case Models():
                self._models.update(message)
                self._channel.send(Current(message.generation))
            case Rates() | Entered() | KeyState():
                self._on_key_message(message)
            case CallReply():
                self._grpc.calls.on_reply(message)
            case CallSend():
                self._grpc.calls.on_send(message)
            case CallFinish():
                self._grpc.calls.on_finish(message)
            case CallPause():
                self._grpc.calls.on_pause(message)
            case CallIdle():
                self._grpc.calls.on_idle(message)
            case AskAlive():
                self._channel.send(Alive(message.number, self._busy_share()))
            case GiveUp():
                self._http.give_up(message.share)
            case AnnounceStop():
                self._start(self._announce_stop(message.limit_s))
            case Stop():
                self._start(self._stop(message.grace_s))
            case Logging():
                log.update(message.settings)
            case ReadAgain():
                self._read_again()

    def _on_bad_outputs(self, model_name: str, model_version: str) -> None:
        self._channel.send(BadOutputs(model_name, model_version))

    def _on_key_message(self, message: Rates | Entered | KeyState) -> None:
        guard = self._guard
        assert guard is not None
        match message:
            case Rates():
                guard.on_rates(message)
            case Entered():
                guard.on_entered(message)
            case KeyState():
                # What has been let in by the old keys must be sent before the server hears that
                # they are out of use.
                self._requests.flush()
                try:
                    guard.update(message)
                except NaiadError as error:
                    log.error(f"a frontend process cannot use the API keys: {error.message}")
                    self._channel.close("the API keys could not be read")
                else:
                    self._channel.send(KeysCurrent(message.generation))

    def _on_close(self, reason: str) -> None:
        """The server process is gone, or tells this one to exit by closing the channel. Without it
        nothing can be served. Connections break off, as those of one process would: nobody knows
        which requests have been executed."""
        if not self._ended.done():
            self._ended.set_result(reason)

    async def _announce_stop(self, limit_s: float) -> None:
        await self._grpc.endpoint.announce_stop(limit_s)
        self._requests.flush()
        self._channel.send(StopAnnounced())

    async def _stop(self, grace_s: float) -> None:
        await asyncio.gather(self._http.stop(grace_s), self._grpc.stop(grace_s))
        self._report_counts()
        self._channel.close("stopped")

    def _read_again(self) -> None:
        try:
            log.reopen()
        except OSError as error:
            log.error(f"the log file could not be opened again: {error.strerror}")
        for watch in self._tls.values():
            if watch is not None:
                try:
                    watch.reread()
                except NaiadError as error:
                    log.error(f"the certificates stay as they were: {error.message}")

    def _busy_share(self) -> float:
        """The part of the time since the last call in which the event loop had work."""
        (then_s, then_worked_s), now_s, worked_s = self._measured, time.monotonic(), _worked_s()
        self._measured = now_s, worked_s
        return (worked_s - then_worked_s) / max(now_s - then_s, 1e-3)

    # Connections.

    async def _accept(self, message: Accept, sock: socket.socket) -> None:
        sock.setblocking(False)
        endpoint = message.endpoint
        tls = self._tls[endpoint]
        try:
            await self._loop.connect_accepted_socket(
                self._grpc.endpoint.protocol_factory
                if endpoint == GRPC
                else lambda: self._http_connection(message),
                sock,
                ssl=None if tls is None else tls.context,
                ssl_handshake_timeout=None if tls is None else HANDSHAKE_TIMEOUT_S,
            )
        except (OSError, TimeoutError):
            sock.close()  # the client has gone, or the handshake failed
        self._num_accepted[endpoint] += 1
        self._report_soon()

    def _http_connection(self, message: Accept) -> Http1Connection:
        connection = self._http.endpoint.protocol_factory()
        if message.data:
            connection.resume_after_move(message.data, message.num_moves)
        return connection

    def _send_away(self, descriptor: int, data: bytes, num_moves: int, peer: Peer | None) -> None:
        self._channel.send(Leave(data, num_moves + 1, peer), [descriptor])

    def _report_soon(self) -> None:
        if not self._is_report_due:
            self._is_report_due = True
            self._loop.call_later(REPORT_S, self._report)

    def _report(self) -> None:
        """Tells the server process how many connections there are, and what clients did wrong."""
        self._is_report_due = False
        num_open = {
            HTTP: len(self._http.endpoint.connections),
            GRPC: len(self._grpc.endpoint.connections),
        }
        self._channel.send(Connections(num_open, dict(self._num_accepted)))
        self._report_counts()

    def _report_counts(self) -> None:
        faults = {
            HTTP: dict(self._http.endpoint.faults),
            GRPC: dict(self._grpc.endpoint.counters.failures),
        }
        lag = self._lag
        counted = Counted(faults, lag.max_lag_s, lag.max_busy_s, log.num_dropped())
        if counted != self._counted:
            self._counted = counted
            self._channel.send(counted)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._report_counts()
            self._grpc.calls.cancel_ended()
            log.report_repeats()
            dropped = self._arena.trim(SLOT_IDLE_NS)
            if dropped:
                self._channel.link.drop_slots(dropped)

    async def _trim(self) -> None:
        memory_trim, idle_trim = MemoryTrim(self._budget), IdleTrim()
        while True:
            await asyncio.sleep(TRIM_S)
            trim = memory_trim.due() or idle_trim.due()
            if trim is not None:
                await self._loop.run_in_executor(None, trim)
