"""The policy `prefix`: its index, its prediction, its choices, and the events that feed it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import pytest

from naiad.core.tensor import Buffer
from naiad.errors import NaiadError
from naiad.llm.kv_events import BlockStored, EventBatch, KvEvents
from naiad.router.config import ModelSpec
from naiad.router.fleet import Fleet
from naiad.router.kv_subscriber import KvEvent, decode_batch
from naiad.router.policies.prefix import Prefix, Prompt
from naiad.router.policy import RoutedRequest
from naiad.router.prefix_index import EXPECT_S, PrefixIndex, block_keys, root_key
from naiad.router.prefixes import Prefixes
from naiad.router.prompts import read_pieces
from naiad.router.replica import Replica
from naiad.router.wait_model import WaitModel
from tests.unit.router.fleet_of import Seconds, fleet_of

BLOCK = 16


class Asked:
    model, version = "m", ""

    def __init__(
        self, tokens: Sequence[int] = (), body: bytes = b"", path: str = "/v1/completions"
    ) -> None:
        self.tokens = tokens
        self.body: Buffer = body
        self.path = path

    def header(self, name: str) -> str:
        return ""


def numbers(count: int, seed: int = 0) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(100_000) for _ in range(count)]


# The index.


def stored(index: PrefixIndex, name: str, tokens: list[int], salt: str = "") -> list[int]:
    """Reports the full blocks of a prompt, with hashes of the engine's own."""
    hashes = [hash((name, salt, number)) for number in range(len(tokens) // BLOCK)]
    index.store(name, hashes, None, tokens, BLOCK, salt)
    return hashes


def test_counts_the_leading_blocks_that_a_replica_holds() -> None:
    index = PrefixIndex(clock_s=Seconds())
    prompt = numbers(100)
    stored(index, "a", prompt[:64])
    assert index.block_size == BLOCK
    keys = block_keys(prompt, BLOCK)
    assert (index.num_cached("a", keys), index.num_cached("b", keys)) == (4, 0)
    other = prompt[:40] + numbers(60, seed=1)
    assert index.num_cached("a", block_keys(other, BLOCK)) == 2


def test_the_last_token_is_always_computed() -> None:
    assert len(block_keys(numbers(64), BLOCK)) == 3
    assert len(block_keys(numbers(65), BLOCK)) == 4


def test_blocks_that_follow_an_earlier_event_are_chained() -> None:
    index = PrefixIndex(clock_s=Seconds())
    prompt = numbers(100)
    first = stored(index, "a", prompt[:32])
    index.store("a", [7, 8], first[-1], prompt[32:64], BLOCK)
    assert index.num_cached("a", block_keys(prompt, BLOCK)) == 4


def test_blocks_whose_beginning_is_unknown_do_not_count() -> None:
    index = PrefixIndex(clock_s=Seconds())
    prompt = numbers(100)
    index.store("a", [7, 8], 99, prompt[:32], BLOCK)
    assert index.num_cached("a", block_keys(prompt, BLOCK)) == 0


def test_removed_blocks_do_not_count() -> None:
    index = PrefixIndex(clock_s=Seconds())
    prompt = numbers(100)
    hashes = stored(index, "a", prompt[:64])
    index.remove("a", hashes[2:])
    assert index.num_cached("a", block_keys(prompt, BLOCK)) == 2
    index.clear("a")
    assert index.num_cached("a", block_keys(prompt, BLOCK)) == 0


def test_prompts_with_different_salts_share_nothing() -> None:
    index = PrefixIndex(clock_s=Seconds())
    prompt = numbers(100)
    stored(index, "a", prompt[:64], salt="x")
    assert index.num_cached("a", block_keys(prompt, BLOCK)) == 0
    assert index.num_cached("a", block_keys(prompt, BLOCK, root_key("x"))) == 4


def test_what_was_sent_counts_until_the_engine_should_have_told() -> None:
    clock = Seconds()
    index = PrefixIndex(BLOCK, clock)
    keys = block_keys(numbers(100), BLOCK)
    index.clear("a")  # the engine does tell
    index.expect("a", keys)
    assert index.num_cached("a", keys) == 6
    clock.now_s += EXPECT_S + 1
    assert index.num_cached("a", keys) == 0


def test_without_events_what_was_sent_counts_on() -> None:
    clock = Seconds()
    index = PrefixIndex(BLOCK, clock)
    keys = block_keys(numbers(100), BLOCK)
    index.expect("a", keys)
    clock.now_s += 10 * EXPECT_S
    assert index.num_cached("a", keys) == 6


# The prediction.


def test_learns_the_pace_of_an_engine() -> None:
    chance, model = random.Random(1), WaitModel()
    for _ in range(500):
        tokens, running = chance.uniform(0, 20_000), chance.randrange(100)
        wait_s = 0.02 + tokens / 10_000 + 0.001 * running
        model.observe("a", tokens, running, wait_s * chance.uniform(0.95, 1.05))
    assert model.tokens_per_s == pytest.approx(10_000, rel=0.1)
    assert model.predict_s("a", 5000, 50) == pytest.approx(0.57, rel=0.15)


def test_learns_that_one_replica_is_slower() -> None:
    chance, model = random.Random(1), WaitModel()
    for _ in range(1000):
        tokens = chance.uniform(1000, 10_000)
        model.observe("fast", tokens, 1, tokens / 40_000)
        model.observe("slow", tokens, 1, tokens / 10_000)
    assert model.predict_s("slow", 5000, 1) > 2.5 * model.predict_s("fast", 5000, 1)


def test_more_work_is_never_predicted_to_be_faster() -> None:
    chance, model = random.Random(1), WaitModel()
    for _ in range(300):  # waits that have nothing to do with the work
        model.observe("a", chance.uniform(0, 100), chance.randrange(3), chance.uniform(0, 1))
    assert model.predict_s("a", 10_000, 5) > model.predict_s("a", 100, 5)
    assert model.predict_s("a", 100, 50) > model.predict_s("a", 100, 5)


# The choice.


def policy_of(fleet: Fleet) -> tuple[Prefix, Callable[[Sequence[int]], Replica]]:
    clock = Seconds()

    def read(request: RoutedRequest) -> Prompt:
        assert isinstance(request, Asked)
        return Prompt(request.tokens)

    policy = Prefix(PrefixIndex(BLOCK, clock), read, clock)

    def send(tokens: Sequence[int]) -> Replica:
        request = Asked(tokens)
        replica = policy.choose(request, fleet.candidates("m"))
        fleet.on_sent(replica)
        policy.on_sent(request, replica)
        return replica

    return policy, send


def test_a_prompt_goes_where_its_beginning_is_cached() -> None:
    policy, send = policy_of(fleet_of("a", "b", "c", "d"))
    prompt = numbers(2000)
    stored(policy.index, "c", prompt)
    assert send(prompt + numbers(50, seed=1)).name == "c"


def test_a_prompt_follows_one_that_the_engine_has_not_told_of_yet() -> None:
    fleet = fleet_of("a", "b", "c", "d")
    policy, send = policy_of(fleet)
    prompt = numbers(2000)
    first = send(prompt + numbers(50, seed=1))
    request = next(iter(policy._work))
    policy.on_first_byte(request, first, 0.05)
    assert send(prompt + numbers(50, seed=2)) is first


def test_prompts_without_anything_in_common_are_spread() -> None:
    _, send = policy_of(fleet_of("a", "b", "c", "d"))
    chosen = Counter(send(numbers(1000, seed=seed)).name for seed in range(40))
    assert set(chosen.values()) == {10}


def test_a_hot_prefix_does_not_pile_up() -> None:
    """A burst of prompts with one prefix: the replica that has it gets many of them, but when its
    queue is longer than computing the prefix elsewhere takes, others get some."""
    _, send = policy_of(fleet_of("a", "b", "c", "d"))
    prefix = numbers(4000)
    chosen = Counter(send(prefix + numbers(400, seed=seed)).name for seed in range(100))
    assert len(chosen) == 4
    assert max(chosen.values()) < 50


def test_work_that_has_begun_or_ended_is_not_ahead_any_more() -> None:
    fleet = fleet_of("a", "b")
    policy, _ = policy_of(fleet)
    requests = [Asked(numbers(1000, seed=seed)) for seed in range(3)]
    replica = fleet.find("a")
    for request in requests:
        fleet.on_sent(replica)
        policy.on_sent(request, replica)
    assert policy._tokens_ahead["a"] == 3000
    policy.on_first_byte(requests[0], replica, 0.05)
    policy.on_ended(requests[0], replica)
    policy.on_ended(requests[1], replica)
    assert policy._tokens_ahead["a"] == 1000
    assert len(policy._work) == 1


def test_a_response_that_comes_as_a_whole_tells_nothing_about_the_first_token() -> None:
    fleet, clock = fleet_of("a", "b"), Seconds()
    policy = Prefix(PrefixIndex(BLOCK, clock), lambda _: Prompt(numbers(1000), "", False), clock)
    request, replica = Asked(), fleet.find("a")
    before_s = policy.waits.predict_s("a", 1000, 0)
    fleet.on_sent(replica)
    policy.on_sent(request, replica)
    clock.now_s += 60.0
    policy.choose(Asked(), fleet.candidates("m"))
    assert policy._tokens_ahead["a"] == 0  # its first token was predicted long ago
    policy.on_first_byte(request, replica, 60.0)
    policy.on_ended(request, replica)
    assert policy.waits.predict_s("a", 1000, 0) == before_s


# Prompts.


def test_without_a_tokenizer_texts_are_compared() -> None:
    def keys(text: str) -> list[int]:
        body = json.dumps({"messages": [{"role": "user", "content": text}], "stream": True})
        prompt = read_pieces(Asked(body=body.encode()))
        assert prompt.is_stream
        return block_keys(list(prompt.tokens), BLOCK)

    common = "All happy families are alike. " * 100
    one, two = keys(common + "one"), keys(common + "two")
    shared = sum(a == b for a, b in zip(one, two, strict=True))
    assert shared >= len(one) - 2


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"prompt": 7}', b'{"stream": "x"}'])
def test_a_body_that_cannot_be_read_has_no_prompt(body: bytes) -> None:
    assert len(read_pieces(Asked(body=body)).tokens) <= 1


def test_a_tokenizer_that_is_not_there_is_an_error() -> None:
    pytest.importorskip("tokenizers")
    with pytest.raises(NaiadError, match="there is no file"):
        Prefixes().make("m", ModelSpec(tokenizer="/no/such/tokenizer.json"))


# Events.


def test_reads_what_our_engine_writes() -> None:
    events = KvEvents(BLOCK)
    tokens = numbers(48)
    events.stored([b"a" * 16, b"b" * 16], None, tokens[:32], "salt", "owner")
    events.stored([b"c" * 16], b"b" * 16, tokens[32:])
    events.removed(b"c" * 16)
    events.removed(b"b" * 16)
    payload = msgspec.msgpack.encode(EventBatch(1.5, events.pop()))
    a, b, c = (int.from_bytes(letter * 8) for letter in (b"a", b"b", b"c"))
    assert decode_batch(payload) == [
        KvEvent("BlockStored", (a, b), None, tuple(tokens[:32]), BLOCK, "salt\x1fowner"),
        KvEvent("BlockStored", (c,), b, tuple(tokens[32:]), BLOCK),
        KvEvent("BlockRemoved", (c, b)),
    ]
    assert events.pop() == []


def test_our_events_are_arrays_as_vllm_has_them() -> None:
    batch = EventBatch(1.5, [BlockStored([1], None, [5] * 2, 2)])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(batch)) == [
        1.5,
        [["BlockStored", [1], None, [5, 5], 2, None, "GPU", None, None]],
        0,
    ]


