"""Which replica holds which prefixes of a model in its KV cache.

In:  events of the engines (naiad.router.kv_events): blocks stored, removed, all cleared; and the
     router's own decisions, because what was just sent will be cached soon.
Out: per replica, how many tokens of a prompt need not be computed.
Rule: blocks are compared by their tokens and all tokens before them, not by the hashes of an
      engine, so that engines with different hashes can serve one model.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

EXPECT_S = 30.0
"""A prompt that was sent and not reported within this time is not cached: it failed, or its blocks
were removed before anybody was told."""
MAX_EXPECTED_BLOCKS = 65_536
"""Blocks that a replica without events is believed to hold. The oldest are forgotten first."""
MAX_PARENTS = 65_536
"""Hashes that are remembered although the engine does not hold their blocks any more."""
ROOT = 0


def block_keys(tokens: Sequence[int], block_size: int, root: int = ROOT) -> list[int]:
    """The keys of the full blocks. The last token is always computed, so its block does not
    count as cached if it would be full."""
    keys: list[int] = []
    parent = root
    for start in range(0, (len(tokens) - 1) // block_size * block_size, block_size):
        parent = hash((parent, *tokens[start : start + block_size]))
        keys.append(parent)
    return keys


def root_key(salt: str) -> int:
    """Prompts with different salts share nothing."""
    return hash(("salt", salt)) if salt else ROOT


class ReplicaBlocks:
    """What one replica holds."""

    __slots__ = ("expected", "has_events", "held", "key_of", "stored")

    def __init__(self) -> None:
        self.stored: dict[int, int] = {}
        """How many blocks of the engine have this content."""
        self.held: set[object] = set()
        """The engine's own hashes of these blocks."""
        self.key_of: dict[object, int] = {}
        """The keys of the engine's hashes. A hash that is not held any more may still be the parent
        of blocks to come, so it is kept for a while."""
        self.expected: OrderedDict[int, float] = OrderedDict()
        """Blocks that were sent for, and until when that is believed."""
        self.has_events = False


class PrefixIndex:
    def __init__(self, block_size: int = 0, clock_s: Callable[[], float] = time.monotonic) -> None:
        """`block_size` is 0 until the first event tells it."""
        self.block_size = block_size
        self._clock_s = clock_s
        self._replicas: dict[str, ReplicaBlocks] = {}

    def replica(self, name: str) -> ReplicaBlocks:
        blocks = self._replicas.get(name)
        if blocks is None:
            blocks = self._replicas[name] = ReplicaBlocks()
        return blocks

    def forget(self, name: str) -> None:
        self._replicas.pop(name, None)

    # Events.

    def store(
        self,
        name: str,
        hashes: Sequence[object],
        parent: object | None,
        tokens: Sequence[int],
        block_size: int,
        salt: str = "",
    ) -> None:
        """Blocks that follow each other. A parent that is unknown makes them unusable: events were
        lost, and their beginning cannot be told."""
        blocks = self.replica(name)
        blocks.has_events = True
        if block_size <= 0 or len(tokens) < block_size * len(hashes):
            return
        if not self.block_size:
            self.block_size = block_size
        if block_size != self.block_size:
            return
        if parent is None:
            key = root_key(salt)
        else:
            known = blocks.key_of.get(parent)
            if known is None:
                return
            key = known
        for number, engine_hash in enumerate(hashes):
            start = number * block_size
            key = hash((key, *tokens[start : start + block_size]))
            if engine_hash not in blocks.held:
                blocks.held.add(engine_hash)
                blocks.key_of[engine_hash] = key
                blocks.stored[key] = blocks.stored.get(key, 0) + 1
            blocks.expected.pop(key, None)
        if len(blocks.key_of) > 2 * len(blocks.held) + MAX_PARENTS:
            blocks.key_of = {h: k for h, k in blocks.key_of.items() if h in blocks.held}

    def remove(self, name: str, hashes: Iterable[object]) -> None:
        blocks = self.replica(name)
        blocks.has_events = True
        for engine_hash in hashes:
            if engine_hash not in blocks.held:
                continue
            blocks.held.discard(engine_hash)
            key = blocks.key_of[engine_hash]
            if blocks.stored[key] == 1:
                del blocks.stored[key]
            else:
                blocks.stored[key] -= 1

    def clear(self, name: str) -> None:
        blocks = self.replica(name)
        blocks.has_events = True
        blocks.stored.clear()
        blocks.held.clear()
        blocks.expected.clear()

    # Decisions.

    def expect(self, name: str, keys: Sequence[int]) -> None:
        """A prompt with these blocks has been sent to the replica."""
        blocks = self.replica(name)
        expected, stored = blocks.expected, blocks.stored
        until_s = self._clock_s() + EXPECT_S
        for key in keys:
            if key not in stored:
                expected[key] = until_s
                expected.move_to_end(key)
        limit = MAX_EXPECTED_BLOCKS
        while len(expected) > limit:
            expected.popitem(last=False)

    def num_cached(self, name: str, keys: Sequence[int]) -> int:
        """The number of leading blocks that the replica holds or will hold soon."""
        blocks = self._replicas.get(name)
        if blocks is None or not keys:
            return 0
        if blocks.has_events:
            self._drop_late(blocks)
        stored, expected = blocks.stored, blocks.expected
        for number, key in enumerate(keys):
            if key not in stored and key not in expected:
                return number
        return len(keys)

    def num_blocks(self, name: str) -> int:
        blocks = self._replicas.get(name)
        return 0 if blocks is None else len(blocks.stored)

    def _drop_late(self, blocks: ReplicaBlocks) -> None:
        expected = blocks.expected
        if not expected:
            return
        now_s = self._clock_s()
        late = 0
        for until_s in expected.values():
            if until_s > now_s:
                break
            late += 1
        for key in list(islice(expected, late)):
            del expected[key]
