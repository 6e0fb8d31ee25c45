"""GET /metrics, on a port of its own. As under Triton, no path is 404.

In:  a request head from the HTTP/1.1 transport. Out: the metrics page; an empty page for other
     paths; 405 for other methods.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable

import msgspec

from naiad import log
from naiad.frontends.http.response import refuse_v2
from naiad.keys.api_class import METRICS
from naiad.keys.guard import Guard, read_bytes
from naiad.metrics.page import CONTENT_TYPE
from naiad.protocol.compression import IDENTITY, choose_encoding, compress
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.head import Head
from naiad.transport.http1.route import Route

MIN_COMPRESSED_BYTES = 1024
MAX_COMPRESSED_BYTES = 1 << 20
MAX_BODY_BYTES = 64 * 1024
"""A scraper sends no body; this is for everybody else."""


class MetricsResponse(msgspec.Struct, frozen=True):
    status: int
    content_type: str
    body: bytes


class MetricsFrontend:
    def __init__(self, render: Callable[[], bytes], guard: Guard | None = None) -> None:
        """`render` makes the page: MetricsPage.render."""
        self._render = render
        self._guard = guard

    def route(self, head: Head) -> Route:
        """The `Router` of the metrics endpoint."""
        route = Route(self._handle, max_body_bytes=MAX_BODY_BYTES)
        if self._guard is not None and self._guard.guards_metrics_port:
            route.gate = self._guard.gate(METRICS, read_bytes(head.headers))
            route.refuse = refuse_v2
        return route

    def _handle(self, exchange: Exchange) -> None:
        send(exchange, respond(exchange.head.method, exchange.head.path, self._render))


def send(exchange: Exchange, reply: MetricsResponse) -> None:
    """Scrapers accept compressed pages, which are a tenth of the size. One that is very large would
    hold the event loop meanwhile."""
    headers, body = f"Content-Type: {reply.content_type}\r\n".encode("ascii"), reply.body
    encoding = choose_encoding(exchange.head.headers.get(b"accept-encoding", b""))
    if encoding != IDENTITY and MIN_COMPRESSED_BYTES <= len(body) <= MAX_COMPRESSED_BYTES:
        body = compress([body], encoding)
        headers += b"Content-Encoding: %b\r\nVary: Accept-Encoding\r\n" % encoding.encode()
    exchange.respond(reply.status, headers, body)


def respond(method: str, path: bytes, render: Callable[[], bytes]) -> MetricsResponse:
    """The response to a request; `path` does not include the query."""
    if method != "GET":
        return MetricsResponse(405, "text/plain", b'{"error":"Method Not Allowed"}')
    if path not in (b"/metrics", b"/metrics/"):
        return MetricsResponse(200, CONTENT_TYPE, b"")
    try:
        return MetricsResponse(200, CONTENT_TYPE, render())
    except Exception:  # a page that cannot be rendered must not end the server
        log.error(f"the metrics page failed: {traceback.format_exc()}")
        return MetricsResponse(500, CONTENT_TYPE, b"")
