"""Keys that come again are recognised, and what never comes again takes no memory."""

from __future__ import annotations

from naiad.core.seen_keys import MAX_KEYS, SeenKeys


def test_recognises_a_key_that_comes_again() -> None:
    seen = SeenKeys()
    assert [seen.add(key) for key in ("a", "b", "a", "a", "b")] == [False, False, True, True, True]


def test_ever_new_keys_take_bounded_memory() -> None:
    seen = SeenKeys()
    assert not any(seen.add(f"key {number}") for number in range(5 * MAX_KEYS))
    assert len(seen) <= MAX_KEYS
