"""Request heads: what is understood, and what is refused with which status."""

from __future__ import annotations

import pytest

from naiad.transport.http1.head import Head, HeadError, parse_head
from naiad.transport.http1.limits import Http1Limits

LIMITS = Http1Limits()


def parse(text: str, limits: Http1Limits = LIMITS) -> Head:
    return parse_head(text.replace("\n", "\r\n").encode("latin-1"), limits)


def test_plain_request() -> None:
    head = parse(
        "POST /v2/models/m/infer?x=1 HTTP/1.1\nHost: h:8000\nContent-Length: 12\nX-A: 1\nX-a: 2\n\n"
    )
    assert (head.method, head.path, head.content_length) == ("POST", b"/v2/models/m/infer", 12)
    assert head.headers[b"x-a"] == b"1, 2"
    assert head.names[b"content-length"] == b"Content-Length"
    assert head.is_plain
    assert head.keep_alive
    assert not head.is_chunked


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("GET http://other/v2/health/live HTTP/1.1", b"/v2/health/live"),
        ("GET HTTPS://u@h:1/a?b HTTP/1.1", b"/a"),
        ("GET http://other HTTP/1.1", b"/"),
        ("GET http://other?x HTTP/1.1", b""),
        ("OPTIONS * HTTP/1.1", b"*"),
        ("GET //v2 HTTP/1.1", b"//v2"),
        ("GET /a%2Fb/%2e%2e/c HTTP/1.1", b"/a%2Fb/%2e%2e/c"),
        ("GET /a#frag HTTP/1.1", b"/a"),
        ("CONNECT h:1 HTTP/1.1", b""),
    ],
)
def test_targets_are_taken_as_they_are(line: str, path: bytes) -> None:
    assert parse(f"{line}\nHost: h\n\n").path == path


@pytest.mark.parametrize(
    ("version", "connection", "keep_alive"),
    [
        ("1.1", None, True),
        ("1.1", "close", False),
        ("1.1", "Close", False),
        ("1.1", "x, close", False),
        ("1.0", None, False),
        ("1.0", "keep-alive", True),
        ("1.0", "Keep-Alive, x", True),
    ],
)
def test_keep_alive(version: str, connection: str | None, keep_alive: bool) -> None:
    field = "" if connection is None else f"Connection: {connection}\n"
    head = parse(f"GET / HTTP/{version}\n{field}\n")
    assert head.keep_alive is keep_alive
    assert head.is_plain is (keep_alive and version == "1.1")


def test_an_offered_upgrade_is_ignored() -> None:
    head = parse(
        "GET /v2 HTTP/1.1\nHost: h\nConnection: Upgrade, HTTP2-Settings\nUpgrade: "
        "h2c\nHTTP2-Settings: AAMAAABk\n\n"
    )
    assert (head.path, head.keep_alive) == (b"/v2", True)


def test_expectation() -> None:
    assert parse("POST / HTTP/1.1\nExpect: 100-Continue\nContent-Length: 1\n\n").expects_continue
    assert not parse(
        "POST / HTTP/1.0\nExpect: 100-continue\nContent-Length: 1\n\n"
    ).expects_continue


@pytest.mark.parametrize(
    "fields",
    [
        "Content-Length: 5\nTransfer-Encoding: chunked\n",
        "Transfer-Encoding: chunked\nContent-Length: 5\nConnection: keep-alive\n",
    ],
)
def test_a_length_next_to_chunked_is_ignored_and_ends_the_connection(fields: str) -> None:
    head = parse(f"POST / HTTP/1.1\n{fields}\n")
    assert (head.is_chunked, head.content_length) == (True, 0)
    assert not head.keep_alive
    assert not head.is_plain


