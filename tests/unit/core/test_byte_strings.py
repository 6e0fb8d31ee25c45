"""BYTES tensors: elements in and out, runs of equal lengths, and the memory that it takes."""

from __future__ import annotations

import random
import struct
import tracemalloc
from itertools import chain

import pytest

from naiad.core.byte_strings import (
    decode_byte_strings,
    encode_byte_strings,
    split_byte_string_pieces,
    split_byte_strings,
)


def reference(elements: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def runs(seed: int) -> list[bytes]:
    """Elements whose lengths repeat for a while and then change."""
    chance = random.Random(seed)
    elements: list[bytes] = []
    while len(elements) < 20_000:
        size = chance.choice((0, 0, 1, 3, 300))
        elements += [chance.randbytes(size) for _ in range(chance.choice((1, 2, 300, 5000)))]
    return elements


@pytest.mark.parametrize("seed", range(4))
def test_elements_of_any_lengths(seed: int) -> None:
    elements = runs(seed)
    data = encode_byte_strings(elements)
    assert data == reference(elements)
    assert split_byte_strings(data) == elements
    assert decode_byte_strings(memoryview(data)).tolist() == elements


def test_pieces_have_at_most_their_number_of_elements() -> None:
    elements = runs(5)
    pieces = list(split_byte_string_pieces(encode_byte_strings(elements), 700))
    assert list(chain.from_iterable(pieces)) == elements
    assert {len(piece) for piece in pieces[:-1]} == {700}


@pytest.mark.parametrize("max_bytes", [10, 1000, 5000])
def test_pieces_have_at_most_their_bytes(max_bytes: int) -> None:
    elements = [*runs(5), b"x" * max_bytes, b"x" * (max_bytes + 1), *runs(6)]
    pieces = list(split_byte_string_pieces(encode_byte_strings(elements), 700, max_bytes))
    assert [bytes(element) for piece in pieces for element in piece] == elements
    for piece in pieces:
        is_long = isinstance(piece[0], memoryview)
        assert is_long == (len(piece[0]) > max_bytes)
        assert is_long <= (len(piece) == 1)
        assert is_long or sum(map(len, piece)) <= 2 * max_bytes


def test_other_types_are_written_as_text() -> None:
    elements = ["ä", 7, b"x", bytearray(b"yz"), memoryview(b""), None]
    encoded = [b"\xc3\xa4", b"7", b"x", b"yz", b"", b"None"]
    assert encode_byte_strings(elements) == reference(encoded)
    assert encode_byte_strings(element for element in elements) == reference(encoded)
    assert encode_byte_strings([]) == b""


@pytest.mark.parametrize("cut", [1, 4, 5])
def test_rejects_a_length_past_the_end_after_a_run(cut: int) -> None:
    data = encode_byte_strings([b"ab"] * 5000)
    with pytest.raises(ValueError, match="incomplete string"):
        split_byte_strings(data[:-cut])


def test_short_elements_take_a_few_times_their_bytes() -> None:
    """A model returns what it was sent: 200 MB of empty elements took 4 GB here."""
    elements = [b""] * 500_000
    tracemalloc.start()
    data = encode_byte_strings(elements)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 3 * len(data)
