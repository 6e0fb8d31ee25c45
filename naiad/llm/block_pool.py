"""Keeps track of KV blocks: which are free, which are shared, and which content they hold. It works
with block numbers, not with tensors.

In:  the scheduler allocates and releases blocks, and names the content of full ones by a chained
     hash.
Out: block numbers. Block 0 is never allocated; padded rows write there.
Invariant: a block is in `_free` exactly when no sequence holds it. A free block keeps its content
           and can be found by its hash until it is allocated again. The block that was freed first
           is allocated first.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence as Run
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from naiad.llm.kv_events import KvEvents


def root_hash(salt: str, owner: str = "") -> bytes:
    """Returns the parent of first blocks. Prefixes are shared only where both values are equal. The
    client chooses the salt, so the owner is not part of the same text."""
    return blake2b(salt.encode(), digest_size=16, key=owner.encode()[:64]).digest()


def chain_hash(parent: bytes, tokens: Run[int]) -> bytes:
    """Returns a name for a full block that depends on all tokens up to its end. The hash is
    cryptographic because a guessed collision would leak another client's prompt."""
    return blake2b(parent + array("i", tokens).tobytes(), digest_size=16).digest()


class BlockPool:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._num_holders = [0] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self.events: KvEvents | None = None
        """What is told about the content; None where nobody listens."""

    @property
    def capacity(self) -> int:
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.capacity - len(self._free)

    def match(self, hashes: Run[bytes]) -> list[int]:
        """Returns the blocks that hold the longest known prefix of `hashes`, without acquiring
        them."""
        blocks: list[int] = []
        for block_hash in hashes:
            block = self._block_of.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_free_without(self, blocks: Run[int]) -> int:
        """Returns the number of free blocks that would be left if `blocks` were acquired."""
        return len(self._free) - sum(1 for block in blocks if self._num_holders[block] == 0)

    def acquire(self, blocks: Run[int]) -> None:
        for block in blocks:
            if self._num_holders[block] == 0:
                del self._free[block]
            self._num_holders[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Requires `num_free` >= `count`."""
        blocks: list[int] = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            self._forget(block)
            self._num_holders[block] = 1
            blocks.append(block)
        return blocks

    def release(self, blocks: Run[int]) -> None:
        """Frees the end of a sequence first, because a shorter prefix is more likely to be
        requested again."""
        for block in reversed(blocks):
            self._num_holders[block] -= 1
            if self._num_holders[block] == 0:
                self._free[block] = None
                if self._hash_of[block] is None:
                    self._free.move_to_end(block, last=False)

    def remember(self, block: int, block_hash: bytes) -> bool:
        """Records the content of the block. A second block with the same content stays anonymous.
        Returns True if the content is new."""
        if block_hash not in self._block_of and self._hash_of[block] is None:
            self._block_of[block_hash] = block
            self._hash_of[block] = block_hash
            return True
        return False

    def forget_all(self) -> None:
        """Forgets all content. After a failed step no content can be trusted."""
        self._block_of.clear()
        self._hash_of = [None] * self.num_blocks
        if self.events is not None:
            self.events.cleared()

    def _forget(self, block: int) -> None:
        block_hash = self._hash_of[block]
        if block_hash is not None:
            del self._block_of[block_hash]
            self._hash_of[block] = None
            if self.events is not None:
                self.events.removed(block_hash)
