from __future__ import annotations

import random
import zlib

import pytest

from naiad.core.inflate import NoMemoryLeftError, always, as_array, inflate


@pytest.mark.parametrize("size", [0, 1, 65_536, 300_000, 3_000_000])
@pytest.mark.parametrize("is_random", [False, True])
def test_returns_the_data(size: int, is_random: bool) -> None:
    data = random.Random(size).randbytes(size) if is_random else bytes(size)
    result = inflate(zlib.compress(data, 1), zlib.MAX_WBITS, size, always)
    assert result.data == data
    assert (result.is_complete, result.has_rest) == (True, False)


def test_asks_before_each_piece() -> None:
    asked: list[int] = []

    def grow(num_bytes: int) -> bool:
        asked.append(num_bytes)
        return sum(asked) <= 1 << 20

    with pytest.raises(NoMemoryLeftError):
        inflate(zlib.compress(bytes(64 << 20)), zlib.MAX_WBITS, 64 << 20, grow)
    assert sum(asked) <= (1 << 20) + (1 << 18)


def test_stops_at_the_limit() -> None:
    result = inflate(zlib.compress(bytes(10_000)), zlib.MAX_WBITS, 1000, always)
    assert len(result.data) == 1001


@pytest.mark.parametrize("size", [10, 500_000])
def test_notices_what_is_cut_or_follows(size: int) -> None:
    packed = zlib.compress(random.Random(1).randbytes(size), 1)
    assert not inflate(packed[:-1], zlib.MAX_WBITS, size, always).is_complete
    assert inflate(packed + b"x", zlib.MAX_WBITS, size, always).has_rest
    assert inflate(packed + bytes(200_000), zlib.MAX_WBITS, size, always).has_rest


def test_an_array_shares_the_memory() -> None:
    data = bytearray(b"abc")
    view = as_array(data)
    data[0] = ord("x")
    assert bytes(view) == b"xbc"
