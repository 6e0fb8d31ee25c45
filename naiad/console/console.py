"""The routes of the console: the pages, signing in, the live state, the last hour, the log.

In:  the core's repository, the guard, and the options. Out: entries for the route table of the HTTP
     endpoint. Everything else that a page does is a request that any script can make: /v2, /v1 and
     /key.
Rule: pages are open to everybody and contain no data. Every route with data has an API class, and
      the one guard decides. Without keys, `LocalGuard` decides about every route that writes,
      starts something or reads files.
"""

from __future__ import annotations

import asyncio
import os
import time
import traceback
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import msgspec

from naiad import log
from naiad.console.assets import page_entries
from naiad.console.deploy_routes import DeployRoutes
from naiad.console.history import INTERVAL_S, History
from naiad.console.key_history import KeyHistory
from naiad.console.live import Live, ServerState
from naiad.console.log_tail import LogTail
from naiad.console.machine_history import MachineHistory
from naiad.console.measure.routes import Addresses, MeasureRoutes
from naiad.console.model_reading import CounterValues, ModelReading, read_models
from naiad.console.process_reading import read_process
from naiad.console.sessions import SessionOptions, Sessions
from naiad.console.traces import TraceRoutes
from naiad.errors import NaiadError, invalid_arg
from naiad.files.console_link import write_link
from naiad.frontends.http.response import refuse_v2, respond_error
from naiad.frontends.http.routes import Entry, Names, simple
from naiad.keys.account import Account
from naiad.keys.api_class import KEYS, LOGGING, STATISTICS
from naiad.keys.guard import Guard
from naiad.keys.local_gate import LocalGuard
from naiad.metrics.host import HostReading
from naiad.repository.deploy.deployer import Deployer
from naiad.repository.repository import Repository
from naiad.trace.tracing import Tracing
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.head import Head
from naiad.transport.http1.response_head import JSON_TYPE
from naiad.transport.http1.route import Route

PAGES = ("models", "deploy", "playground", "watch", "measure", "keys")
SEED_MAX_AGE_S = 15.0
_PRIVATE = JSON_TYPE + b"Cache-Control: no-store\r\n"


class ConsoleOptions(msgspec.Struct, frozen=True, kw_only=True):
    session: SessionOptions = SessionOptions(pages=PAGES)
    addresses: Addresses = Addresses()
    local: LocalGuard | None = None
    """Who may change something, where nobody needs a key; None lets everybody."""


class KeyUsage(msgspec.Struct, frozen=True):
    key: str
    num_requests: int
    num_parallel: int
    num_refused: int
    num_prompt_tokens: int
    num_output_tokens: int
    tokens_today: int


