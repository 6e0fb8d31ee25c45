"""Tests of the block pool under a random walk: every block is free or held, and contents are found
exactly while they exist."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.llm.block_pool import BlockPool, chain_hash, root_hash

NUM_BLOCKS = 9


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["allocate", "share", "release", "remember"]), st.integers(0, 7)),
        max_size=60,
    )
)
def test_holders_and_contents_stay_consistent(moves: list[tuple[str, int]]) -> None:
    pool = BlockPool(NUM_BLOCKS, 4)
    held: list[list[int]] = []
    content: dict[bytes, int] = {}
    for move, number in moves:
        if move == "allocate" and number <= pool.num_free:
            blocks = pool.allocate(number)
            assert 0 not in blocks
            assert len(set(blocks)) == number
            assert not set(blocks) & {block for run in held for block in run}
            content = {name: block for name, block in content.items() if block not in blocks}
            held.append(blocks)
        elif move == "share" and held:
            blocks = held[number % len(held)]
            pool.acquire(blocks)
            held.append(list(blocks))
        elif move == "release" and held:
            pool.release(held.pop(number % len(held)))
        elif move == "remember" and held and held[-1]:
            name = chain_hash(root_hash(""), [number])
            block = held[-1][0]
            pool.remember(block, name)
            if name not in content and block not in content.values():
                content[name] = block
        in_use = {block for run in held for block in run}
        assert pool.num_used == len(in_use)
        for name, block in content.items():
            assert pool.match([name]) == [block]
    for run in held:
        pool.release(run)
    assert pool.num_used == 0
    assert pool.num_free == pool.capacity == NUM_BLOCKS - 1


def test_matches_the_longest_known_prefix() -> None:
    pool = BlockPool(8, 2)
    first = chain_hash(root_hash("salt"), [1, 2])
    second = chain_hash(first, [3, 4])
    third = chain_hash(second, [5, 6])
    blocks = pool.allocate(3)
    for block, name in zip(blocks, (first, second, third), strict=True):
        pool.remember(block, name)
    pool.release(blocks)
    assert pool.match([first, second, third]) == blocks
    assert pool.match([second]) == [blocks[1]]
    assert pool.match([chain_hash(root_hash("other"), [1, 2])]) == []
    assert chain_hash(first, [3, 4]) != chain_hash(root_hash("salt"), [3, 4])


def test_allocates_the_end_of_a_sequence_before_its_beginning() -> None:
    pool = BlockPool(4, 1)
    blocks = pool.allocate(3)
    for index, block in enumerate(blocks):
        pool.remember(block, bytes([index]))
    pool.release(blocks)
    assert pool.allocate(1) == [blocks[2]]
    assert pool.match([b"\x00", b"\x01", b"\x02"]) == blocks[:2]


def test_allocates_blocks_without_content_first() -> None:
    pool = BlockPool(3, 1)
    named, bare = pool.allocate(2)
    pool.remember(named, b"x")
    pool.release([named])
    pool.release([bare])
    assert pool.allocate(1) == [bare]
    pool.forget_all()
    assert pool.match([b"x"]) == []
