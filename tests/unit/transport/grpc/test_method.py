from __future__ import annotations

import hpack
import pytest

from naiad.keys.api_class import INFERENCE
from naiad.transport.grpc.method import Method, RequestHead, build_head
from naiad.transport.http2.frame import ErrorCode
from naiad.transport.http2.limits import Http2StreamError

ECHO = Method("/t.T/Echo", INFERENCE, unary=lambda call, message: None)
METHODS = {b"/t.T/Echo": ECHO}
GOOD = {
    b":method": b"POST", b":scheme": b"http", b":path": b"/t.T/Echo", b":authority": b"h",
    b"te": b"trailers", b"content-type": b"application/grpc",
}  # fmt: skip


def head(**changes: bytes | None) -> RequestHead:
    fields = {
        **GOOD,
        **{
            name.replace("_", "-").encode(): value
            for name, value in changes.items()
            if value is not None
        },
    }
    return build_head(list(fields.items()), METHODS)


def rejection(found: RequestHead) -> dict[str, str]:
    assert found.method is None
    assert found.rejection is not None
    return {str(name): str(value) for name, value in hpack.Decoder().decode(found.rejection)}


def test_a_plain_call() -> None:
    assert head(user_agent=b"grpc") == RequestHead(ECHO)


def test_what_headers_say() -> None:
    found = head(
        grpc_timeout=b"100m",
        grpc_encoding=b"gzip",
        grpc_accept_encoding=b"identity, gzip",
        x_key=b"1",
    )
    assert found == RequestHead(ECHO, None, 100_000_000, "gzip", True, {"x-key": "1"})


@pytest.mark.parametrize(
    "content_type", [b"application/grpc+proto", b"application/grpc;charset=utf-8"]
)
def test_content_types(content_type: bytes) -> None:
    assert head(content_type=content_type).method is ECHO


@pytest.mark.parametrize(
    "content_type", [b"", b"application/json", b"application/grpc+json", b"application/grpc-web"]
)
def test_not_grpc(content_type: bytes) -> None:
    assert rejection(head(content_type=content_type))[":status"] == "415"


def test_get() -> None:
    assert (
        rejection(build_head(list({**GOOD, b":method": b"GET"}.items()), METHODS))[":status"]
        == "405"
    )


def test_unknown_method() -> None:
    found = rejection(build_head(list({**GOOD, b":path": b"/t.T/No"}.items()), METHODS))
    assert (found["grpc-status"], found["grpc-message"]) == ("12", "unknown method /t.T/No")


def test_unknown_encoding() -> None:
    found = rejection(head(grpc_encoding=b"snappy"))
    assert found["grpc-status"] == "12"
    assert "snappy" in found["grpc-message"]
    assert found["grpc-accept-encoding"] == "identity, deflate, gzip"


def test_bad_timeout() -> None:
    assert rejection(head(grpc_timeout=b"soon"))["grpc-status"] == "13"


def test_guard() -> None:
    found = build_head(
        list(GOOD.items()), METHODS, lambda method, metadata: f"{method.path} is closed"
    )
    assert rejection(found)["grpc-status"] == "14"
    assert rejection(found)["grpc-message"] == "/t.T/Echo is closed"
    assert build_head(list(GOOD.items()), METHODS, lambda method, metadata: None).method is ECHO


def test_trailers_have_no_pseudo_headers() -> None:
    assert build_head([(b"x", b"y")], METHODS) == RequestHead(None)


@pytest.mark.parametrize(
    "headers",
    [
        [(b":method", b"POST"), (b":scheme", b"http")],
        [(b":path", b"/t.T/Echo"), (b":scheme", b"http")],
        [*GOOD.items(), (b":path", b"/again")],
        [*GOOD.items(), (b":authority", b"late")],
        [*GOOD.items(), (b":status", b"200")],
        [*GOOD.items(), (b"Upper", b"case")],
        [*GOOD.items(), (b"", b"empty")],
        [*GOOD.items(), (b"connection", b"close")],
        [*GOOD.items(), (b"transfer-encoding", b"chunked")],
    ],
)
def test_malformed(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(Http2StreamError) as caught:
        build_head(headers, METHODS)
    assert caught.value.code is ErrorCode.PROTOCOL_ERROR
