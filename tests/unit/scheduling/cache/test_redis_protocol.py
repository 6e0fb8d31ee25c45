from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.scheduling.cache.redis_protocol import RedisError, Reply, ReplyReader, encode_command

REPLIES = b"+OK\r\n$5\r\nhe\r\nl\r\n$-1\r\n:42\r\n-ERR no\r\n$0\r\n\r\n"


def plain(replies: list[Reply]) -> list[object]:
    return [str(reply) if isinstance(reply, RedisError) else reply for reply in replies]


def test_commands() -> None:
    assert (
        encode_command(b"SET", b"key", b"a\r\nb")
        == b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$4\r\na\r\nb\r\n"
    )


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000])
def test_replies_of_every_kind_in_any_pieces(piece: int) -> None:
    reader, found = ReplyReader(), list[Reply]()
    for at in range(0, len(REPLIES), piece):
        found += reader.feed(REPLIES[at : at + piece])
    assert plain(found) == [b"OK", b"he\r\nl", None, 42, "ERR no", b""]


@given(st.lists(st.binary(max_size=300)), st.integers(1, 50))
def test_any_bytes_come_through(values: list[bytes], piece: int) -> None:
    data = b"".join(b"$%d\r\n%b\r\n" % (len(value), value) for value in values)
    reader, found = ReplyReader(), list[Reply]()
    for at in range(0, len(data), piece):
        found += reader.feed(data[at : at + piece])
    assert found == values


@pytest.mark.parametrize(
    "data", [b"*1\r\n", b"hello\r\n", b"$x\r\n", b":1.5\r\n", b"$9999999999\r\n"]
)
def test_nonsense_raises(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"reply|number"):
        list(ReplyReader().feed(data))
