"""Publishes what the KV cache holds, for routers: vLLM's KV events over ZeroMQ.

In:  blocks that the scheduler makes available for prefix matches, and blocks that the pool forgets.
Out: one message per step: topic, sequence number (8 bytes, big-endian) and a batch in msgpack,
     `[time, [event, ...], rank]`. An event is an array that begins with its name, as vLLM writes
     it: BlockStored, BlockRemoved or AllBlocksCleared. Who has missed a batch asks the replay
     socket for all since a number, and gets them up to a message with the number -1.
Rule: the engine never waits for a reader. A thread of its own encodes and sends.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from naiad.core.install_advice import install_command
from naiad.errors import invalid_arg

MEDIUM = "GPU"
END = (-1).to_bytes(8, "big", signed=True)
REPLAY_BATCHES = 10_000
_QUEUE_BATCHES = 10_000
_POLL_MS = 50


class BlockStored(msgspec.Struct, array_like=True, tag=True, frozen=True):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = MEDIUM
    lora_name: str | None = None
    extra_keys: list[list[str] | None] | None = None
    """For each block what else its hash depends on: the salt and the owner of the request."""


class BlockRemoved(msgspec.Struct, array_like=True, tag=True, frozen=True):
    block_hashes: list[int]
    medium: str | None = MEDIUM


class AllBlocksCleared(msgspec.Struct, array_like=True, tag=True, frozen=True):
    pass


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True, frozen=True):
    ts: float
    events: list[Event]
    data_parallel_rank: int | None = 0


def short_hash(block_hash: bytes) -> int:
    """The number by which a block is published: readers know hashes of 64 bits."""
    return int.from_bytes(block_hash[:8])


class KvEvents:
    """Collects the events of a step. Consecutive blocks of one prompt become one event."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._events: list[Event] = []

    def stored(
        self,
        hashes: Sequence[bytes],
        parent: bytes | None,
        tokens: Sequence[int],
        salt: str = "",
        owner: str = "",
    ) -> None:
        """`tokens` are those of the blocks alone. `parent` is the hash of the block before them."""
        extra = [salt, owner] if owner else [salt] if salt else None
        self._events.append(
            BlockStored(
                [short_hash(block_hash) for block_hash in hashes],
                None if parent is None else short_hash(parent),
                list(tokens),
                self._block_size,
                extra_keys=None if extra is None else [extra] * len(hashes),
            )
        )

    def removed(self, block_hash: bytes) -> None:
        number = short_hash(block_hash)
        last = self._events[-1] if self._events else None
        if isinstance(last, BlockRemoved):
            last.block_hashes.append(number)
        else:
            self._events.append(BlockRemoved([number]))

    def cleared(self) -> None:
        self._events = [AllBlocksCleared()]

    def pop(self) -> list[Event]:
        events, self._events = self._events, []
        return events


class KvEventPublisher:
    """Sends batches from a thread. Raises NaiadError for an endpoint that cannot be used."""

    def __init__(self, endpoint: str, replay_endpoint: str = "", topic: str = "") -> None:
        try:
            import zmq
        except ModuleNotFoundError:
            raise invalid_arg(
                "kv_events_endpoint needs pyzmq, which is not installed: "
                + install_command("kv-events")
            ) from None
        self._zmq = zmq
        self._topic = topic.encode()
        self._queue: queue.Queue[list[Event] | None] = queue.Queue(_QUEUE_BATCHES)
        self._sent: deque[tuple[bytes, bytes]] = deque(maxlen=REPLAY_BATCHES)
        self._number = 0
        self._has_lost = False
        self._encoder = msgspec.msgpack.Encoder()
        context = zmq.Context.instance()
        self._publish_socket = context.socket(zmq.PUB)
        self._replay_socket = context.socket(zmq.ROUTER) if replay_endpoint else None
        try:
            self._publish_socket.bind(endpoint)
            if self._replay_socket is not None:
                self._replay_socket.bind(replay_endpoint)
        except zmq.ZMQError as error:
            self._close()
            raise invalid_arg(
                f"kv_events_endpoint '{endpoint}' or kv_events_replay_endpoint "
                f"'{replay_endpoint}' cannot be used: {error}. Instances of a model cannot share "
                "one endpoint."
            ) from None
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def publish(self, events: list[Event]) -> None:
        """Never waits. If the thread is far behind, readers are told that all is gone."""
        try:
            if self._has_lost:
                events = [AllBlocksCleared(), *events]
            self._queue.put_nowait(events)
            self._has_lost = False
        except queue.Full:
            self._has_lost = True

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(2.0)

    def _run(self) -> None:
        while True:
            if self._replay_socket is not None and self._replay_socket.poll(0):
                self._replay(self._replay_socket)
            try:
                events = self._queue.get(timeout=_POLL_MS / 1000)
            except queue.Empty:
                continue
            if events is None:
                self._close()
                return
            number = self._number.to_bytes(8, "big")
            self._number += 1
            payload = self._encoder.encode(EventBatch(time.time(), events))
            self._sent.append((number, payload))
            self._publish_socket.send_multipart((self._topic, number, payload))

    def _replay(self, socket: Any) -> None:
        frames = socket.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != 8:
            return
        client, _, start = frames
        for number, payload in list(self._sent):
            if number >= start:
                socket.send_multipart((client, b"", number, payload))
        socket.send_multipart((client, b"", END, b""))

    def _close(self) -> None:
        self._publish_socket.close(linger=0)
        if self._replay_socket is not None:
            self._replay_socket.close(linger=0)
