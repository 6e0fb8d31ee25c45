from __future__ import annotations

import gzip

from hypothesis import given
from hypothesis import strategies as st

from naiad.perf.channels.address import Address
from naiad.perf.channels.grpc_head import make_grpc_head, request_block, status_error
from naiad.perf.channels.grpc_message import MessageAssembler, frame
from naiad.transport.http2.hpack import HpackDecoder


@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
def test_assembles_messages_from_arbitrary_pieces(
    messages: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(frame(message) for message in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    assembler = MessageAssembler()
    assembled = [
        message
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for message in assembler.feed(stream[start:end])
    ]
    assert assembled == messages


def test_compressed_frame() -> None:
    framed = frame(b"x" * 100, "gzip")
    assert framed[0] == 1
    assert gzip.decompress(framed[5:]) == b"x" * 100


def test_status_of_a_response() -> None:
    head = make_grpc_head([(b"grpc-status", b"5"), (b"grpc-message", b"no such model%21")])
    assert status_error(head) == "NOT_FOUND: no such model!"
    assert status_error(make_grpc_head([(b"grpc-status", b"0")])) is None
    error = status_error(make_grpc_head([(b":status", b"503")]))
    assert error is not None
    assert "503" in error


def test_request_headers() -> None:
    block = request_block(
        Address("host", 9),
        "ModelInfer",
        encoding="gzip",
        metadata=[("X-Key", "v"), ("raw-bin", "v")],
    )
    headers = dict(HpackDecoder(1 << 16).decode(block))
    assert headers[b":path"] == b"/inference.GRPCInferenceService/ModelInfer"
    assert headers[b":authority"] == b"host:9"
    assert headers[b"x-key"] == b"v"
    assert headers[b"raw-bin"] == b"dg=="
    assert headers[b"grpc-encoding"] == b"gzip"