class Console:
    def __init__(
        self,
        repository: Repository,
        is_ready: Callable[[], bool],
        values: CounterValues,
        guard: Guard | None,
        options: ConsoleOptions,
        tracing: Tracing,
        deployer: Deployer | None = None,
    ) -> None:
        """`values` reads the counters that models export. `guard` is None where nobody needs an API
        key, `deployer` where nothing can be deployed."""
        self._repository = repository
        self._is_ready = is_ready
        self._values = values
        self._guard = guard
        self._local = options.local
        self._link: Path | None = None
        self._sessions = Sessions(guard, options.session, options.local)
        self._started_s = time.time()
        self._history = History()
        self._key_history = KeyHistory()
        self._machine_history = MachineHistory()
        self._log_tail = LogTail()
        self._traces = TraceRoutes(tracing)
        self._tasks: set[asyncio.Task[None]] = set()
        self._deployer = deployer
        self._deploy_routes = DeployRoutes(
            repository, deployer, self._log_tail, self._run, options.local
        )
        self._measure = MeasureRoutes(
            repository, guard, options.addresses, self._deploy_routes.edit_config, self._run
        )
        self.live = Live(self._read, self._read_names, self._read_server)
        self.live.seed = self._seed
        self.num_connections: Callable[[], int] = lambda: 0
        """Set by the server once the HTTP endpoint exists."""
        self.read_host: Callable[[], HostReading] = HostReading
        """Set by the server once the metrics exist."""

    def entries(self) -> list[Entry]:
        return [
            *page_entries(),
            *self._sessions.entries(),
            *(self._guarded(entry) for entry in self._data_entries()),
        ]

    def _guarded(self, entry: Entry) -> Entry:
        local = self._local
        if local is None or (entry.method == "GET" and not entry.reads_files):
            return entry

        def build(head: Head, names: Names) -> Route:
            route = entry.build(head, names)
            route.gate, route.refuse = local.gate(head.headers), refuse_v2
            return route

        return msgspec.structs.replace(entry, build=build)

    def _data_entries(self) -> list[Entry]:
        api = "/console/api"
        return [
            Entry("GET", f"{api}/state", STATISTICS, simple(self._state)),
            Entry("GET", f"{api}/events", STATISTICS, simple(self._events)),
            Entry("GET", f"{api}/history/(?P<model>[^/]+)", STATISTICS, simple(self._show_history)),
            Entry("GET", f"{api}/machine", STATISTICS, simple(self._show_machine)),
            Entry("GET", f"{api}/key-history", KEYS, simple(self._show_key_history)),
            Entry("GET", f"{api}/log", LOGGING, simple(self._show_log)),
            Entry("GET", f"{api}/usage", KEYS, simple(self._show_usage)),
            *self._traces.entries(),
            *self._measure.entries(),
            *self._deploy_routes.entries(),
        ]

    # The life of the console.

    def link(self, url: str, port: int) -> str:
        """The address of the console, as whoever started the server opens it. `naiad console`
        prints it, too. A log that others may read gets it without the token."""
        if self._local is None:
            return url
        link = f"{url}#token={self._local.token}"
        try:
            self._link = write_link(link, self._local.token, port)
        except (NaiadError, OSError) as error:
            log.warning(f"'naiad console' will not find this server: {error}")
        return link if log.is_private() else url

    def start(self) -> None:
        """Called before the repository is read."""
        log.observe(self._log_tail.add)
        if self._deployer is not None:
            self._deployer.recover()

    def heartbeat(self, now_s: float) -> None:
        """The server's own heartbeat drives the history, so the console needs no timer."""
        last_s = self._history.last_s
        if last_s is not None and now_s - last_s < INTERVAL_S - 0.5:
            return
        try:
            self._history.add(self._read(()), now_s)
            self._machine_history.add(self.read_host(), now_s)
            if self._guard is not None:
                self._key_history.add(self._guard.accounts, now_s)
        except Exception as fault:  # the heartbeat of the workers must go on
            log.error(
                f"the console's history failed: {type(fault).__name__}: {fault}",
                traceback.format_exc(),
            )

    def stop(self) -> None:
        """Ends the streams, which would keep the server from stopping."""
        if self._link is not None:
            self._link.unlink(missing_ok=True)
        log.observe(None)
        self.live.stop()
        self._measure.stop()
        self._deploy_routes.stop()
        for task in self._tasks:
            task.cancel()

    # Readings.

    def _read(self, names: Iterable[str]) -> list[ModelReading]:
        return read_models(self._repository, names, self._values)

    async def _read_names(self) -> Iterable[str]:
        return await asyncio.to_thread(self._repository.known_names)

    def _read_server(self) -> ServerState:
        return ServerState(
            self._is_ready(),
            self.num_connections(),
            read_process(os.getpid()).memory_bytes,
            int(time.time() - self._started_s),
            self._log_tail.last_number,
        )

    def _seed(self) -> tuple[float, dict[str, ModelReading]] | None:
        last_s = self._history.last_s
        if last_s is None or time.time() - last_s > SEED_MAX_AGE_S:
            return None
        return last_s, self._history.readings

    # Data.

    def _state(self, exchange: Exchange, _names: Names) -> None:
        async def work() -> None:
            snapshot = await self.live.snapshot(exchange.identity)
            exchange.respond(200, _PRIVATE, msgspec.json.encode(snapshot))

        self._run(work())

    def _events(self, exchange: Exchange, _names: Names) -> None:
        self.live.subscribe(exchange)

    def _show_history(self, exchange: Exchange, names: Names) -> None:
        history = self._history.show(names["model"])
        exchange.respond(200, _PRIVATE, msgspec.json.encode(history))

    def _show_machine(self, exchange: Exchange, _names: Names) -> None:
        exchange.respond(200, _PRIVATE, msgspec.json.encode(self._machine_history.show()))

    def _show_key_history(self, exchange: Exchange, _names: Names) -> None:
        key = parse_qs(exchange.head.query.decode("latin-1")).get("key", [""])[0]
        exchange.respond(200, _PRIVATE, msgspec.json.encode(self._key_history.show(key)))

    def _show_log(self, exchange: Exchange, _names: Names) -> None:
        text = parse_qs(exchange.head.query.decode("latin-1")).get("after", ["0"])[0]
        if not text.isdecimal():
            respond_error(
                exchange, invalid_arg(f"after: expected the number of a line, not '{text}'")
            )
            return
        lines = self._log_tail.after(int(text))
        exchange.respond(200, _PRIVATE, msgspec.json.encode({"lines": lines}))

    def _show_usage(self, exchange: Exchange, _names: Names) -> None:
        accounts = [] if self._guard is None else self._guard.accounts.all()
        usage = [_usage(account, time.time()) for account in accounts]
        exchange.respond(200, _PRIVATE, msgspec.json.encode({"keys": usage}))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _usage(account: Account, now_s: float) -> KeyUsage:
    return KeyUsage(
        account.key_id,
        account.num_requests,
        account.num_parallel,
        sum(account.refusals.values()),
        account.num_prompt_tokens,
        account.num_output_tokens,
        account.tokens_today.used(now_s),
    )
