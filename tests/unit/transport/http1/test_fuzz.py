"""Hostile bytes: whatever is sent, in whatever pieces, a connection answers in order, stays within
its bounds, and never raises."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.transport.http1.limits import Http1Limits
from tests.unit.transport.http1.http1_rig import Rig, echo, request

LIMITS = Http1Limits(
    max_head_bytes=300,
    max_target_bytes=100,
    max_headers=5,
    max_body_bytes=300,
    max_chunks=4,
    large_body_bytes=20,
    max_held_bytes=50,
    max_pipelined=2,
)

_PIECES = st.one_of(
    st.sampled_from(
        [
            request(body=b"abc"),
            request(body=b"x" * 50),
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.0\r\n\r\n",
            b"HEAD / HTTP/1.1\r\n\r\n",
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n",
            b"POST / HTTP/1.1\r\nContent-Length: 40\r\n\r\n",
            b"3\r\nabc\r\n",
            b"0\r\n\r\n",
            b"\r\n",
            b"\r\n\r\n",
            b"Content-Length: 3\r\n",
            b"Connection: close\r\n",
            b"GET /",
            b" HTTP/1.1\r\n",
        ]
    ),
    st.binary(max_size=40),
)


def run(data: bytes, cuts: list[int]) -> tuple[bytes, bool]:
    async def feed() -> tuple[bytes, bool]:
        rig = Rig(LIMITS, echo)
        edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
        for start, end in pairwise(edges):
            rig.feed(data[start:end])
            await rig.turn()
            if rig.transport.is_closed:
                break
        written, is_over = await rig.written(), rig.transport.is_closed or rig.transport.has_eof
        rig.advance(1000)
        rig.lose()
        return written, is_over

    return asyncio.run(feed())


@settings(max_examples=300, deadline=None)
@given(st.lists(_PIECES, max_size=8), st.lists(st.integers(0, 600), max_size=6))
def test_any_pieces_give_the_same_answers(pieces: list[bytes], cuts: list[int]) -> None:
    data = b"".join(pieces)
    whole, cut = run(data, []), run(data, cuts)
    # A refusal may name what it met first, and "100 Continue" depends on what had arrived; the
    # answers may not differ.
    assert _statuses(whole[0]) == _statuses(cut[0])
    assert whole[1] == cut[1]


def _statuses(written: bytes) -> list[bytes]:
    lines = [line for line in written.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    return [line for line in lines if b" 100 " not in line]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=600))
def test_garbage(data: bytes) -> None:
    written, _ = run(data, [])
    assert written == b"" or written.startswith(b"HTTP/1.1 ")
