"""Tests that responses are parsed from arbitrary pieces of a byte stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.perf.channels.http_body import ResponseReader
from naiad.perf.channels.http_head import BadResponseError, HeadCache, parse_head
from naiad.perf.channels.sse import SseReader

WITH_LENGTH = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nhel\r\n2;x=1\r\nlo\r\n0\r\nTrailer: t\r\n\r\n"
)
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def read(pieces: list[bytes]) -> list[tuple[int, bytes]]:
    """Returns the status and body of each complete response."""
    reader = ResponseReader(HeadCache())
    responses: list[tuple[int, bytes]] = []
    body = b""
    for piece in pieces:
        for head, part, is_last in reader.feed(piece):
            body += part
            if is_last:
                responses.append((head.status, body))
                body = b""
    return responses


@given(
    st.lists(st.sampled_from([WITH_LENGTH, CHUNKED, EMPTY, CONTINUE]), min_size=1, max_size=5),
    st.data(),
)
def test_parses_arbitrary_pieces(responses: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(responses)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    pieces = [
        stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
    ]
    expected = {WITH_LENGTH: (200, b"hello"), CHUNKED: (200, b"hello"), EMPTY: (204, b"")}
    assert read(pieces) == [expected[response] for response in responses if response != CONTINUE]


def test_parses_byte_by_byte() -> None:
    assert read([bytes([byte]) for byte in CHUNKED + WITH_LENGTH]) == [
        (200, b"hello"),
        (200, b"hello"),
    ]


def test_body_until_the_connection_ends() -> None:
    reader = ResponseReader(HeadCache())
    steps = list(reader.feed(b"HTTP/1.1 200 OK\r\n\r\nsome"))
    assert [(part, is_last) for _, part, is_last in steps] == [(b"some", False)]
    head = reader.end_of_stream()
    assert head is not None
    assert head.is_closing


def test_a_body_that_is_cut_off_is_not_complete() -> None:
    reader = ResponseReader(HeadCache())
    list(reader.feed(WITH_LENGTH[:-1]))
    assert reader.end_of_stream() is None


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\n",
    ],
)
def test_rejects_bytes_that_are_not_a_response(data: bytes) -> None:
    with pytest.raises(BadResponseError):
        read([data])


def test_rejects_an_invalid_chunk_size() -> None:
    with pytest.raises(BadResponseError, match="chunk size"):
        read([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"])


def test_head_of_a_tensor_response() -> None:
    head = parse_head(
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n"
        b"Inference-Header-Content-Length: 4\r\nConnection: close"
    )
    assert (head.content_length, head.tensor_header_bytes, head.is_closing) == (9, 4, True)


def test_events_in_pieces() -> None:
    stream = (
        b": comment\n\ndata: one\n\ndata: two\r\n\r\n"
        b"event: x\ndata: three\ndata: four\n\ndata: last"
    )
    reader = SseReader()
    events = [
        event for byte in stream.replace(b"\r\n", b"\n") for event in reader.feed(bytes([byte]))
    ]
    assert events == [b"one", b"two", b"three\nfour"]
    assert reader.finish() == [b"last"]
    assert SseReader().feed(b"data: two\r\n\r\n") == [b"two"]
