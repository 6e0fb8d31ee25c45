"""The HTTP endpoint of a frontend process: inference requests for models that the server lets
frontends serve, over Triton's routes and OpenAI's. A connection that sends any other request goes
to the server process.

Without TLS the connection's descriptor goes there. The keys of a TLS connection are in this
process, so its bytes go through a socket pair.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable

import msgspec

from naiad.core.memory_budget import MemoryBudget
from naiad.errors import unavailable
from naiad.frontend_process.messages import Peer
from naiad.frontend_process.peer import describe_peer
from naiad.frontend_process.remote_core import ModelTable, RemoteCore, ServingCore
from naiad.frontend_process.remote_guard import RemoteAdmission, has_session
from naiad.frontend_process.tunnel import Tunnels
from naiad.frontends.http.browser_check import BrowserCheck
from naiad.frontends.http.cors import Cors
from naiad.frontends.http.infer_routes import MODEL_PATH, InferRoutes
from naiad.frontends.http.load_report import FORMAT_HEADER
from naiad.frontends.http.options import HttpOptions
from naiad.frontends.http.response import respond_openai_error
from naiad.frontends.http.routes import RouteTable
from naiad.frontends.openai.frontend import InferenceRoutes
from naiad.frontends.side_thread import SideThread
from naiad.keys.guard import Guard
from naiad.protocol.openai.error import from_core
from naiad.repository.repository import LATEST, RETRY_AFTER_S
from naiad.transport.http1.connection import Http1Connection
from naiad.transport.http1.endpoint import Http1Endpoint
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.head import Head
from naiad.transport.http1.route import Route

_is_served_path = re.compile(
    f"{MODEL_PATH}/(?:infer|generate|generate_stream)"
    "|/v1/(?:chat/completions|completions|responses|embeddings)".encode()
).fullmatch
_BUSY = "the request could not be passed on, because others follow on its connection; send it again"
SendAway = Callable[[int, bytes, int, Peer | None], None]
"""(descriptor, bytes that were received and not handled, number of moves, the client where the
descriptor does not show it). The descriptor stays the caller's."""


class FrontendHttp:
    def __init__(
        self,
        core: RemoteCore,
        openai_core: ServingCore,
        models: ModelTable,
        options: HttpOptions,
        budget: MemoryBudget,
        send_away: SendAway,
        guard: Guard | None,
    ) -> None:
        """`guard` is None where nobody needs an API key."""
        self._models = models
        self._send_away = send_away
        self._side_thread = SideThread()
        self._tunnels = Tunnels()
        infer = InferRoutes(core, options, self._side_thread, guard, self._leaves)
        openai = InferenceRoutes(
            openai_core,
            options,
            self._side_thread,
            lambda connection, _head: connection.must_leave,
            self._leaves_openai,
        )
        self._table = RouteTable(
            [*infer.entries(), *openai.entries()],
            options.restricted_apis,
            guard,
            BrowserCheck(options.allowed_hosts, options.allowed_origins),
            Cors(options.allowed_origins),
        )
        self.endpoint = Http1Endpoint(
            self._route,
            msgspec.structs.replace(options.limits, max_body_bytes=options.max_input_size),
            budget=budget,
        )
        self.endpoint.move = self._move

    def _leaves(self, connection: Http1Connection, _head: Head, name: str, version: str) -> bool:
        return connection.must_leave or not self._models.is_served(name, version)

    def give_up(self, share: float) -> None:
        """Gives up this part of the connections that have a request under way. The only one stays:
        it would be as much work for another frontend."""
        working = [
            connection
            for connection in self.endpoint.connections
            if connection.is_working
            and not connection.must_leave
            and connection.transport.get_extra_info("ssl_object") is None
        ]
        if len(working) < 2:
            return
        for connection in working[: max(1, round(share * len(working)))]:
            # To the server process and on to another frontend: these two moves are not the client's
            # doing and do not count.
            connection.num_moves -= 2
            connection.give_up()

    def _leaves_openai(self, exchange: Exchange, model_name: str) -> bool:
        """A model that is not served here is the server process's."""
        if self._models.is_served(model_name, LATEST):
            return False
        if isinstance(exchange.admission, RemoteAdmission):
            exchange.admission.discard()
            exchange.admission = None
        if not exchange.leave():
            respond_openai_error(exchange, from_core(unavailable(_BUSY, RETRY_AFTER_S)))
        return True

    def _route(self, head: Head) -> Route:
        if (
            head.method == "POST"
            and _is_served_path(head.path)
            and FORMAT_HEADER not in head.headers
            and not has_session(head.headers.get(b"cookie", b""))
        ):
            return self._table(head)
        route = Route(_never_called)
        route.leaves = lambda _connection: True
        return route

    def _move(self, connection: Http1Connection, data: bytes) -> None:
        transport, num_moves = connection.transport, connection.num_moves
        if transport.get_extra_info("ssl_object") is None:
            sock: socket.socket = transport.get_extra_info("socket")
            self._send_away(sock.fileno(), data, num_moves, None)
            transport.abort()
            return
        ours, theirs = socket.socketpair()
        with theirs:
            self._send_away(theirs.fileno(), data, num_moves, describe_peer(transport))
        connection.connection_lost(None)
        self._tunnels.open(transport, ours)

    async def stop(self, grace_s: float) -> None:
        await asyncio.gather(self.endpoint.stop(grace_s), self._tunnels.stop(grace_s))
        self._side_thread.stop()


def _never_called(exchange: Exchange) -> None:
    """The handler of requests that leave before they are handled."""
    exchange.respond_error(500, "internal error")
