"""The server process as a life: run, start, serve, drain, stop. Only wires; every part lives
elsewhere.

Ports are bound before models load, so that a taken port fails at once and liveness answers at once;
the `Started ... at` lines that scripts wait for come when the models are loaded, as under Triton.
SIGTERM: not ready first, then no new requests, then what is in flight finishes, then models are
finalized, exit 0; a second signal or the timeout forces.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import signal
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable

import uvloop

from naiad import __version__, log, tables, wiring
from naiad.errors import Code, NaiadError, internal
from naiad.frontends.grpc.frontend import GrpcFrontend
from naiad.frontends.http.frontend import HttpFrontend
from naiad.frontends.metrics import MetricsFrontend
from naiad.instances.heartbeat import HEARTBEAT_NS
from naiad.instances.template_process import Templates
from naiad.metrics.custom import CustomMetrics
from naiad.metrics.page import MetricsPage
from naiad.settings import Settings
from naiad.transport.http1.endpoint import Http1Endpoint
from naiad.transport.http1.limits import Http1Limits
from naiad.transport.tls import HANDSHAKE_TIMEOUT_S

LISTEN_BACKLOG = 4096


def run(settings: Settings) -> int:
    """The exit code: 0 after a clean shutdown, 1 when the server could not start or had to be
    forced."""
    log.capture_library_logging()
    _raise_file_limit()
    try:
        return uvloop.run(Server(settings).live())
    except NaiadError as error:
        log.flush()
        print(f"error: creating server: {error.code} - {error.message}", file=sys.stderr)
        return 1
    finally:
        log.flush()


class Server:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
        self._listeners: list[asyncio.Server] = []

    async def live(self) -> int:
        settings, loop = self._settings, asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signals.put_nowait, number)
        self._templates = Templates(loop)
        try:
            custom = CustomMetrics()
            self._core = wiring.build_core(settings, loop, self._templates, custom)
            self._http = HttpFrontend(self._core, wiring.http_options(settings), custom.values)
            self._grpc = GrpcFrontend(self._core, wiring.grpc_options(settings))
            self._page = MetricsPage(
                settings,
                lambda: wiring.model_series(self._core),
                custom,
                self._connections,
                lambda: wiring.cache_reading(self._core),
            )
            self._metrics = Http1Endpoint(MetricsFrontend(self._page.render).route, Http1Limits())
            started = await self._listen()
            async with self._response_cache(), self._heartbeat(), self._metrics_page():
                if not await self._start():
                    return 0
                for line in started:
                    log.info(line)
                await self._signals.get()
                return await self._shut_down()
        finally:
            for listener in self._listeners:
                listener.close()
            self._templates.close()

    # Start.

    async def _listen(self) -> list[str]:
        """Binds every endpoint; the lines to print when the server serves. Raises NaiadError."""
        settings = self._settings
        lines: list[str] = []
        endpoints: list[tuple[bool, str, str, int, bool, Callable[[], asyncio.BaseProtocol], ssl.SSLContext | None]] = [
            (settings.allow_grpc, "GRPCInferenceService", settings.grpc_address, settings.grpc_port, settings.reuse_grpc_port,
             self._grpc.protocol_factory, wiring.grpc_tls(settings)),
            (settings.allow_http, "HTTPService", settings.http_address, settings.http_port, settings.reuse_http_port,
             self._http.protocol_factory, wiring.http_tls(settings)),
            (settings.allow_metrics, "Metrics Service", settings.metrics_address or settings.http_address, settings.metrics_port, False,
             self._metrics.protocol_factory, None),
        ]  # fmt: skip
        for is_allowed, name, address, port, reuse_port, factory, tls in endpoints:
            if is_allowed:
                sock = _bind(name, address, port, reuse_port)
                handshake_s = None if tls is None else HANDSHAKE_TIMEOUT_S
                listener = await asyncio.get_running_loop().create_server(
                    factory,
                    sock=sock,
                    backlog=LISTEN_BACKLOG,
                    ssl=tls,
                    ssl_handshake_timeout=handshake_s,
                )
                self._listeners.append(listener)
                lines.append(f"Started {name} at {address}:{sock.getsockname()[1]}")
        return lines

    async def _start(self) -> bool:
        """Loads the models; False when a signal came first. Raises NaiadError when one failed and
        that is to be fatal."""
        loading = asyncio.ensure_future(self._core.repository.start())
        interrupted = asyncio.ensure_future(self._signals.get())
        await asyncio.wait([loading, interrupted], return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            log.info("interrupted while models were loading")
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
            await self._core.repository.stop()
            return False
        if interrupted.done():  # together with the last model
            self._signals.put_nowait(interrupted.result())
        interrupted.cancel()
        self._print_tables()
        if not loading.result() and self._settings.exit_on_error:
            await self._core.repository.stop()
            raise internal("failed to load all models")
        self._core.is_started = True
        return True

    def _print_tables(self) -> None:
        settings = self._settings
        log.table(tables.model_table(self._core.repository.status_rows()))
        log.table(tables.option_table(settings, __version__, wiring.EXTENSIONS))

    # The end.

    async def _shut_down(self) -> int:
        """Not ready at once; then, after the drain delay, no new requests, and what is in flight is
        finished."""
        forced = asyncio.ensure_future(self._signals.get())
        drained = asyncio.ensure_future(self._drain())
        try:
            limit_s = self._settings.drain_delay_secs + self._settings.exit_timeout_secs
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
            log.error(
                "Second signal: exiting immediately."
                if is_forced
                else "Exit timeout expired. Exiting immediately."
            )
            return 1
        return 0

    async def _drain(self) -> None:
        repository = self._core.repository
        self._core.is_draining = True
        if self._settings.drain_delay_secs:
            log.info(f"Not ready; stopping in {self._settings.drain_delay_secs:g} s")
            await asyncio.sleep(self._settings.drain_delay_secs)
        self._core.is_exiting = True
        for listener in self._listeners:
            listener.close()
        log.info("Waiting for in-flight requests to complete.")
        grace_s = float(self._settings.exit_timeout_secs)
        log.info(
            f"Timeout {grace_s:g}: Found {repository.num_with_inflight()} model versions that have in-flight inferences"
        )
        await repository.drain()
        await asyncio.gather(
            self._http.stop(grace_s), self._grpc.stop(grace_s), self._metrics.stop(1.0)
        )
        log.info("All models are stopped, unloading models")
        log.info(
            f"Timeout {grace_s:g}: Found {len(list(repository.models()))} live models and 0 in-flight non-inference requests"
        )
        await repository.stop()
        self._core.regions.close()
        await asyncio.get_running_loop().run_in_executor(None, self._core.tracing.close)

    # Meanwhile.

    @contextlib.asynccontextmanager
    async def _heartbeat(self) -> AsyncIterator[None]:
        async def beat() -> None:
            while True:
                await asyncio.sleep(HEARTBEAT_NS / 1e9)
                self._core.repository.heartbeat(time.monotonic_ns())

        task = asyncio.ensure_future(beat())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

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
        return {"http": self._http.num_connections, "grpc": self._grpc.num_connections}


def _bind(name: str, address: str, port: int, reuse_port: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if reuse_port:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind((address, port))
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            reason = f"Socket '{address}:{port}' already in use "
        else:
            reason = f"Socket '{address}:{port}': {os.strerror(error.errno or 0)}"
        raise NaiadError(
            Code.UNAVAILABLE, f"failed to start {name}: Unavailable - {reason}"
        ) from error
    sock.setblocking(False)
    return sock


def _raise_file_limit() -> None:
    """Each connection and each worker needs descriptors; the soft limit is often 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
