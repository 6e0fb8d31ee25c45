"""What rank 0 and the other ranks of an engine tell each other, over a socket pair per rank.

Start opens a rank; Ready and Begin meet before the process group is made, so that a rank that fails
early is an error and not a wait; Counted and Agreed settle the number of KV blocks; then one Step
after the other goes to the ranks, which send nothing back but Failed.
"""

from __future__ import annotations

import socket
import struct

import msgspec

from naiad.llm.engine_settings import EngineSettings

_LENGTH = struct.Struct("<I")


class Message(msgspec.Struct, array_like=True, tag=True):
    pass


class Start(Message):
    rank: int
    size: int
    checkpoint: str
    settings: EngineSettings
    device: str
    store: str
    """A file through which the ranks find each other."""
    num_threads: int
    cache: str | None


class Ready(Message):
    pass


class Begin(Message):
    pass


class Counted(Message):
    num_blocks: int


class Agreed(Message):
    num_blocks: int


class Step(Message):
    """A StepPlan without its sequences. Lists have an entry per row."""

    slots: list[int]
    starts: list[int]
    counts: list[int]
    sampled: list[bool]
    tokens: list[int]
    """The tokens of all rows in order; -1 stands for a token that is only on the devices."""
    num_single: int
    places: list[int]
    """Where `blocks` go in the block tables."""
    blocks: list[int]


class Failed(Message):
    reason: str


Anything = Start | Ready | Begin | Counted | Agreed | Step | Failed
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Anything] = msgspec.msgpack.Decoder(Anything)


def encode(message: Message) -> bytes:
    body = _ENCODER.encode(message)
    return _LENGTH.pack(len(body)) + body


def send(channel: socket.socket, message: Message) -> None:
    channel.sendall(encode(message))


def receive(channel: socket.socket) -> Anything | None:
    """Returns None when the other side is gone. Raises TimeoutError if the socket has a limit."""
    head = _read(channel, _LENGTH.size)
    if head is None:
        return None
    body = _read(channel, _LENGTH.unpack(head)[0])
    return None if body is None else _DECODER.decode(body)


def _read(channel: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        try:
            piece = channel.recv(count - len(data))
        except ConnectionError:
            return None
        if not piece:
            return None
        data += piece
    return bytes(data)
