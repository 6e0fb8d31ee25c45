"""Chunked bodies: any split of the bytes gives the same body, and nothing but the grammar
passes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.transport.http1.chunked import BodyTooLargeError, ChunkedDecoder, ChunkError


def decode(
    data: bytes, max_body_bytes: int = 1 << 20, max_chunks: int = 1000
) -> tuple[bytes, bytes, bool]:
    decoder = ChunkedDecoder(max_body_bytes, max_chunks)
    end = decoder.feed(data)
    return bytes(decoder.body), data[end:], decoder.is_done


def encode(chunks: list[bytes]) -> bytes:
    return (
        b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks if chunk) + b"0\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("data", "body"),
    [
        (b"0\r\n\r\n", b""),
        (b"3\r\nabc\r\n0\r\n\r\n", b"abc"),
        (b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", b"abcde"),
        (b"0003\r\nabc\r\n000\r\n\r\n", b"abc"),
        (b"A\r\n0123456789\r\n0\r\n\r\n", b"0123456789"),
        (b"a;name=value\r\n0123456789\r\n0;x\r\n\r\n", b"0123456789"),
        (b"1 ; x\r\na\r\n0\r\n\r\n", b"a"),
        (b"1\r\n\r\r\n0\r\n\r\n", b"\r"),
        (b"2\r\n\r\n\r\n0\r\n\r\n", b"\r\n"),
        (b"1\r\na\r\n0\r\nTrailer: x\r\nOther: y\r\n\r\n", b"a"),
    ],
)
def test_bodies(data: bytes, body: bytes) -> None:
    assert decode(data + b"NEXT") == (body, b"NEXT", True)
    decoder = ChunkedDecoder(1 << 20, 1000)
    for at in range(len(data)):
        assert not decoder.is_done
        assert decoder.feed(data[at : at + 1]) == 1
    assert decoder.is_done
    assert decoder.body == body


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n",
        b"x\r\n",
        b"-1\r\n",
        b"+1\r\na",
        b"0x1\r\na",
        b"1_0\r\n",
        b" 1\r\na",
        b"1\na\r\n",
        b"1\r\nab\r\n",
        b"1\r\na\n",
        b"1\r\naX\r\n",
        b"1;\x00\r\na",
        b"1;a\rb\r\na",
        b"1" * 16 + b"\r\n",
        b"f" * 16 + b"\r\n",
        b"5 5\r\n",
        b"1\r\na\r\n0\r\nX: y\n\r\n",
        b"1;" + b"x" * 5000,
        b"0\r\n" + b"X: y\r\n" * 10000,
    ],
)
def test_refused(data: bytes) -> None:
    with pytest.raises(ChunkError):
        decode(data)


def test_the_claimed_size_counts_not_the_received_one() -> None:
    with pytest.raises(BodyTooLargeError):
        decode(b"65\r\n", max_body_bytes=100)
    assert decode(b"64\r\n" + b"x" * 100 + b"\r\n0\r\n\r\n", max_body_bytes=100)[2]
    with pytest.raises(BodyTooLargeError):
        decode(b"32\r\n" + b"x" * 50 + b"\r\n33\r\n", max_body_bytes=100)


def test_number_of_chunks() -> None:
    chunks = [b"a"] * 10
    assert decode(encode(chunks), max_chunks=10) == (b"a" * 10, b"", True)
    with pytest.raises(
        ChunkError,
        match=(
            r"Chunked request body exceeds maximum of 9 non-empty chunks\. Send fewer or "
            r"larger HTTP chunks\."
        ),
    ):
        decode(encode(chunks), max_chunks=9)


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(0, 400), max_size=8))
def test_any_split(chunks: list[bytes], cuts: list[int]) -> None:
    data = encode(chunks) + b"REST"
    decoder = ChunkedDecoder(1 << 20, 1000)
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    consumed = 0
    for start, end in pairwise(edges):
        consumed += decoder.feed(data[start:end])
        if decoder.is_done:
            break
    assert decoder.is_done
    assert bytes(decoder.body) == b"".join(chunks)
    assert data[consumed:] == b"REST"


@given(st.binary(max_size=200))
def test_garbage_never_breaks_it(data: bytes) -> None:
    decoder = ChunkedDecoder(100, 5)
    try:
        end = decoder.feed(data)
    except ChunkError:
        return
    assert 0 <= end <= len(data)
    assert len(decoder.body) <= 100
