"""Lets pages of origins that the operator names use the server from a browser (CORS).

In:  the head of a request with an `Origin`. Out: header lines for its response, and the response to
     the question that a browser asks first (a preflight).
A preflight needs no API key: a browser cannot send one with it. Cookies are never allowed, because
the server uses none.
Rule: a response for any other origin has no such header, and its preflight gets the response of a
      method that does not exist.
"""

from __future__ import annotations

import re

from naiad.transport.http1.head import Head
from naiad.transport.http1.route import Route

ANY = "*"
_MAX_AGE_S = 600
_HEADER_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,4096}")
_EXPOSED = (
    "Inference-Header-Content-Length, Retry-After, x-ratelimit-limit-requests, "
    "x-ratelimit-remaining-requests, x-ratelimit-reset-requests, x-ratelimit-limit-tokens, "
    "x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)


class Cors:
    def __init__(self, origins: frozenset[str] = frozenset()) -> None:
        """`origins` are in lower case, as browsers send them; '*' is every origin."""
        self._origins = origins

    def mark(self, head: Head) -> None:
        """Adds header lines to all responses to this head, errors and refusals included. Such
        requests use the full path."""
        origin = self._allowed(head)
        if origin is not None:
            head.is_plain = False
            head.response_headers = (
                b"Access-Control-Allow-Origin: %b\r\nVary: Origin\r\n"
                b"Access-Control-Expose-Headers: %b\r\n" % (origin, _EXPOSED.encode())
            )

    def preflight(self, head: Head) -> Route | None:
        """Returns None for any other request."""
        if (
            head.method != "OPTIONS"
            or b"access-control-request-method" not in head.headers
            or self._allowed(head) is None
        ):
            return None
        lines = b"Access-Control-Allow-Methods: GET, HEAD, POST\r\n"
        names = head.headers.get(b"access-control-request-headers", b"")
        if _HEADER_NAMES.fullmatch(names):
            lines += b"Access-Control-Allow-Headers: %b\r\n" % names
        lines += b"Access-Control-Max-Age: %d\r\n" % _MAX_AGE_S
        return Route(lambda exchange: exchange.respond(204, lines), max_body_bytes=0)

    def _allowed(self, head: Head) -> bytes | None:
        """Returns what Access-Control-Allow-Origin says."""
        origin = head.headers.get(b"origin")
        if not self._origins or origin is None:
            return None
        if ANY in self._origins:
            return b"*"
        return origin if origin.decode("latin-1").lower() in self._origins else None
