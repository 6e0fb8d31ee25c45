"""The life of the server process: start, serve, drain, stop.

Ports are bound before models load, so that a port in use is reported at once and liveness probes
succeed at once. The `Started ... at` lines that scripts wait for are printed when the models have
been loaded, as in Triton.
On SIGTERM the server becomes not ready, then stops accepting requests, finishes the requests in
flight, closes the connections, finalizes the models and exits with 0. Requests that do not finish
in time are cancelled. A second signal, or a model that does not stop in time, forces the exit.
On SIGHUP the server reads its files again (naiad.core.reread).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import math
import os
import resource
import shutil
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import uvloop

from naiad import __version__, log, tables, wiring
from naiad.core.install_advice import shell_command
from naiad.core.memory_trim import MemoryTrim, limit_kept_memory
from naiad.core.reread import Reread
from naiad.errors import Code, NaiadError
from naiad.frontend_process.frontends import Frontends
from naiad.frontend_process.launcher import LauncherProcess
from naiad.frontend_process.messages import GRPC, HTTP
from naiad.frontends.grpc.frontend import GrpcFrontend
from naiad.frontends.http.frontend import HttpFrontend
from naiad.frontends.metrics import MetricsFrontend
from naiad.instances.heartbeat import HEARTBEAT_NS
from naiad.instances.template_process import Templates
from naiad.keys.unmatched import unmatched_patterns
from naiad.metrics.custom import CustomMetrics
from naiad.metrics.loop_lag import LongestOf, LoopLag
from naiad.metrics.page import MetricsPage
from naiad.repository.check.layout import layout_hints
from naiad.repository.load.failure import failure_summary
from naiad.settings import Settings
from naiad.settings.exposure import exposure_warning
from naiad.stores.location import is_remote
from naiad.transport.certificate_watch import CertificateWatch
from naiad.transport.http1.endpoint import Http1Endpoint
from naiad.transport.http1.limits import Http1Limits
from naiad.transport.listening import bind
from naiad.transport.tls import HANDSHAKE_TIMEOUT_S

LISTEN_BACKLOG = 4096
MAX_FINALIZE_S = 5.0
ANNOUNCE_S = 1.0
FINALIZE_SHARE = 0.25
"""The part of --exit-timeout-secs, up to MAX_FINALIZE_S, that is kept for connections to close and
models to finalize: requests in flight are cancelled before."""
SAME_STOP_S = 1.0
"""A signal that comes again within this time of the first is the same request to stop."""
SWITCH_INTERVAL_S = 0.001
"""A thread that decodes a large request gives the interpreter lock back to the event loop this
soon."""
NO_TERMINAL_COLUMNS = 100
"""The width of tables in a file or a pipe."""
MAX_THREADS = 256
"""A store that hangs holds a thread for each request that waits for it; others need theirs."""
LEAVE_S = 0.5
"""How long the end waits for threads."""


def run(settings: Settings) -> int:
    """Runs the server and returns the exit code.

    0: clean shutdown. 1: the server could not start, or the shutdown was forced.
    """
    log.capture_library_logging()
    _raise_file_limit()
    limit_kept_memory()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    launcher: LauncherProcess | None = None
    try:
        wiring.hide_secrets(settings)
        launcher = wiring.start_frontend_launcher(settings)
        # What has been imported lives as long as the process: a full collection that walks through
        # it costs milliseconds, and a busy server collects all the time.
        gc.freeze()
        return uvloop.run(_run(settings, launcher))
    except NaiadError as error:
        _print_failure(error)
        return 1
    finally:
        # The exit status is decided, and a further signal must not change it.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        if launcher is not None:
            launcher.close()
        log.report_repeats(is_final=True)
        log.flush()


async def _run(settings: Settings, launcher: LauncherProcess | None) -> int:
    """A thread that waits for a store cannot be interrupted, and the loop and the interpreter would
    wait for it."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(MAX_THREADS, "naiad"))
    try:
        status = await Server(settings, launcher).run()
    except NaiadError as error:
        _print_failure(error)
        status = 1
    leaving = threading.Timer(LEAVE_S, _leave, [status])
    leaving.daemon = True
    leaving.start()
    return status


def _leave(status: int) -> None:
    log.report_repeats(is_final=True)
    log.flush()
    os._exit(status)


