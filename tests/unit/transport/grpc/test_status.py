from __future__ import annotations

from urllib.parse import unquote

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.transport.grpc.status import (
    OK_TRAILERS,
    Status,
    http_error,
    percent_encode,
    trailers,
    trailers_only,
    unsupported_encoding,
)
from naiad.transport.grpc.timeout import parse_timeout_ns


def fields(block: bytes) -> dict[str, str]:
    return {str(name): str(value) for name, value in hpack.Decoder().decode(block)}


@given(st.text(max_size=200))
def test_messages_survive_percent_encoding(message: str) -> None:
    encoded = percent_encode(message)
    assert encoded.isascii()
    assert all(0x20 <= byte < 0x7F for byte in encoded)
    assert unquote(encoded.decode()) == message.encode("utf-8", "replace").decode()


def test_only_what_must_be_is_escaped() -> None:
    assert (
        percent_encode("input 'x' has shape [-1,3], 100%\n")
        == b"input 'x' has shape [-1,3], 100%25%0A"
    )


def test_long_messages_are_cut_between_characters() -> None:
    encoded = percent_encode("é" * 5000)
    assert unquote(encoded.decode()) == "é" * 2048 + "..."


def test_trailers() -> None:
    assert trailers(Status.OK, "ignored") is OK_TRAILERS
    assert fields(trailers(Status.NOT_FOUND, "no such model")) == {
        "grpc-status": "5",
        "grpc-message": "no such model",
    }
    assert fields(trailers(Status.CANCELLED, "")) == {"grpc-status": "1"}
    assert fields(trailers_only(Status.INTERNAL, "x")) == {
        ":status": "200", "content-type": "application/grpc", "grpc-status": "13",
        "grpc-message": "x",
    }  # fmt: skip
    assert fields(unsupported_encoding("x"))["grpc-accept-encoding"] == "identity, deflate, gzip"
    assert fields(http_error(415, "x"))[":status"] == "415"


@pytest.mark.parametrize(
    ("value", "ns"),
    [
        (b"1H", 3600 * 10**9),
        (b"2M", 120 * 10**9),
        (b"3S", 3 * 10**9),
        (b"100m", 10**8),
        (b"5u", 5000),
        (b"99999999n", 99_999_999),
        (b"0m", 0),
        (b"99999999H", 10**18),
    ],
)
def test_timeouts(value: bytes, ns: int) -> None:
    assert parse_timeout_ns(value) == ns


@pytest.mark.parametrize(
    "value", [b"", b"m", b"1", b"1x", b"-1m", b"1.5S", b"123456789m", b"1 m", b"\xd9\xa1m"]
)
def test_what_is_no_timeout(value: bytes) -> None:
    with pytest.raises(ValueError, match="bad grpc-timeout"):
        parse_timeout_ns(value)
