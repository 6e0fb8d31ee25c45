"""KV events from the engine's publisher to the router's subscriber, over ZeroMQ."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from naiad.errors import NaiadError
from naiad.llm.kv_events import BlockRemoved, BlockStored, EventBatch, KvEventPublisher
from naiad.router.kv_subscriber import KvEvent, KvSubscriber

zmq = pytest.importorskip("zmq", reason="the extra kv-events brings it")


class Reader:
    def __init__(self, folder: Path, *, has_replay: bool) -> None:
        self.events: list[KvEvent] = []
        self.topics: set[str] = set()
        self.endpoint = f"ipc://{folder}/events"
        self.replay = f"ipc://{folder}/replay" if has_replay else ""
        self._subscriber: KvSubscriber | None = None

    def start(self) -> None:
        self._subscriber = KvSubscriber(
            self.endpoint, self.replay, asyncio.get_running_loop(), self._on_events
        )

    def _on_events(self, topic: str, events: list[KvEvent]) -> None:
        self.topics.add(topic)
        self.events += events

    async def wait_for(self, count: int) -> list[KvEvent]:
        async with asyncio.timeout(30):
            while len(self.events) < count:
                await asyncio.sleep(0.01)
        return self.events

    def stop(self) -> None:
        if self._subscriber is not None:
            self._subscriber.stop()
            self._subscriber._thread.join(5)


@pytest.fixture
async def reader(tmp_path: Path) -> AsyncIterator[Reader]:
    one = Reader(tmp_path, has_replay=True)
    yield one
    one.stop()


def stored(number: int) -> BlockStored:
    return BlockStored([number], None, [number] * 4, 4)


async def test_a_router_that_comes_later_gets_what_was_published_before(reader: Reader) -> None:
    publisher = KvEventPublisher(reader.endpoint, reader.replay, "kv@here@m")
    publisher.publish([stored(1)])
    publisher.publish([stored(2), BlockRemoved([1])])
    await asyncio.sleep(0.3)
    reader.start()
    events = await reader.wait_for(3)
    assert [event.kind for event in events] == ["BlockStored", "BlockStored", "BlockRemoved"]
    publisher.publish([stored(3)])
    assert (await reader.wait_for(4))[-1].block_hashes == (3,)
    assert "kv@here@m" in reader.topics
    publisher.close()


async def test_a_last_batch_that_was_lost_is_fetched_when_all_is_quiet(reader: Reader) -> None:
    publisher = KvEventPublisher(reader.endpoint, reader.replay)
    publisher.publish([stored(1)])
    reader.start()
    await reader.wait_for(1)
    payload = publisher._encoder.encode(EventBatch(1.0, [stored(2)]))
    publisher._sent.append(((1).to_bytes(8, "big"), payload))  # as if the subscription came later
    publisher._number = 2
    assert (await reader.wait_for(2))[-1].block_hashes == (2,)
    publisher.close()


async def test_a_gap_is_filled_from_the_replay_socket(reader: Reader) -> None:
    publisher = KvEventPublisher(reader.endpoint, reader.replay)
    publisher.publish([stored(1)])
    reader.start()
    await reader.wait_for(1)
    assert reader._subscriber is not None
    publisher.publish([stored(2)])
    await reader.wait_for(2)
    reader._subscriber._next = 1  # as if the second batch had been lost
    reader.events.clear()
    publisher.publish([stored(3)])
    events = await reader.wait_for(2)
    assert [event.block_hashes for event in events] == [(2,), (3,)]
    publisher.close()


async def test_a_gap_that_cannot_be_filled_clears_what_is_known(tmp_path: Path) -> None:
    reader = Reader(tmp_path, has_replay=False)
    publisher = KvEventPublisher(reader.endpoint)
    reader.start()
    for number in range(1000):  # a subscription takes a moment
        publisher.publish([stored(number)])
        if len(reader.events) > 1:
            break
        await asyncio.sleep(0.05)
    await reader.wait_for(2)
    assert reader._subscriber is not None
    await asyncio.sleep(0.3)  # everything that was published is there
    reader._subscriber._next = 0  # as if many had been lost
    reader.events.clear()
    publisher.publish([stored(7)])
    publisher.publish([stored(8)])
    events = await reader.wait_for(3)
    assert [event.kind for event in events][:2] == ["AllBlocksCleared", "BlockStored"]
    reader.stop()
    publisher.close()


async def test_an_engine_that_starts_again_has_an_empty_cache(reader: Reader) -> None:
    publisher = KvEventPublisher(reader.endpoint, reader.replay)
    publisher.publish([stored(1)])
    publisher.publish([stored(2)])
    reader.start()
    await reader.wait_for(2)
    reader.events.clear()
    publisher.close()
    again = KvEventPublisher(reader.endpoint, reader.replay)
    for _ in range(200):
        again.publish([stored(9)])
        if any(event.block_hashes == (9,) for event in reader.events):
            break
        await asyncio.sleep(0.05)
    kinds = [event.kind for event in reader.events]
    assert kinds.index("AllBlocksCleared") < kinds.index("BlockStored")
    again.close()


async def test_two_instances_cannot_share_an_endpoint(tmp_path: Path) -> None:
    first = KvEventPublisher("tcp://127.0.0.1:*")
    address = first._publish_socket.getsockopt_string(zmq.LAST_ENDPOINT)
    with pytest.raises(NaiadError, match="Instances of a model cannot share one endpoint"):
        KvEventPublisher(address)
    first.close()