def _print_failure(error: NaiadError) -> None:
    log.flush()
    print(f"error: creating server: {error.code} - {error.message}", file=sys.stderr)
    if error.details:
        print(error.details, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class _Endpoint:
    name: str
    """Triton's name for it, as in the `Started ... at` line."""
    is_allowed: bool
    address: str
    port: int
    protocol_factory: Callable[[], asyncio.BaseProtocol]
    tls: CertificateWatch | None = None
    reuse_port: bool = False
    frontend: str | None = None
    """The endpoint of frontend processes that new connections go to; None if they begin here."""


class StopSignals:
    """Decides which signals are a request to stop of their own.

    `timeout` signals its child and then its process group, to which the child belongs: the same
    signal arrives twice for one stop, and on a busy machine not at the same moment. Another signal,
    or the same one after SAME_STOP_S, is a second request. The time runs from the first of them, so
    that somebody who repeats a signal quickly is heard, too.
    """

    def __init__(self) -> None:
        self._last: signal.Signals | None = None
        self._last_s = -math.inf

    def is_new(self, number: signal.Signals, now_s: float) -> bool:
        if number is self._last and now_s - self._last_s <= SAME_STOP_S:
            return False
        self._last, self._last_s = number, now_s
        return True


class Server:
    def __init__(self, settings: Settings, launcher: LauncherProcess | None = None) -> None:
        """`launcher` starts frontend processes; None where this process serves alone."""
        self._settings = settings
        self._launcher = launcher
        self._frontends: Frontends | None = None
        self._shared_listeners: list[socket.socket] = []
        """Listening sockets whose connections go to frontend processes."""
        self._signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
        self._listeners: list[asyncio.Server] = []
        self._certificates: list[CertificateWatch] = []
        self._stop_signals = StopSignals()
        self._unmatched: set[tuple[str, str]] = set()
        """Patterns of keys that match no model, of which the log has warned."""
        self.reread = Reread()
        """What SIGHUP reads again."""
        self._failed = ""
        """Which models failed at the start, and why."""

    async def run(self) -> int:
        settings, loop = self._settings, asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        self.reread.subscribe("the log file", log.reopen)
        self._templates = Templates(loop, wiring.worker_setup(settings, os.environ))
        try:
            custom = CustomMetrics()
            lag = LoopLag(loop)
            lag.start()
            launcher = self._launcher
            self._core = wiring.build_core(
                settings,
                loop,
                self._templates,
                custom,
                None if launcher is None else launcher.budget,
            )
            if launcher is not None:
                self._frontends = wiring.build_frontends(loop, launcher, self._core)
            self._keys = wiring.build_keys(settings)
            guard = None if self._keys is None else self._keys.guard
            if self._keys is not None:
                self.reread.subscribe("the API keys", self._keys.reread)
                self._core.reserve_tokens = wiring.token_reservation(self._keys)
            self._console = wiring.build_console(settings, self._core, custom, self._keys)
            self._http = HttpFrontend(
                self._core,
                wiring.http_options(settings),
                custom.values,
                guard,
                None if self._keys is None else self._keys.watch,
                (lambda: self._page.render()) if settings.allow_metrics else None,
                [] if self._console is None else self._console.entries(),
                None if self._frontends is None else self._frontends.leaves,
                None if self._frontends is None else self._frontends.leaves_openai,
            )
            if self._console is not None:
                self._console.num_connections = lambda: self._connections()["http"]
                self._console.start()
            self._grpc = GrpcFrontend(self._core, wiring.grpc_options(settings), guard)
            self._page = MetricsPage(
                settings,
                lambda: wiring.model_series(self._core),
                custom,
                self._connections,
                lambda: wiring.cache_reading(self._core),
                self._faults,
                lambda: wiring.key_reading(self._keys),
                self._core.budget,
                lag if self._frontends is None else LongestOf(lag, self._frontends),
                self._num_lines_lost,
            )
            if self._console is not None:
                self._console.read_host = lambda: self._page.sampler.latest
            self._metrics = Http1Endpoint(
                MetricsFrontend(self._page.render, guard).route,
                Http1Limits(),
                budget=self._core.budget,
            )
            if self._frontends is not None:
                await self._frontends.start(self._http.endpoint, self._grpc.endpoint, self._keys)
            services = await self._listen()
            async with (
                self._response_cache(),
                self._heartbeat(),
                self._metrics_page(),
                self._key_updates(),
                self._certificate_updates(),
            ):
                status = await self._start()
                if status is not None:
                    return status
                if self._frontends is not None:
                    await self._frontends.publish()
                for name, address in services:
                    log.info(f"Started {name} at {address}")
                self._print_addresses(dict(services))
                if self._failed:
                    log.error(self._failed)
                self._warn_of_patterns()
                if self._keys is not None and self._keys.watch is not None:
                    self._keys.watch.on_read = self._warn_of_patterns
                if warning := exposure_warning(settings):
                    log.warning(warning)
                await self._signals.get()
                limit_s = settings.drain_delay_secs + settings.exit_timeout_secs
                return await self._end(self._drain(), limit_s)
        finally:
            self._stop_listening()
            if self._frontends is not None:
                self._frontends.close()
            self._templates.close()

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stop_signals.is_new(number, time.monotonic()):
            self._signals.put_nowait(number)

    def _on_hangup(self) -> None:
        self.reread.run()
        if self._frontends is not None:
            self._frontends.read_again()

    # Start.

    async def _listen(self) -> list[tuple[str, str]]:
        """Binds every endpoint and returns (service, address) of each.

        Raises NaiadError.
        """
        services: list[tuple[str, str]] = []
        for endpoint in self._endpoints():
            if not endpoint.is_allowed:
                continue
            sock = _bind(endpoint)
            await self._accept_from(sock, endpoint)
            if endpoint.tls is not None:
                self._certificates.append(endpoint.tls)
                self.reread.subscribe(f"the certificates of {endpoint.name}", endpoint.tls.reread)
            services.append((endpoint.name, f"{endpoint.address}:{sock.getsockname()[1]}"))
        return services

    async def _accept_from(self, sock: socket.socket, endpoint: _Endpoint) -> None:
        """Connections that cannot move after their first request go to a frontend process at once;
        all others begin here."""
        loop = asyncio.get_running_loop()
        context = None if endpoint.tls is None else endpoint.tls.context
        handshake_s = None if endpoint.tls is None else HANDSHAKE_TIMEOUT_S
        if self._frontends is None or endpoint.frontend is None:
            self._listeners.append(
                await loop.create_server(
                    endpoint.protocol_factory,
                    sock=sock,
                    backlog=LISTEN_BACKLOG,
                    ssl=context,
                    ssl_handshake_timeout=handshake_s,
                )
            )
            return

        async def serve_here(connection: socket.socket) -> None:
            with contextlib.suppress(OSError, TimeoutError):
                await loop.connect_accepted_socket(
                    endpoint.protocol_factory,
                    connection,
                    ssl=context,
                    ssl_handshake_timeout=handshake_s,
                )

        self._shared_listeners.append(sock)
        self._frontends.listen(endpoint.frontend, sock, LISTEN_BACKLOG, serve_here)

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()
        for sock in self._shared_listeners:
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()
        self._shared_listeners.clear()

    def _endpoints(self) -> list[_Endpoint]:
        """Raises NaiadError for bad TLS files, even those of an endpoint that is not allowed."""
        settings = self._settings
        http_tls = wiring.http_tls(settings)
        return [
            _Endpoint(
                "GRPCInferenceService",
                settings.allow_grpc,
                settings.grpc_address,
                settings.grpc_port,
                self._grpc.protocol_factory,
                wiring.grpc_tls(settings),
                reuse_port=settings.reuse_grpc_port,
                frontend=GRPC,
            ),
            _Endpoint(
                "HTTPService",
                settings.allow_http,
                settings.http_address,
                settings.http_port,
                self._http.protocol_factory,
                http_tls,
                reuse_port=settings.reuse_http_port,
                frontend=None if http_tls is None else HTTP,
            ),
            _Endpoint(
                "Metrics Service",
                settings.allow_metrics,
                settings.metrics_address or settings.http_address,
                settings.metrics_port,
                self._metrics.protocol_factory,
            ),
        ]

    async def _start(self) -> int | None:
        """Loads the models. Returns the exit code if a signal came first.

        Raises NaiadError if a model failed to load and the settings make that fatal.
        """
        loading = asyncio.ensure_future(self._core.repository.start())
        interrupted = asyncio.ensure_future(self._signals.get())
        await asyncio.wait([loading, interrupted], return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            log.info("interrupted while models were loading")
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
            return await self._end(self._core.repository.stop(), self._settings.exit_timeout_secs)
        if interrupted.done():  # the signal came in the same iteration as the last model
            self._signals.put_nowait(interrupted.result())
        interrupted.cancel()
        self._print_tables()
        hints = self._layout_hints()
        for hint in hints:
            log.warning(hint)
        start = loading.result()
        failed = [failure_summary(start.failures, start.num_models)] if start.failures else []
        self._failed = "\n".join([*start.problems, *failed])
        if not start.is_success and self._settings.exit_on_error:
            await self._end(self._core.repository.stop(), self._settings.exit_timeout_secs)
            details = "\n".join(filter(None, [*hints, self._failed]))
            raise NaiadError(Code.INTERNAL, "failed to load all models", details=details)
        self._core.is_started = True
        return None

    def _layout_hints(self) -> list[str]:
        repositories = [path for path in self._settings.model_repository if not is_remote(path)]
        return [hint for path in repositories for hint in layout_hints(Path(path))]

    def _print_addresses(self, services: dict[str, str]) -> None:
        """Where the server listens, and a command to try."""
        settings = self._settings
        http_scheme = "https" if settings.http_use_ssl or settings.http_use_ssl_mutual else "http"
        urls = {name: _reachable(address) for name, address in services.items()}
        rows: list[tuple[str, str]] = []
        if "HTTPService" in urls:
            rows.append(("HTTP", f"{http_scheme}://{urls['HTTPService']}"))
            if self._console is not None:
                url = f"{http_scheme}://{urls['HTTPService']}/console"
                rows.append(("Console", self._console.link(url, settings.http_port)))
        if "GRPCInferenceService" in urls:
            rows.append(("gRPC", urls["GRPCInferenceService"]))
        if "Metrics Service" in urls:
            rows.append(("Metrics", f"http://{urls['Metrics Service']}/metrics"))
        names = sorted(model.name for model in self._core.repository.models() if model.is_serving)
        if "HTTPService" in urls and names:
            url = f"{http_scheme}://{urls['HTTPService']}"
            rows.append(("Try", f"curl -s {url}/v2/models/{names[0]}"))
            if http_scheme == "http":
                perf = f"{shell_command()} perf -m {names[0]} -u {urls['HTTPService']}"
                rows.append(("", perf))
        if rows:
            # A link that is broken into two lines cannot be clicked.
            columns = max(_columns(), max(len(address) for _, address in rows) + 30)
            log.table(tables.render_table(["Service", "Address"], rows, columns), is_secret=True)

    def _print_tables(self) -> None:
        settings = self._settings
        columns = _columns()
        log.table(tables.model_table(self._core.repository.status_rows(), columns))
        log.table(tables.option_table(settings, __version__, wiring.EXTENSIONS, columns))

    # Shutdown.

    async def _end(self, draining: Coroutine[None, None, None], limit_s: float) -> int:
        """Returns the exit code. A second signal or the timeout interrupts the drain."""
        forced = asyncio.ensure_future(self._signals.get())
        drained = asyncio.ensure_future(draining)
        try:
            await asyncio.wait(
                [forced, drained], timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            is_clean = drained.done() and drained.exception() is None
            for task in (forced, drained):
                task.cancel()
            await asyncio.gather(forced, drained, return_exceptions=True)
        if not is_clean:
            is_forced = forced.done() and not forced.cancelled()
            reason = "Second signal: exiting" if is_forced else "Exit timeout expired. Exiting"
            log.error(f"{reason} immediately.")
            return 1
        return 0

    async def _drain(self) -> None:
        repository = self._core.repository
        self._core.is_draining = True
        if self._settings.drain_delay_secs:
            log.info(f"Not ready; stopping in {self._settings.drain_delay_secs:g} s")
            await asyncio.sleep(self._settings.drain_delay_secs)
        self._stop_listening()
        if self._console is not None:
            self._console.stop()
        log.info("Waiting for in-flight requests to complete.")
        timeout_s = float(self._settings.exit_timeout_secs)
        finalize_s = min(MAX_FINALIZE_S, timeout_s * FINALIZE_SHARE)
        end_s = time.monotonic() + timeout_s - finalize_s
        await self._announce_stop(min(ANNOUNCE_S, timeout_s - finalize_s))
        self._core.is_exiting = True
        log.info(
            f"Timeout {timeout_s:g}: Found {repository.num_with_inflight()} model versions that "
            "have in-flight inferences"
        )
        draining = asyncio.ensure_future(repository.drain())
        try:
            await asyncio.wait([draining], timeout=end_s - time.monotonic())
            if not draining.done():
                log.warning(
                    f"{repository.num_with_inflight()} model versions still have in-flight "
                    "inferences, which are cancelled"
                )
            grace_s = max(end_s - time.monotonic(), 0.0)
            # Closing the connections cancels the requests that are still in flight.
            await asyncio.gather(
                self._http.stop(grace_s),
                self._grpc.stop(grace_s),
                self._metrics.stop(1.0),
                self._stop_frontends(grace_s),
            )
            # A model that does not stop must not keep the others from finalizing.
            await asyncio.wait([draining], timeout=finalize_s / 2)
        finally:
            draining.cancel()
        log.info("All models are stopped, unloading models")
        log.info(
            f"Timeout {timeout_s:g}: Found {len(list(repository.models()))} live models and 0 "
            "in-flight non-inference requests"
        )
        await repository.stop()
        self._core.regions.close()
        await asyncio.get_running_loop().run_in_executor(None, self._core.tracing.close)

    async def _announce_stop(self, limit_s: float) -> None:
        """Clients learn that they must begin nothing new before requests are refused: the messages
        of a stream, which are on their way, cannot be sent elsewhere."""
        waits = [self._grpc.endpoint.announce_stop(limit_s)]
        if self._frontends is not None:
            waits.append(self._frontends.announce_stop(limit_s))
        await asyncio.gather(*waits)

    async def _stop_frontends(self, grace_s: float) -> None:
        if self._frontends is not None:
            await self._frontends.stop(grace_s)

    # While the server runs.

    @contextlib.asynccontextmanager
    async def _heartbeat(self) -> AsyncIterator[None]:
        memory_trim = MemoryTrim(self._core.budget)

        async def repeat() -> None:
            while True:
                await asyncio.sleep(HEARTBEAT_NS / 1e9)
                self._core.repository.heartbeat(time.monotonic_ns())
                if self._console is not None:
                    self._console.heartbeat(time.time())
                log.report_repeats()
                trim = memory_trim.due()
                if trim is not None:
                    await asyncio.get_running_loop().run_in_executor(None, trim)

        task = asyncio.ensure_future(repeat())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _warn_of_patterns(self) -> None:
        """Warns once of each pattern of a key that matches no model."""
        if self._keys is None:
            return
        names = {row.name for row in self._core.repository_index(ready_only=False)}
        found = unmatched_patterns(self._keys.guard.table.identities(), names)
        for key_id, pattern in found:
            if (key_id, pattern) not in self._unmatched:
                log.warning(
                    f"API key '{key_id}': the pattern '{pattern}' in its models matches no model "
                    f"of this server, which has {', '.join(sorted(names)[:20]) or 'none'}"
                )
        self._unmatched = set(found)

    @contextlib.asynccontextmanager
    async def _key_updates(self) -> AsyncIterator[None]:
        if self._keys is None:
            yield
            return
        async with self._keys.running():
            yield

    @contextlib.asynccontextmanager
    async def _certificate_updates(self) -> AsyncIterator[None]:
        tasks = [asyncio.ensure_future(watch.run()) for watch in self._certificates]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()

    @contextlib.asynccontextmanager
    async def _response_cache(self) -> AsyncIterator[None]:
        cache = self._core.cache
        if cache is not None:
            await cache.start()
        try:
            yield
        finally:
            if cache is not None:
                await cache.close()

    @contextlib.asynccontextmanager
    async def _metrics_page(self) -> AsyncIterator[None]:
        if self._settings.allow_metrics:
            self._page.start()
        try:
            yield
        finally:
            self._page.stop()

    def _connections(self) -> dict[str, int]:
        """The open connections of all processes."""
        here = {HTTP: self._http.num_connections, GRPC: self._grpc.num_connections}
        if self._frontends is None:
            return here
        return {name: num + self._frontends.num_connections(name) for name, num in here.items()}

    def _num_lines_lost(self) -> int:
        """In all processes."""
        frontends = self._frontends
        return log.num_dropped() + (0 if frontends is None else frontends.num_lines_lost)

    def _faults(self) -> dict[str, Counter[str]]:
        """What clients did wrong, in all processes."""
        here = {HTTP: self._http.endpoint.faults, GRPC: self._grpc.counters.failures}
        if self._frontends is None:
            return here
        return {name: faults + self._frontends.faults(name) for name, faults in here.items()}


def _columns() -> int:
    return shutil.get_terminal_size((NO_TERMINAL_COLUMNS, 0)).columns


def _reachable(address: str) -> str:
    """An address that a client on this machine can use."""
    host, _, port = address.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bind(endpoint: _Endpoint) -> socket.socket:
    address, port = endpoint.address, endpoint.port
    try:
        return bind(address, port, reuse_port=endpoint.reuse_port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = f"Socket '{address}:{port}' already in use "
        else:
            reason = f"Socket '{address}:{port}': {os.strerror(error.errno or 0)}"
        raise NaiadError(
            Code.UNAVAILABLE, f"failed to start {endpoint.name}: Unavailable - {reason}"
        ) from error


def _raise_file_limit() -> None:
    """Raises the soft limit of open files, often 1024: connections and workers need descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