BAD = {
    "no method": "hello\n\n",
    "empty": "\n\n",
    "no version": "GET /\n\n",
    "HTTP/0.9": "GET / HTTP/0.9\n\n",
    "HTTP/2": "GET / HTTP/2.0\n\n",
    "HTTP/3": "GET / HTTP/3.0\n\n",
    "lower-case http": "GET / http/1.1\n\n",
    "space before colon": "GET / HTTP/1.1\nHost : h\n\n",
    "space in name": "GET / HTTP/1.1\nA B: h\n\n",
    "no colon": "GET / HTTP/1.1\nHost\n\n",
    "empty name": "GET / HTTP/1.1\n: x\n\n",
    "folded": "GET / HTTP/1.1\nX: a\n b\n\n",
    "folded with a tab": "GET / HTTP/1.1\nX: a\n\tb\n\n",
    "leading space before first field": "GET / HTTP/1.1\n X: a\n\n",
    "NUL in value": "GET / HTTP/1.1\nX: a\0b\n\n",
    "control in name": "GET / HTTP/1.1\nX\x01: a\n\n",
    "two lengths": "POST / HTTP/1.1\nContent-Length: 1\nContent-Length: 1\n\n",
    "two different lengths": "POST / HTTP/1.1\nContent-Length: 1\nContent-Length: 2\n\n",
    "list of lengths": "POST / HTTP/1.1\nContent-Length: 1, 1\n\n",
    "two lengths and chunked": "POST / HTTP/1.1\nContent-Length: 5\nContent-Length: 5\n"
    "Transfer-Encoding: chunked\n\n",
    "bad length and chunked": "POST / HTTP/1.1\nContent-Length: x\nTransfer-Encoding: chunked\n\n",
    "length and chunked over HTTP/1.0": "POST / HTTP/1.0\nContent-Length: 5\n"
    "Transfer-Encoding: chunked\n\n",
    "two codings": "POST / HTTP/1.1\nTransfer-Encoding: chunked\nTransfer-Encoding: chunked\n\n",
    "coding and identity": (
        "POST / HTTP/1.1\nTransfer-Encoding: chunked\nTransfer-Encoding: identity\n\n"
    ),
    "negative length": "POST / HTTP/1.1\nContent-Length: -1\n\n",
    "signed length": "POST / HTTP/1.1\nContent-Length: +1\n\n",
    "hexadecimal length": "POST / HTTP/1.1\nContent-Length: 0x10\n\n",
    "empty length": "POST / HTTP/1.1\nContent-Length: \n\n",
    "length with blanks": "POST / HTTP/1.1\nContent-Length: 1 2\n\n",
    "length too long": f"POST / HTTP/1.1\nContent-Length: {'9' * 19}\n\n",
    "length beyond 64 bits": f"POST / HTTP/1.1\nContent-Length: {'9' * 30}\n\n",
    "chunked over HTTP/1.0": "POST / HTTP/1.0\nTransfer-Encoding: chunked\n\n",
    "two hosts": "GET / HTTP/1.1\nHost: a\nHost: b\n\n",
    "host with a path": "GET / HTTP/1.1\nHost: x/?\n\n",
    "host with a fragment": "GET / HTTP/1.1\nHost: a#b\n\n",
    "host with a user": "GET / HTTP/1.1\nHost: u@h\n\n",
    "host with a space": "GET / HTTP/1.1\nHost: a b\n\n",
    "host with a port that is none": "GET / HTTP/1.1\nHost: a:b\n\n",
    "two inference lengths": (
        "POST / HTTP/1.1\nInference-Header-Content-Length: 1\n"
        "Inference-Header-Content-Length: 2\n\n"
    ),
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_refused(text: str) -> None:
    with pytest.raises(HeadError) as caught:
        parse(text)
    assert caught.value.status in (400, 505)


BARE = {
    "bare LF after the request line": b"GET / HTTP/1.1\nHost: h\r\n\r\n",
    "bare LF after a field": b"GET / HTTP/1.1\r\nHost: h\nX: y\r\n\r\n",
    "bare CR in a value": b"GET / HTTP/1.1\r\nX: a\rb\r\n\r\n",
    "bare CR hides a length": b"POST / HTTP/1.1\r\nX: a\rContent-Length: 5\r\n\r\n",
    "CR LF LF": b"GET / HTTP/1.1\r\nHost: h\n\n\r\n\r\n",
    "vertical tab before a coding": b"POST / HTTP/1.1\r\nTransfer-Encoding:\x0bchunked\r\n\r\n",
}


@pytest.mark.parametrize("data", BARE.values(), ids=BARE)
def test_line_ends_are_strict(data: bytes) -> None:
    with pytest.raises(HeadError):
        parse_head(data, LIMITS)


@pytest.mark.parametrize(
    "coding",
    [
        "gzip",
        "gzip, chunked",
        "chunked, identity",
        "xchunked",
        "chunked;a=b",
        "identity",
        "chunked, chunked",
        '"chunked"',
    ],
)
def test_other_codings_are_refused(coding: str) -> None:
    with pytest.raises(HeadError) as caught:
        parse(f"POST / HTTP/1.1\nTransfer-Encoding: {coding}\n\n")
    assert caught.value.status in (400, 501)


def test_coding_in_any_case_is_chunked() -> None:
    assert parse("POST / HTTP/1.1\nTransfer-Encoding: Chunked\n\n").is_chunked


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("POST / HTTP/1.1\nExpect: 200-ok\n\n", 417),
        ("POST / HTTP/1.1\nExpect: 100-continue, x\n\n", 417),
    ],
)
def test_unknown_expectation(text: str, status: int) -> None:
    with pytest.raises(HeadError) as caught:
        parse(text)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("limits", "text", "status"),
    [
        (Http1Limits(max_headers=3), "GET / HTTP/1.1\n" + "X: y\n" * 4 + "\n", 431),
        (Http1Limits(max_head_bytes=100), "GET / HTTP/1.1\nX: " + "y" * 100 + "\n\n", 431),
        (Http1Limits(max_target_bytes=50), f"GET /{'a' * 100} HTTP/1.1\n\n", 414),
    ],
)
def test_limits(limits: Http1Limits, text: str, status: int) -> None:
    with pytest.raises(HeadError) as caught:
        parse(text, limits)
    assert caught.value.status == status


def test_limits_are_not_exceeded_by_one() -> None:
    assert parse("GET / HTTP/1.1\n" + "X: y\n" * 3 + "\n", Http1Limits(max_headers=3)).headers == {
        b"x": b"y, y, y"
    }


@pytest.mark.parametrize(
    "host", ["h", "h:1", "127.0.0.1:8000", "[::1]:80", "[::1]", "a-b.c_d", "", "xn--a.example"]
)
def test_hosts_that_are_fine(host: str) -> None:
    assert parse(f"GET / HTTP/1.1\nHost: {host}\n\n").headers[b"host"] == host.encode()


def test_a_client_of_http2_learns_what_this_port_speaks() -> None:
    with pytest.raises(HeadError, match="this port speaks HTTP") as caught:
        parse_head(b"PRI * HTTP/2.0\r\n\r\n", Http1Limits())
    assert caught.value.status == 400
