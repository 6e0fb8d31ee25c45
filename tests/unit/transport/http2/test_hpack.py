from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.transport.http2.frame import ErrorCode
from naiad.transport.http2.hpack import HeaderBlocks, HpackDecoder, encode_headers
from naiad.transport.http2.limits import Http2ConnectionError, Http2StreamError

names = st.one_of(
    st.sampled_from([b":path", b":method", b"content-type", b"te", b"x"]),
    st.binary(min_size=1, max_size=12),
)
headers = st.lists(
    st.tuples(
        names, st.one_of(st.sampled_from([b"POST", b"/"]), st.binary(max_size=80)), st.booleans()
    ),
    max_size=8,
)


@given(
    st.lists(st.tuples(headers, st.booleans(), st.sampled_from([None, 0, 64, 4096])), max_size=5)
)
def test_reads_what_the_library_writes(
    blocks: list[tuple[list[tuple[bytes, bytes, bool]], bool, int | None]],
) -> None:
    encoder, decoder = hpack.Encoder(), HpackDecoder(1 << 20)
    for fields, huffman, table_size in blocks:
        if table_size is not None:
            encoder.header_table_size = table_size
        assert decoder.decode(encoder.encode(fields, huffman=huffman)) == [
            (name, value) for name, value, _ in fields
        ]


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_agrees_with_the_library_on_any_bytes(blocks: list[bytes]) -> None:
    ours, theirs = HpackDecoder(1 << 20), hpack.Decoder(1 << 20)
    for block in blocks:
        try:
            expected = [
                (bytes(name), bytes(value)) for name, value in theirs.decode(block, raw=True)
            ]
        except hpack.HPACKError:
            with pytest.raises(Http2ConnectionError) as caught:
                ours.decode(block)
            assert caught.value.code is ErrorCode.COMPRESSION_ERROR
            return
        assert ours.decode(block) == expected


@given(headers)
def test_the_library_reads_what_we_write(fields: list[tuple[bytes, bytes, bool]]) -> None:
    pairs = [(name, value) for name, value, _ in fields]
    assert [
        tuple(field) for field in hpack.Decoder().decode(encode_headers(pairs), raw=True)
    ] == pairs


@given(headers)
def test_our_blocks_leave_the_table_alone(fields: list[tuple[bytes, bytes, bool]]) -> None:
    decoder = HpackDecoder(1 << 20)
    decoder.decode(encode_headers([(name, value) for name, value, _ in fields]))
    assert decoder.changes == 0


def test_entry_larger_than_the_table_empties_it() -> None:
    decoder = HpackDecoder(1 << 20)
    decoder.decode(hpack.Encoder().encode([(b"a", b"b")]))
    too_large = b"v" * 4160
    decoder.decode(b"\x40" + encode_headers([(b"a", too_large)])[1:])
    with pytest.raises(Http2ConnectionError, match="past the table"):
        decoder.decode(b"\xbe")


def test_bomb_of_references_is_bounded() -> None:
    """A few bytes that stand for a large field, repeated."""
    decoder = HpackDecoder(32 * 1024)
    big = b"\x40\x01a" + b"\x7f" + b"\x81\x1e" + b"v" * 4000
    with pytest.raises(Http2ConnectionError) as caught:
        decoder.decode(big + b"\xbe" * 1000)
    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM
    assert caught.value.cause == "header_list"


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (b"\x80", "index 0"),
        (b"\xbe", "past the table"),
        (b"\xff\xff\xff\xff\xff\xff\xff", "integer too long"),
        (b"\x00\x05ab", "longer than its block"),
        (b"\x00", "ends inside"),
        (b"\x82\x20", "after a field"),
        (b"\x3f\xff\xff\x7f", "above the allowed 4096"),
        (b"\x00\x81\xff\x01a", "Huffman"),
    ],
)
def test_malformed_blocks(block: bytes, words: str) -> None:
    with pytest.raises(Http2ConnectionError, match=words):
        HpackDecoder(1 << 16).decode(block)


class TestHeaderBlocks:
    def blocks(self) -> tuple[HeaderBlocks, list[object]]:
        built: list[object] = []

        def make_head(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
            built.append(headers)
            return headers

        return HeaderBlocks(HpackDecoder(1 << 16), make_head), built

    def test_equal_blocks_share_one_head(self) -> None:
        blocks, built = self.blocks()
        block = encode_headers([(b"a", b"b")])
        assert blocks.head(block) is blocks.head(bytes(bytearray(block)))
        assert len(built) == 1

    def test_a_block_that_changes_the_table_is_never_cached(self) -> None:
        blocks, built = self.blocks()
        adds = b"\x40\x01a\x01b"
        assert blocks.head(adds) == blocks.head(adds) == [(b"a", b"b")]
        assert len(built) == 2

    def test_the_same_block_means_something_else_after_a_change(self) -> None:
        """Index 62 is the newest entry: the cached meaning of it must not survive an insertion."""
        blocks, _ = self.blocks()
        blocks.head(b"\x40\x01a\x01b")
        assert blocks.head(b"\xbe") == [(b"a", b"b")]
        assert blocks.head(b"\xbe") == [(b"a", b"b")]
        blocks.head(b"\x40\x01c\x01d")
        assert blocks.head(b"\xbe") == [(b"c", b"d")]

    def test_a_size_update_counts_as_a_change(self) -> None:
        blocks, _ = self.blocks()
        blocks.head(b"\x40\x01a\x01b")
        blocks.head(b"\xbe")
        blocks.head(b"\x20\x82")
        with pytest.raises(Http2ConnectionError):
            blocks.head(b"\xbe")

    def test_a_refused_head_is_built_again(self) -> None:
        def refuse(headers: list[tuple[bytes, bytes]]) -> None:
            raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, "no")

        blocks = HeaderBlocks(HpackDecoder(1 << 16), refuse)
        for _ in range(2):
            with pytest.raises(Http2StreamError):
                blocks.head(encode_headers([(b"a", b"b")]))

    def test_the_cache_is_bounded(self) -> None:
        blocks, built = self.blocks()
        for i in range(1000):
            blocks.head(encode_headers([(b"n", b"%d" % i)]))
        assert len(blocks._cache) <= 256
        assert len(built) == 1000


def test_what_is_kept_of_a_connection_is_bounded() -> None:
    """A block of a few bytes may refer to long entries of the table."""
    blocks = HeaderBlocks(HpackDecoder(32 * 1024), list)
    encoder = hpack.Encoder()
    value = b"v" * 3000
    blocks.head(encoder.encode([(b"x-long", value)]))
    short = encoder.encode([(b"x-long", value)])
    assert len(short) < 10
    for number in range(1000):
        blocks.head(short + encode_headers([(b"n", b"%d" % number)]))
        assert blocks.cached_bytes <= 64 * 1024
    assert blocks.known(short + encode_headers([(b"n", b"999")])) is not None
    large = encode_headers([(b"x", b"y" * 20_000)])
    assert len(blocks.head(large)) == 1
    assert blocks.known(large) is None
