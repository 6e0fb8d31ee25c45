"""A config.json with missing or wrong values gets an error that names the value."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.errors import NaiadError
from naiad.llm.models import llama

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def test_reads_a_config() -> None:
    config = llama.FAMILY.checked_config(CONFIG, "config.json")
    assert (config.num_layers, config.num_kv_heads, config.head_dim) == (2, 2, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_hidden_layers": 10**9},
            "has num_hidden_layers 1000000000, expected a number from 1",
        ),
        ({"num_hidden_layers": -1}, "has num_hidden_layers -1, expected a number from 1 to 1000"),
        ({"hidden_size": "32"}, "has hidden_size 32, expected a number from 1"),
        ({"num_attention_heads": True}, "has num_attention_heads True, expected a number"),
        ({"num_key_value_heads": 3}, "has 4 attention heads and 3 heads of keys and values"),
        ({"rms_norm_eps": "small"}, "has a value that cannot be used: Expected `float`"),
        ({"rope_scaling": "yarn"}, "has a value that cannot be used"),
        ({"eos_token_id": {"a": 1}, "bos_token_id": "x"}, "has a value that cannot be used"),
    ],
)
def test_names_a_wrong_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(NaiadError, match=f"^config.json {message}"):
        llama.FAMILY.checked_config(CONFIG | changes, "config.json")


@pytest.mark.parametrize("name", ["vocab_size", "hidden_size", "num_hidden_layers"])
def test_names_a_missing_value(name: str) -> None:
    raw = {key: value for key, value in CONFIG.items() if key != name}
    with pytest.raises(NaiadError, match=f"^config.json has no {name}$"):
        llama.FAMILY.checked_config(raw, "config.json")