@pytest.mark.parametrize("is_map", [False, True])
def test_reads_vllms_arrays_and_maps(is_map: bool) -> None:
    stored_row: object = ["BlockStored", [b"h1"], None, [1, 2], 2, None, "GPU", "lora"]
    removed_row: object = ["BlockRemoved", [b"h1"], "GPU"]
    cleared_row: object = ["AllBlocksCleared"]
    unknown_row: object = ["SomethingNew", 1]
    if is_map:
        stored_row = {
            "type": "BlockStored",
            "block_hashes": [b"h1"],
            "parent_block_hash": None,
            "token_ids": [1, 2],
            "block_size": 2,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": "lora",
        }
        removed_row = {"type": "BlockRemoved", "block_hashes": [b"h1"], "medium": "GPU"}
        cleared_row, unknown_row = {"type": "AllBlocksCleared"}, {"type": "SomethingNew"}
    rows = [stored_row, removed_row, cleared_row, unknown_row]
    batch: object = {"ts": 1.0, "events": rows} if is_map else [1.0, rows]
    assert decode_batch(msgspec.msgpack.encode(batch)) == [
        KvEvent("BlockStored", (b"h1",), None, (1, 2), 2, "lora"),
        KvEvent("BlockRemoved", (b"h1",)),
        KvEvent("AllBlocksCleared"),
    ]


