"""The life of the router process: start, route, drain, stop.

On SIGTERM the router becomes not ready, stops accepting connections, finishes the requests in
flight and exits with 0. What is left after --exit-timeout-secs is cut off and the exit code is 1; a
second signal does the same at once. On SIGHUP the router reads its config file, keys and log file
again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import signal
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import uvloop

from naiad import log
from naiad.console.router_console import router_console_entries
from naiad.core.memory_budget import MemoryBudget
from naiad.core.reread import Reread
from naiad.errors import Code, NaiadError, invalid_arg
from naiad.frontends.metrics import MetricsFrontend
from naiad.keys.account import Accounts, LimitPart
from naiad.keys.guard import Guard
from naiad.keys.key_file import KeyFile
from naiad.keys.key_table import KeyTable
from naiad.keys.key_watch import KeyWatch
from naiad.keys.keys import Keys
from naiad.keys.usage_file import UsageFile, usage_path
from naiad.machine.memory import machine_memory_bytes
from naiad.metrics.loop_lag import LoopLag
from naiad.router.admin import AdminApi
from naiad.router.config import (
    ReplicaSpec,
    RouterConfig,
    check_replicas,
    parse_replica,
    read_config,
)
from naiad.router.config_watch import ConfigWatch, with_policy
from naiad.router.core import RouterCore
from naiad.router.fleet import Fleet
from naiad.router.grpc_frontend import GrpcRouter
from naiad.router.grpc_pool import GrpcPool
from naiad.router.health import HealthCheck
from naiad.router.http_frontend import HttpRouter, RouterKeys
from naiad.router.http_pool import HttpPool
from naiad.router.kv_subscriber import KvSubscriber
from naiad.router.metrics import RouterMetrics
from naiad.router.options import RouterOptions
from naiad.router.prefixes import Prefixes
from naiad.router.relay import Relay
from naiad.router.replica import Replica, ReplicaState
from naiad.server import ANNOUNCE_S, LISTEN_BACKLOG, StopSignals
from naiad.settings.exposure import is_loopback
from naiad.transport.certificate_watch import CertificateWatch
from naiad.transport.http1.endpoint import Http1Endpoint
from naiad.transport.http1.limits import Http1Limits
from naiad.transport.listening import bind
from naiad.transport.tls import HANDSHAKE_TIMEOUT_S, HTTP1, HTTP2, TlsFiles

MIN_BUDGET_BYTES = 256 * 1024 * 1024
_SWEEP_S = 1.0
_CHECK_STEP_S = 0.01


def run(options: RouterOptions) -> int:
    """Runs the router and returns the exit code. Raises NaiadError for bad options."""
    log.configure(
        log.LogSettings(
            log_file=options.log_file,
            log_verbose_level=options.log_verbose,
            log_json=options.log_json,
            node=options.node_name,
            replica=options.router_name,
        )
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        return uvloop.run(RouterProcess(options).run())
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        log.report_repeats(is_final=True)
        log.flush()


class RouterProcess:
    def __init__(self, options: RouterOptions) -> None:
        """Raises NaiadError."""
        self._options = options
        self._flag_replicas = tuple(parse_replica(text) for text in options.replica)
        config = read_config(Path(options.config)) if options.config else RouterConfig()
        self._config = with_policy(config, options.policy)
        check_replicas((*self._flag_replicas, *config.replica))
        if not options.config and not self._flag_replicas:
            log.warning(
                "the router has no replicas: name them with --replica or --config, or add them "
                "through the admin API"
            )
        self._replica_key = _read_key(options.replica_key_file)
        self._keys = _build_keys(options)
        self._replica_tls = _replica_tls(options)
        self._signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
        self._stop_signals = StopSignals()
        self._reread = Reread()
        self._listeners: list[asyncio.Server] = []
        self._checks: dict[Replica, tuple[HealthCheck, asyncio.Task[None]]] = {}
        self._fleet = Fleet(self._config, on_added=self._on_added, on_removed=self._on_removed)
        self._fleet.on_unreachable = self._check_soon
        self._prefixes = Prefixes()
        self._subscribers: dict[Replica, KvSubscriber] = {}
        self._core = RouterCore(self._config, self._fleet, {"prefix": self._prefixes.make})

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        loop.add_signal_handler(signal.SIGHUP, self._reread.run)
        self._reread.subscribe("the log file", log.reopen)
        lag = LoopLag(loop)
        lag.start()
        self._build_frontends(lag)
        try:
            services = await self._listen()
            async with contextlib.AsyncExitStack() as stack:
                await stack.enter_async_context(self._background())
                if self._keys is not None:
                    self._reread.subscribe("the API keys", self._keys.reread)
                    await stack.enter_async_context(self._keys.running())
                self._add_replicas()
                await self._first_checks()
                for listener in self._listeners:
                    await listener.start_serving()
                for name, address in services:
                    log.info(f"Started {name} at {address}")
                self._warn_of_exposure()
                await self._signals.get()
                return await self._shut_down()
        finally:
            lag.stop()
            for listener in self._listeners:
                listener.close()
            for replica in list(self._checks):
                self._on_removed(replica)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stop_signals.is_new(number, time.monotonic()):
            self._signals.put_nowait(number)

    # Start.

    def _build_frontends(self, lag: LoopLag) -> None:
        options = self._options
        budget = MemoryBudget(
            options.request_memory_byte_size or max(machine_memory_bytes() // 4, MIN_BUDGET_BYTES)
        )
        guard = None if self._keys is None else self._keys.guard
        keys = RouterKeys(guard, self._replica_key if guard is not None else "")
        admin = AdminApi(
            self._core,
            self._check_soon,
            is_local_only=guard is None and not options.remote_admin,
        )
        limits = Http1Limits(max_body_bytes=options.max_input_size)
        console = router_console_entries(guard, is_tls=bool(options.http_server_cert))
        more = [*admin.entries(), *console]
        self._http = HttpRouter(self._core, keys, limits, budget, more)
        self._grpc = GrpcRouter(self._core, keys, budget)
        page = RouterMetrics(
            self._core,
            lag,
            lambda: {
                "http": len(self._http.endpoint.connections),
                "grpc": len(self._grpc.endpoint.connections),
            },
            options.router_name,
        )
        self._metrics = Http1Endpoint(
            MetricsFrontend(page.render, guard).route, Http1Limits(), budget=budget
        )

    async def _listen(self) -> list[tuple[str, str]]:
        """Raises NaiadError."""
        options = self._options
        is_tls = bool(options.http_server_cert or options.http_server_key)
        files = TlsFiles("http", options.http_server_cert, options.http_server_key)
        http_tls = CertificateWatch(files, HTTP1) if is_tls else None
        grpc_tls = CertificateWatch(files, HTTP2) if is_tls else None
        self._certificates = [watch for watch in (http_tls, grpc_tls) if watch is not None]
        for watch in self._certificates:
            self._reread.subscribe("the certificates", watch.reread)
        metrics_address = options.metrics_address or options.http_address
        services: list[tuple[str, str]] = []
        rows: list[
            tuple[str, str, int, Callable[[], asyncio.BaseProtocol], CertificateWatch | None]
        ] = [
            (
                "GRPCInferenceService",
                options.grpc_address,
                options.grpc_port,
                self._grpc.protocol_factory,
                grpc_tls,
            ),
            (
                "HTTPService",
                options.http_address,
                options.http_port,
                self._http.protocol_factory,
                http_tls,
            ),
            (
                "Metrics Service",
                metrics_address,
                options.metrics_port,
                self._metrics.protocol_factory,
                None,
            ),
        ]
        for name, address, port, factory, tls in rows:
            try:
                listener = await asyncio.get_running_loop().create_server(
                    factory,
                    sock=bind(address, port, reuse_port=options.reuse_port),
                    backlog=LISTEN_BACKLOG,
                    start_serving=False,
                    ssl=None if tls is None else tls.context,
                    ssl_handshake_timeout=None if tls is None else HANDSHAKE_TIMEOUT_S,
                )
            except OSError as error:
                reason = (
                    "already in use"
                    if error.errno == errno.EADDRINUSE
                    else os.strerror(error.errno or 0)
                )
                raise NaiadError(
                    Code.UNAVAILABLE, f"failed to start {name}: '{address}:{port}' {reason}"
                ) from error
            self._listeners.append(listener)
            self._fleet.own_places |= {sock.getsockname()[:2] for sock in listener.sockets}
            host = f"[{address}]" if ":" in address else address
            services.append((name, f"{host}:{listener.sockets[0].getsockname()[1]}"))
        return services

    def _add_replicas(self) -> None:
        for spec in self._flag_replicas:
            self._fleet.add(spec, "flag")
        for spec in self._config.replica:
            self._fleet.add(spec, "file")

    async def _first_checks(self) -> None:
        """Waits until every replica has been checked once, or the time of a check is over: a client
        that is accepted before would be told that nobody can serve its request."""
        end_s = time.monotonic() + self._config.health.timeout_s + _CHECK_STEP_S
        while time.monotonic() < end_s and any(
            replica.state is ReplicaState.STARTING for replica in self._fleet
        ):
            await asyncio.sleep(_CHECK_STEP_S)

    def _warn_of_exposure(self) -> None:
        options = self._options
        is_open = not is_loopback(options.http_address) or not is_loopback(options.grpc_address)
        if is_open and self._keys is None:
            log.info(
                "The router checks no API keys; the replicas do, if they have any. To check them "
                "here, start the router with --api-key-file."
            )

    # Replicas.

    def _on_added(self, replica: Replica) -> None:
        """Raises NaiadError, and has opened nothing then."""
        spec: ReplicaSpec = replica.spec
        loop = asyncio.get_running_loop()
        if spec.kv_events:
            self._subscribers[replica] = KvSubscriber(
                spec.kv_events,
                spec.kv_replay,
                loop,
                lambda topic, events: self._prefixes.on_events(replica, topic, events),
            )
        address, grpc = spec.http_address, spec.grpc_address
        tls = self._replica_tls
        replica.http_pool = HttpPool(
            address, tls() if address.is_tls else None, self._options.max_connections
        )
        if grpc is not None:
            context = tls() if grpc.is_tls else None
            if context is not None:
                context.set_alpn_protocols([HTTP2])
            replica.grpc_pool = GrpcPool(grpc, context)
        check = HealthCheck(
            self._fleet,
            replica,
            tls=tls() if address.is_tls else None,
            key=self._replica_key,
            on_down=self._on_down,
        )
        self._checks[replica] = check, loop.create_task(check.run())

    def _on_removed(self, replica: Replica) -> None:
        check = self._checks.pop(replica, None)
        if check is not None:
            check[1].cancel()
        subscriber = self._subscribers.pop(replica, None)
        if subscriber is not None:
            subscriber.stop()
        self._prefixes.forget(replica)
        replica.http_pool.close()
        if replica.grpc_pool is not None:
            replica.grpc_pool.close()

    def _check_soon(self, replica: Replica) -> None:
        if replica in self._checks:
            self._checks[replica][0].check_soon()

    def _on_down(self, replica: Replica, reason: str, is_long: bool) -> None:
        """Requests without a response so far move to other replicas; after a long time all of them
        fail."""

        def should_fail(owner: object) -> bool:
            return is_long or (isinstance(owner, Relay) and owner.may_move)

        replica.http_pool.fail_waiting(reason, should_fail)
        if replica.grpc_pool is not None:
            replica.grpc_pool.fail_waiting(reason, should_fail)

    @contextlib.asynccontextmanager
    async def _background(self) -> AsyncIterator[None]:
        tasks = [
            asyncio.ensure_future(self._sweep()),
            *(asyncio.ensure_future(watch.run()) for watch in self._certificates),
        ]
        if self._options.config:
            watch = ConfigWatch(Path(self._options.config), self._core, self._options.policy)
            self._reread.subscribe("the config file", watch.reread)
            tasks.append(asyncio.ensure_future(watch.run()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _sweep(self) -> None:
        last_s = time.monotonic()
        while True:
            await asyncio.sleep(_SWEEP_S)
            now_s = time.monotonic()
            for replica in [*self._fleet, *self._fleet.leaving]:
                replica.http_pool.sweep(now_s)
                if replica.grpc_pool is not None:
                    replica.grpc_pool.sweep(now_s)
            if now_s - last_s >= self._fleet.config.outlier.interval_s:
                last_s = now_s
                self._fleet.evaluate()
            log.report_repeats()

    # Shutdown.

    async def _shut_down(self) -> int:
        forced = asyncio.ensure_future(self._signals.get())
        drained = asyncio.ensure_future(self._drain())
        options = self._options
        try:
            await asyncio.wait(
                [forced, drained],
                timeout=options.drain_delay_secs + options.exit_timeout_secs + 2.0,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            is_clean = drained.done() and drained.exception() is None and drained.result()
            for task in (forced, drained):
                task.cancel()
            await asyncio.gather(forced, drained, return_exceptions=True)
        if not is_clean:
            log.error("Requests were still in flight and have been cut off.")
            return 1
        log.info("The router has stopped.")
        return 0

    async def _drain(self) -> bool:
        """Returns True if every request has ended."""
        options = self._options
        self._core.is_stopping = True
        if options.drain_delay_secs:
            log.info(f"Not ready; stopping in {options.drain_delay_secs:g} s")
            await asyncio.sleep(options.drain_delay_secs)
        for listener in self._listeners:
            listener.close()
        log.info("Waiting for in-flight requests to complete.")
        end_s = time.monotonic() + options.exit_timeout_secs
        await self._grpc.endpoint.announce_stop(min(ANNOUNCE_S, options.exit_timeout_secs))
        await asyncio.gather(
            self._http.endpoint.stop(options.exit_timeout_secs),
            self._grpc.endpoint.stop(options.exit_timeout_secs),
        )
        is_clean = time.monotonic() < end_s or not options.exit_timeout_secs
        await self._metrics.stop(1.0)
        return is_clean


def _read_key(path: str) -> str:
    """Raises NaiadError."""
    if not path:
        return ""
    try:
        key = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise invalid_arg(f"--replica-key-file: cannot read '{path}': {error}") from None
    if not key or any(character.isspace() for character in key):
        raise invalid_arg(f"--replica-key-file: '{path}' must hold one API key and nothing else")
    return key


def _build_keys(options: RouterOptions) -> Keys | None:
    """Raises NaiadError."""
    if options.router_index >= options.num_routers:
        raise invalid_arg(
            f"--router-index is {options.router_index}, expected less than --num-routers, "
            f"{options.num_routers}"
        )
    if not options.api_key_file:
        return None
    table = KeyTable(())
    watch = KeyWatch(KeyFile(Path(options.api_key_file)), table)
    watch.load()
    part = LimitPart(options.router_index, options.num_routers)
    accounts = Accounts(part=part)
    path = usage_path(Path(options.api_key_file))
    if part.count > 1:  # routers on one machine may share the key file, but not what they count
        path = path.with_name(f"{path.name}-{part.index}")
    usage = UsageFile(path, accounts, time.time)
    usage.load()
    return Keys(Guard(table, accounts=accounts), watch, usage)


def _replica_tls(options: RouterOptions) -> Callable[[], ssl.SSLContext]:
    """Raises NaiadError."""

    def make() -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=options.replica_root_cert or None)
        except (OSError, ssl.SSLError) as error:
            raise invalid_arg(
                f"--replica-root-cert: cannot use '{options.replica_root_cert}': {error}"
            ) from None

    if options.replica_root_cert:
        make()
    return make
