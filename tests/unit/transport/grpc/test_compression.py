from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.transport.grpc.compression import compress_gzip, decompress, decompressed_limit_bytes
from naiad.transport.grpc.status import GrpcError, Status

MAX = 2**31 - 1


@given(st.lists(st.binary(max_size=500), max_size=4), st.sampled_from([1, 6, 9]))
def test_what_we_compress_is_gzip(pieces: list[bytes], level: int) -> None:
    assert gzip.decompress(compress_gzip(list(pieces), level)) == b"".join(pieces)


@given(st.binary(max_size=2000))
def test_both_encodings(data: bytes) -> None:
    assert decompress(gzip.compress(data), "gzip", MAX) == data
    assert decompress(memoryview(zlib.compress(data)), "deflate", MAX) == data


def test_bomb() -> None:
    bomb = gzip.compress(bytes(80 * 1024 * 1024))
    assert len(bomb) < 100_000
    with pytest.raises(GrpcError) as caught:
        decompress(bomb, "gzip", MAX)
    assert caught.value.status is Status.RESOURCE_EXHAUSTED


def test_limits() -> None:
    assert decompressed_limit_bytes(10, MAX) == 64 * 1024 * 1024
    assert decompressed_limit_bytes(10, 1000) == 1000
    assert decompressed_limit_bytes(10_000_000, MAX) == 320_000_000
    with pytest.raises(GrpcError):
        decompress(gzip.compress(bytes(1001)), "gzip", 1000)
    assert decompress(gzip.compress(bytes(1000)), "gzip", 1000) == bytes(1000)


@pytest.mark.parametrize(
    "data", [b"", b"not gzip", gzip.compress(b"x" * 100)[:-4], gzip.compress(b"x") + b"more"]
)
def test_broken(data: bytes) -> None:
    with pytest.raises(GrpcError) as caught:
        decompress(data, "gzip", MAX)
    assert caught.value.status is Status.INTERNAL
