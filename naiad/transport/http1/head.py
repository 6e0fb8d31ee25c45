"""The head of an HTTP/1.1 request: bytes -> Head, a pure function of the bytes.

In:  everything up to and including the blank line. Out: a Head, or a HeadError with the status of
     the response. llhttp checks the grammar; this file adds what a server must decide itself:
     framing (request smuggling), Host, limits.
Rule: a Head depends on nothing but the bytes, so equal bytes may share one Head (endpoint.py caches
      them).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import httptools

from naiad.transport.http1.limits import Http1Limits

if TYPE_CHECKING:
    from naiad.transport.http1.route import Route

_HOST = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]+|\[[0-9A-Fa-f:.]+\])?(?::[0-9]{0,5})?")
_ABSOLUTE = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)
_MAX_CONTENT_LENGTH_DIGITS = 18
_UNIQUE = frozenset(
    (
        b"host",
        b"content-length",
        b"transfer-encoding",
        b"expect",
        b"inference-header-content-length",
    )
)


class HeadError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Head:
    """One request head. Requests with the same bytes share it, so it never changes after `route` is
    set."""

    __slots__ = (
        "content_length",
        "expects_continue",
        "headers",
        "is_chunked",
        "is_head",
        "is_http10",
        "is_inline",
        "is_plain",
        "keep_alive",
        "method",
        "names",
        "path",
        "query",
        "response_headers",
        "route",
        "text",
    )

    route: Route

    def __init__(self) -> None:
        self.text = b""
        """The bytes of the head, as they were sent."""
        self.method = ""
        self.path = b""
        """The path without the query, not percent-decoded; only the path of an absolute-form
        target."""
        self.query = b""
        """What follows the first question mark, not decoded."""
        self.headers: dict[bytes, bytes] = {}
        """Values by lower-case name; the values of repeated fields are joined with ", "."""
        self.names: dict[bytes, bytes] = {}
        """Names as they were sent, by lower-case name."""
        self.content_length = 0
        self.is_chunked = False
        self.is_head = False
        self.is_http10 = False
        self.keep_alive = True
        self.expects_continue = False
        self.is_inline = False
        """The body is so small that it is copied from the bytes that arrived with the head. Set
        together with `route`."""
        self.is_plain = True
        """The response needs no special head: HTTP/1.1, kept alive, not HEAD, no
        `response_headers`."""
        self.response_headers = b""
        """Lines for every response to this head. Whoever sets them clears `is_plain`, together with
        `route`."""


def _broken() -> Head:
    head = Head()
    head.keep_alive = head.is_plain = False
    return head


BROKEN = _broken()
"""The head of a request that could not be parsed."""


class _Collector:
    """Implements the callbacks of httptools for one head."""

    def __init__(self, max_headers: int) -> None:
        self.target = b""
        self.fields: list[tuple[bytes, bytes]] = []
        self.is_complete = False
        self._max_headers = max_headers

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.fields) >= self._max_headers:
            raise HeadError(431, f"more than {self._max_headers} header fields")
        self.fields.append((name, value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        self.is_complete = True


HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n"


def parse_head(data: bytes, limits: Http1Limits) -> Head:
    """`data` ends with the first empty line. Raises HeadError."""
    _check_line_lengths(data, limits)
    collector = _Collector(limits.max_headers)
    parser = httptools.HttpRequestParser(collector)
    parser.set_dangerous_leniencies(lenient_chunked_length=True)  # _decide_connection handles it
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        pass  # a server may ignore an offer to change the protocol
    except httptools.HttpParserCallbackError as error:
        if isinstance(error.__context__, HeadError):
            raise error.__context__ from None
        raise HeadError(400, "malformed request") from None
    except httptools.HttpParserError as error:
        raise HeadError(400, f"malformed request: {error}") from None
    if data.startswith(HTTP2_PREFACE):
        raise HeadError(400, "this port speaks HTTP 1.1; gRPC, over HTTP 2, has a port of its own")
    if not collector.is_complete:
        raise HeadError(400, "malformed request: incomplete head")
    return _interpret(data, parser, collector)


def _check_line_lengths(data: bytes, limits: Http1Limits) -> None:
    if len(data) > limits.max_head_bytes:
        raise HeadError(431, f"request head exceeds {limits.max_head_bytes} bytes")
    line_end = data.find(b"\r\n")
    if line_end > limits.max_target_bytes + 32:
        raise HeadError(414, f"request target exceeds {limits.max_target_bytes} bytes")
    if b"\r\n " in data or b"\r\n\t" in data:
        raise HeadError(400, "malformed request: folded header field")


def _interpret(data: bytes, parser: httptools.HttpRequestParser, collector: _Collector) -> Head:
    head = Head()
    head.text = data
    head.method = parser.get_method().decode("ascii")
    head.is_head = head.method == "HEAD"
    version = parser.get_http_version()
    if version not in ("1.0", "1.1"):
        raise HeadError(505, f"HTTP version {version} is not supported")
    head.is_http10 = version == "1.0"
    head.path = _path(collector.target, head.method)
    head.query = collector.target.partition(b"#")[0].partition(b"?")[2]
    head.names = {name.lower(): name for name, _ in collector.fields}
    head.headers = _merge(collector.fields)
    _decide_framing(head)
    _decide_connection(head)
    return head


def _path(target: bytes, method: str) -> bytes:
    if method == "CONNECT":
        return b""
    absolute = _ABSOLUTE.match(target)
    if absolute is not None:
        target = target[absolute.end() :] or b"/"
    return target.partition(b"?")[0].partition(b"#")[0]


def _merge(fields: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for sent_name, value in fields:
        name = sent_name.lower()
        if name not in headers:
            headers[name] = value
        elif name in _UNIQUE:
            raise HeadError(
                400, f"malformed request: repeated header field '{name.decode('latin-1')}'"
            )
        else:
            headers[name] += b", " + value
    return headers


def _decide_framing(head: Head) -> None:
    headers = head.headers
    length = headers.get(b"content-length")
    encoding = headers.get(b"transfer-encoding")
    if encoding is not None:
        if head.is_http10:
            raise HeadError(400, "malformed request: ambiguous body length")
        if encoding.lower() != b"chunked":
            raise HeadError(501, "transfer coding is not supported, only 'chunked' is")
        head.is_chunked = True
    elif length is not None:
        if not length.isdigit() or len(length) > _MAX_CONTENT_LENGTH_DIGITS:
            raise HeadError(400, "malformed request: invalid Content-Length")
        head.content_length = int(length)
    host = headers.get(b"host")
    if host is not None and _HOST.fullmatch(host) is None:
        raise HeadError(400, "malformed request: invalid Host")


def _decide_connection(head: Head) -> None:
    options = {
        option.strip().lower() for option in head.headers.get(b"connection", b"").split(b",")
    }
    head.keep_alive = b"keep-alive" in options if head.is_http10 else b"close" not in options
    if head.is_chunked and b"content-length" in head.headers:
        # RFC 9112, 6.1: the coding counts, but a proxy in front may rely on the length. Nothing
        # that follows on this connection can be trusted to be a request.
        head.keep_alive = False
    expectation = head.headers.get(b"expect")
    if expectation is not None and not head.is_http10:
        if expectation.lower() != b"100-continue":
            raise HeadError(417, "the only expectation that is supported is '100-continue'")
        head.expects_continue = True
    head.is_plain = head.keep_alive and not head.is_http10 and not head.is_head
