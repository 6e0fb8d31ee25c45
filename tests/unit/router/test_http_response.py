from __future__ import annotations

import pytest

from naiad.router.http_response import BadResponseError, ResponseHead, parse_response_head


def parse(*lines: str) -> ResponseHead:
    return parse_response_head("\r\n".join([*lines, "", ""]).encode())


def test_a_head_without_hop_by_hop_fields_is_passed_on_as_it_is() -> None:
    head = parse("HTTP/1.1 200 OK", "Content-Length: 5", "Content-Type: text/plain")
    assert head.is_transparent
    assert not head.is_closing
    assert (head.status, head.content_length) == (200, 5)
    assert head.lines == b"Content-Type: text/plain\r\n"


def test_fields_of_the_connection_are_left_out() -> None:
    head = parse("HTTP/1.1 200 OK", "Connection: close", "Content-Length: 5", "X-A: 1")
    assert not head.is_transparent
    assert head.is_closing
    assert head.lines == b"X-A: 1\r\n"


def test_a_chunked_body_has_no_length() -> None:
    head = parse("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", "Content-Length: 5")
    assert head.is_chunked
    assert head.content_length == -1
    assert head.is_closing  # two lengths: what follows may be read in two ways
    assert not parse("HTTP/1.1 200 OK", "Transfer-Encoding: chunked").is_closing


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    head = parse("HTTP/1.1 200 OK")
    assert (head.content_length, head.is_chunked, head.is_closing) == (-1, False, True)


@pytest.mark.parametrize(
    ("lines", "is_not_admitted"),
    [
        (("HTTP/1.1 503 X", "Retry-After: 1"), True),
        (("HTTP/1.1 503 X",), False),
        (("HTTP/1.1 429 X", "Retry-After: 1"), True),
        (("HTTP/1.1 429 X", "Retry-After: 1", "x-ratelimit-limit-requests: 9"), False),
        (("HTTP/1.1 500 X", "Retry-After: 1"), False),
    ],
)
def test_only_a_refusal_before_the_work_is_not_admitted(
    lines: tuple[str, ...], is_not_admitted: bool
) -> None:
    assert parse(*lines, "Content-Length: 0").is_not_admitted is is_not_admitted


def test_an_unknown_status_becomes_the_first_of_its_class() -> None:
    head = parse("HTTP/1.1 529 Overloaded", "Content-Length: 0")
    assert head.status == 500
    assert not head.is_transparent


@pytest.mark.parametrize(
    "lines",
    [
        ("SSH-2.0-OpenSSH",),
        ("HTTP/2 200",),
        ("HTTP/1.1 2x0 OK",),
        ("HTTP/1.1 999 OK",),
        ("HTTP/1.1 200 OK", "Content-Length: -1"),
        ("HTTP/1.1 200 OK", "Content-Length: 1", "Content-Length: 2"),
        ("HTTP/1.1 200 OK", "Transfer-Encoding: gzip"),
        ("HTTP/1.1 200 OK", "no colon"),
        ("HTTP/1.1 200 OK", "Name : value"),
        ("HTTP/1.1 2000 OK",),
        ("HTTP/1.1 200 OK", "Content-Length: 1", "Content-Length: 1"),
        ("HTTP/1.1 200 OK", "Content-Length: 9999999999999999999"),
        ("HTTP/1.0 200 OK", "Transfer-Encoding: chunked"),
        ("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
        ("HTTP/1.1 200 OK", "X-A: 1\nContent-Length: 5"),
        ("HTTP/1.1 200 OK\nX-A: 1",),
        ("HTTP/1.1 101 Switching Protocols",),
    ],
)
def test_rejects_what_is_not_a_response(lines: tuple[str, ...]) -> None:
    with pytest.raises(BadResponseError):
        parse(*lines)


def test_fields_about_the_routers_own_name_are_left_out() -> None:
    head = parse(
        "HTTP/1.1 200 OK",
        "Content-Length: 5",
        "Set-Cookie: naiad_session=1",
        "Access-Control-Allow-Origin: *",
        "Clear-Site-Data: *",
        "X-A: 1",
    )
    assert not head.is_transparent
    assert head.lines == b"X-A: 1\r\n"


@pytest.mark.parametrize(
    ("value", "is_kept"),
    [
        ("0", True),
        ("30", True),
        ("86400", True),
        ("86401", False),
        ("9" * 20, False),
        ("-1", False),
    ],
)
def test_only_a_reasonable_retry_after_is_passed_on(value: str, is_kept: bool) -> None:
    head = parse("HTTP/1.1 503 X", "Content-Length: 0", f"Retry-After: {value}")
    assert (b"Retry-After" in head.lines) is is_kept
    assert head.is_transparent is is_kept
    assert head.retry_after_s == (int(value) if is_kept else -1)
    assert head.is_not_admitted


def test_connection_removes_only_fields_that_nobody_knows() -> None:
    head = parse(
        "HTTP/1.1 200 OK",
        "Content-Length: 5",
        "Connection: Content-Length, Content-Type",
        "Connection: x-hop, retry-after",
        "Content-Type: text/plain",
        "X-Hop: 1",
        "Retry-After: 1",
    )
    assert head.content_length == 5
    assert head.lines == b"Content-Type: text/plain\r\nRetry-After: 1\r\n"


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
def test_a_response_that_has_no_body_gets_no_length_of_one(status: str) -> None:
    head = parse(f"HTTP/1.1 {status}", "Content-Length: 5")
    assert head.content_length == 0
    assert not head.is_transparent
