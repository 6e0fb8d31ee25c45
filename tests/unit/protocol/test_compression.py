"""Compression: negotiation as Triton does it, and no bombs."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import pytest

from naiad.errors import NaiadError
from naiad.protocol.compression import choose_encoding, compress, decompress


@pytest.mark.parametrize(
    ("accept", "encoding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip, deflate", "gzip"),
        ("deflate, gzip", "deflate"),
        ("deflate,gzip", "deflate"),
        ("identity", "identity"),
        ("*", "identity"),
        ("gzip;q=0", "identity"),
        ("gzip;q=0.5, deflate;q=0.9", "deflate"),
        ("identity;q=1.0, gzip;q=0.1", "identity"),
        ("br", "identity"),
        ("gzip;q=0.5, identity;q=0.2", "gzip"),
        ("GZIP", "identity"),
        ("gzip;q=abc", "identity"),
        ("", "identity"),
    ],
)
def test_negotiation(accept: str, encoding: str) -> None:
    assert choose_encoding(accept.encode()) == encoding


@pytest.mark.parametrize(
    ("encoding", "open_up"), [("gzip", gzip.decompress), ("deflate", zlib.decompress)]
)
def test_there_and_back(encoding: str, open_up: Callable[[bytes], bytes]) -> None:
    packed = compress([b"abc", bytearray(b"d" * 1000), memoryview(b"")], encoding)
    assert open_up(packed) == b"abc" + b"d" * 1000
    assert decompress(packed, encoding, 1003) == b"abc" + b"d" * 1000
    assert decompress(memoryview(packed), encoding, 1003) == b"abc" + b"d" * 1000


def test_a_bomb_is_stopped_at_the_limit() -> None:
    bomb = gzip.compress(bytes(100_000_000))
    assert len(bomb) < 100_000
    with pytest.raises(NaiadError) as caught:
        decompress(bomb, "gzip", 1_000_000)
    assert caught.value.message == (
        "Decompressed data size exceeds the maximum allowed value of 1000000 bytes. "
        "Use --http-max-input-size to increase the limit."
    )


def test_exactly_at_the_limit() -> None:
    assert len(decompress(gzip.compress(bytes(1000)), "gzip", 1000)) == 1000
    with pytest.raises(NaiadError):
        decompress(gzip.compress(bytes(1001)), "gzip", 1000)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "nothing to be decompressed"),
        (b"plain text", "failed to decompress the request body: it is not valid gzip data"),
        (
            gzip.compress(b"x" * 100)[:-9],
            "failed to decompress the request body: the gzip data is incomplete",
        ),
    ],
)
def test_refused(data: bytes, words: str) -> None:
    with pytest.raises(NaiadError) as caught:
        decompress(data, "gzip", 1000)
    assert caught.value.message == words


def test_what_follows_the_first_member_is_ignored_as_in_triton() -> None:
    assert bytes(decompress(gzip.compress(b"abc") + b"junk", "gzip", 100)) == b"abc"