@pytest.mark.parametrize("payload", [b"", b"\x07", b"\x93\x01\x02", b"\xc1"])
def test_what_is_not_a_batch_is_an_error(payload: bytes) -> None:
    with pytest.raises(ValueError, match="not a batch of KV events"):
        decode_batch(payload)


def test_events_reach_the_model_that_their_topic_names() -> None:
    fleet = fleet_of("a", models=("m", "n"))
    prefixes = Prefixes()
    for model in ("m", "n"):
        prefixes.make(model, ModelSpec())
        prefixes._has_tokens.add(model)
    tokens = numbers(32)
    event = KvEvent("BlockStored", (1, 2), None, tuple(tokens), BLOCK)
    prefixes.on_events(fleet.find("a"), "kv@10.0.0.1@n", [event])
    held = {m: p.index.num_blocks("a") for m, p in prefixes.policies.items()}
    assert held == {"m": 0, "n": 2}
    prefixes.on_events(fleet.find("a"), "", [event])
    held = {m: p.index.num_blocks("a") for m, p in prefixes.policies.items()}
    assert held == {"m": 2, "n": 2}


def test_a_policy_outlives_a_config_file_that_does_not_change_it() -> None:
    prefixes = Prefixes()
    first = prefixes.make("m", ModelSpec(policy="prefix"))
    assert prefixes.make("m", ModelSpec(policy="prefix")) is first
    assert prefixes.make("m", ModelSpec(policy="prefix", block_size=32)) is not first


def test_a_slow_engine_does_not_make_one_replica_look_slow() -> None:
    waits = WaitModel()
    for number in range(16):  # misses only, and far slower than the numbers of the beginning
        waits.observe(("a", "b")[number % 2], 315, 0, 1.3)
    for hit, miss in (("a", "b"), ("b", "a")):
        assert waits.predict_s(hit, 15, 0) < waits.predict_s(miss, 315, 0) / 2
    for _ in range(200):
        waits.observe("a", 315, 0, 1.3)
        waits.observe("b", 315, 0, 3.9)
    assert waits.predict_s("b", 315, 0) > 2 * waits.predict_s("a", 315, 0), "b is slow"
