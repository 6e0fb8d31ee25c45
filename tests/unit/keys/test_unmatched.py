from __future__ import annotations

from naiad.core.identity import Identity
from naiad.keys.unmatched import unmatched_patterns


def test_names_each_key_with_its_pattern() -> None:
    identities = [
        Identity("a", models=("*", "nothing")),
        Identity("b", models=("llama*", "lama*")),
        Identity("c", models=("LLAMA*",)),
    ]
    assert unmatched_patterns(identities, ["llama-3", "digits"]) == [
        ("a", "nothing"),
        ("b", "lama*"),
        ("c", "LLAMA*"),
    ]
    assert unmatched_patterns(identities[1:2], ["llama", "lama"]) == []
