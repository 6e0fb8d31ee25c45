"""Reads the KV events of one engine: vLLM's format over ZeroMQ, as arrays or as maps.

In:  messages of the engine's PUB socket, and of its replay socket for what was missed. Out: batches
     of events on the event loop, in order.
Rule: what the index says must not be more than the engine holds. A gap that cannot be filled, and
      an engine that starts again, clear what is known of it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from naiad import log
from naiad.core.install_advice import install_command
from naiad.errors import invalid_arg
from naiad.transport.tcp_watch import (
    KEEPALIVE_COUNT,
    KEEPALIVE_IDLE_S,
    KEEPALIVE_INTERVAL_S,
)

_POLL_MS = 200
_REPLAY_LIMIT_MS = 2000
_END = (1 << 64) - 1
_FIELDS = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
    ),
    "BlockRemoved": ("block_hashes", "medium"),
    "AllBlocksCleared": (),
}


class KvEvent(msgspec.Struct, frozen=True):
    kind: str
    """BlockStored, BlockRemoved or AllBlocksCleared."""
    block_hashes: tuple[object, ...] = ()
    parent: object | None = None
    tokens: tuple[int, ...] = ()
    block_size: int = 0
    salt: str = ""


Clear = KvEvent("AllBlocksCleared")
OnEvents: TypeAlias = Callable[[str, list[KvEvent]], None]
"""(topic, events)"""


def decode_batch(payload: bytes) -> list[KvEvent]:
    """Raises ValueError for what is not a batch. Events of kinds that are not known are left
    out."""
    try:
        batch = msgspec.msgpack.decode(payload)
        rows = batch["events"] if isinstance(batch, dict) else batch[1]
        return [event for row in rows if (event := _decode_event(row)) is not None]
    except (msgspec.DecodeError, KeyError, IndexError, TypeError) as error:
        raise ValueError(f"not a batch of KV events: {error}") from None


def batch_time_s(payload: bytes) -> float:
    """When the engine made the batch; 0 if it does not tell."""
    try:
        batch = msgspec.msgpack.decode(payload)
        return float(batch["ts"] if isinstance(batch, dict) else batch[0])
    except (msgspec.DecodeError, KeyError, IndexError, TypeError, ValueError):
        return 0.0


def _decode_event(row: Any) -> KvEvent | None:
    if isinstance(row, dict):
        kind, fields = row.get("type"), row
    else:
        kind = row[0]
        fields = dict(zip(_FIELDS.get(kind, ()), row[1:], strict=False))
    if kind not in _FIELDS:
        return None
    extra = fields.get("extra_keys") or [None]
    return KvEvent(
        kind,
        tuple(fields.get("block_hashes") or ()),
        fields.get("parent_block_hash"),
        tuple(fields.get("token_ids") or ()),
        fields.get("block_size") or 0,
        # A LoRA adapter separates prompts as a salt does.
        "\x1f".join(map(str, [*(extra[0] or ()), *filter(None, [fields.get("lora_name")])])),
    )


class KvSubscriber:
    """A thread that reads one endpoint. Raises NaiadError where pyzmq is missing."""

    def __init__(
        self,
        endpoint: str,
        replay_endpoint: str,
        loop: asyncio.AbstractEventLoop,
        on_events: OnEvents,
    ) -> None:
        """`on_events` is called on the event loop."""
        try:
            import zmq
        except ModuleNotFoundError:
            raise invalid_arg(
                f"kv_events needs pyzmq, which is not installed: {install_command('kv-events')}"
            ) from None
        self._zmq = zmq
        self._endpoint = endpoint
        self._replay_endpoint = replay_endpoint
        self._loop = loop
        self._on_events = on_events
        self._is_stopping = False
        self._next = -1
        """The number of the next batch; -1 before the first."""
        self._last_s = 0.0
        """The time of the latest batch, on the engine's clock."""
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping = True

    def _run(self) -> None:
        from zmq.utils.monitor import parse_monitor_message

        zmq = self._zmq
        context = zmq.Context.instance()
        socket = context.socket(zmq.SUB)
        socket.set_hwm(100_000)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_S)
        socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_INTERVAL_S)
        socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, KEEPALIVE_COUNT)
        socket.subscribe(b"")
        monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        try:
            socket.connect(self._endpoint)
            # A subscription reaches the engine some time after the connection stands, and nobody
            # tells when. What was published before is fetched at the first quiet moment.
            may_miss_some = True
            while not self._is_stopping:
                ready = dict(poller.poll(_POLL_MS))
                if not ready and may_miss_some:
                    known = self._next
                    self._fill(max(known, 0))
                    may_miss_some = self._next != known
                if monitor in ready:
                    may_miss_some = True
                    if parse_monitor_message(monitor.recv_multipart())["event"] == (
                        zmq.EVENT_DISCONNECTED
                    ):
                        # Perhaps the engine has ended: nothing is known until it publishes again.
                        self._next, self._last_s = -1, 0.0
                        self._emit("", [Clear])
                if socket in ready:
                    may_miss_some = True
                    frames = socket.recv_multipart()
                    if len(frames) == 3 and len(frames[1]) == 8:
                        self._on_batch(frames[0].decode("utf-8", "replace"), frames[1], frames[2])
        except zmq.ZMQError as error:
            log.error(f"the KV events of {self._endpoint} cannot be read: {error}")
        except RuntimeError:
            pass  # the event loop has ended
        finally:
            socket.disable_monitor()
            monitor.close(linger=0)
            socket.close(linger=0)

    def _on_batch(self, topic: str, number: bytes, payload: bytes) -> None:
        found = int.from_bytes(number)
        time_s = batch_time_s(payload)
        if 0 <= found < self._next:
            if time_s <= self._last_s:
                return  # the replay has brought it already
            # The engine counts from 0 again: it has started again.
            self._emit(topic, [Clear])
            if not self._fill(0, found) and found:
                self._emit(topic, [Clear])
        elif self._next < found and not self._fill(max(self._next, 0), found):
            self._emit(topic, [Clear])
        self._next = found + 1
        self._last_s = max(self._last_s, time_s)
        self._decode(topic, payload)

    def _decode(self, topic: str, payload: bytes) -> None:
        try:
            self._emit(topic, decode_batch(payload))
        except ValueError as error:
            log.error(f"the KV events of {self._endpoint} cannot be read: {error}")

    def _fill(self, start: int, stop: int = _END) -> bool:
        """Fetches the batches from `start` up to `stop`. Returns False if some are missing."""
        if not self._replay_endpoint:
            return False
        zmq = self._zmq
        # Many responses come to one request, which a REQ socket does not allow.
        socket = zmq.Context.instance().socket(zmq.DEALER)
        found = start
        try:
            socket.connect(self._replay_endpoint)
            socket.send_multipart((b"", start.to_bytes(8, "big")))
            while socket.poll(_REPLAY_LIMIT_MS):
                *_, number_bytes, payload = socket.recv_multipart()
                number = int.from_bytes(number_bytes)
                if number == _END or number >= stop:
                    break
                if number > found and start:
                    return False
                self._decode("", payload)
                self._last_s = max(self._last_s, batch_time_s(payload))
                found = self._next = number + 1
        except zmq.ZMQError:
            return False
        finally:
            socket.close(linger=0)
        return stop == _END or found == stop

    def _emit(self, topic: str, events: list[KvEvent]) -> None:
        self._loop.call_soon_threadsafe(self._on_events, topic, events)
