"""What the engine publishes is what its prefix cache holds, whatever the scheduler does."""

from __future__ import annotations

import random

import msgspec
import pytest

from naiad.errors import NaiadError
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, KvEvents
from naiad.router.kv_subscriber import KvEvent, decode_batch
from naiad.router.prefix_index import PrefixIndex, block_keys
from tests.unit.llm.test_token_scheduler import Bench


def listening(
    num_blocks: int = 100, block_size: int = 4, budget: int = 16, max_num_seqs: int = 8
) -> tuple[Bench, KvEvents]:
    bench = Bench(num_blocks, block_size, max_num_seqs, budget)
    events = bench.scheduler.pool.events = KvEvents(bench.scheduler.pool.block_size)
    return bench, events


def test_reports_full_blocks_with_their_tokens() -> None:
    bench, events = listening(block_size=4, budget=64)
    sequence = bench.add(list(range(10)), max_tokens=3)
    bench.step()
    (stored,) = events.pop()
    assert isinstance(stored, BlockStored)
    assert stored.token_ids == list(range(8))
    assert stored.parent_block_hash is None
    assert len(stored.block_hashes) == 2
    bench.run()
    (later,) = events.pop()
    assert isinstance(later, BlockStored)
    assert later.parent_block_hash == stored.block_hashes[-1]
    assert later.token_ids == sequence.tokens[8:12]


def test_a_prefix_that_is_known_is_not_reported_again() -> None:
    bench, events = listening(block_size=4, budget=64)
    prompt = list(range(10))
    bench.add(list(prompt), max_tokens=1)
    bench.run()
    events.pop()
    bench.add([*prompt, 50, 51, 52], max_tokens=1)
    bench.run()
    (stored,) = events.pop()
    assert isinstance(stored, BlockStored)
    assert stored.token_ids == [8, 9, 50, 51]


def test_reports_blocks_that_are_used_for_something_else() -> None:
    bench, events = listening(num_blocks=4, block_size=4, budget=64)
    bench.add(list(range(12)), max_tokens=1)
    bench.run()
    events.pop()
    bench.add([70 + number for number in range(12)], max_tokens=1)
    bench.run()
    assert any(isinstance(event, BlockRemoved) for event in events.pop())
    bench.scheduler.pool.forget_all()
    assert events.pop() == [AllBlocksCleared()]


def apply(index: PrefixIndex, events: list[KvEvent]) -> None:
    for event in events:
        if event.kind == "BlockStored":
            index.store(
                "a", event.block_hashes, event.parent, event.tokens, event.block_size, event.salt
            )
        elif event.kind == "BlockRemoved":
            index.remove("a", event.block_hashes)
        else:
            index.clear("a")


def test_a_router_knows_exactly_what_the_cache_holds() -> None:
    """Random prompts with common beginnings, in a cache that is far too small for them."""
    chance = random.Random(3)
    bench, events = listening(num_blocks=24, block_size=4, budget=20, max_num_seqs=4)
    pool = bench.scheduler.pool
    index = PrefixIndex(4)
    roots = [[chance.randrange(100) for _ in range(24)] for _ in range(5)]
    prompts = [
        [*chance.choice(roots)[: chance.randint(0, 24)], *(chance.randrange(100) for _ in range(9))]
        for _ in range(200)
    ]
    num_matches = 0
    for prompt in prompts:
        sequence = bench.add(list(prompt), max_tokens=chance.randint(1, 6))
        for _ in range(chance.randrange(4)):
            bench.step()
        if chance.random() < 0.02:
            pool.forget_all()
        apply(index, decode_batch(msgspec.msgpack.encode(EventBatch(0.0, events.pop()))))
        for asked in chance.sample(prompts, 5):
            keys = block_keys(asked, 4)
            hashes = type(sequence)(sequence.request, 0, list(asked), 99, 0, 0).hash_full_blocks(
                len(asked) - 1, 4
            )
            held = len(pool.match(hashes))
            assert index.num_cached("a", keys) == held
            num_matches += held > 0
    assert num_matches > 100
    assert index.num_blocks("a") == len(pool._block_of)


def test_nothing_is_collected_where_nobody_listens() -> None:
    bench = Bench()
    bench.add(40)
    bench.run()
    assert bench.scheduler.pool.events is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kv_events_endpoint": "5557"}, "kv_events_endpoint is '5557', expected tcp://"),
        ({"kv_events_replay_endpoint": "tcp://*:5558"}, "needs kv_events_endpoint"),
        (
            {"kv_events_endpoint": "tcp://*:5557", "enable_prefix_caching": False},
            "needs enable_prefix_caching",
        ),
    ],
)
def test_rejects_settings_that_cannot_be(values: dict[str, str | bool], message: str) -> None:
    with pytest.raises(NaiadError) as caught:
        msgspec.convert(values, EngineSettings).check()
    assert message in caught.value.message
