"""What a family of checkpoints must say: how to read its config.json, and under which names its
tensors lie.

A family's module holds one `Family` value; registry.py lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from naiad.errors import invalid_arg
from naiad.llm.models.decoder_config import DecoderConfig

if TYPE_CHECKING:
    from torch import Tensor

MAX_LAYERS = 1000
MAX_SIZE = 1 << 31
SIZES = {
    "num_hidden_layers": (1, MAX_LAYERS),
    "num_attention_heads": (1, MAX_SIZE),
    "num_key_value_heads": (1, MAX_SIZE),
    "hidden_size": (1, MAX_SIZE),
    "intermediate_size": (1, MAX_SIZE),
    "head_dim": (1, MAX_SIZE),
    "vocab_size": (0, MAX_SIZE),
    "max_position_embeddings": (1, MAX_SIZE),
}
"""Numbers of config.json and their bounds. They are checked first, because lists are made of
them."""


class Family(msgspec.Struct, frozen=True, kw_only=True):
    read_config: Callable[[dict[str, Any]], DecoderConfig]
    """The family's own function. `checked_config` calls it."""
    layer_prefix: str
    """With {} for the layer's number."""
    layer_names: dict[str, list[str]]
    """Our module -> the checkpoint's modules, whose rows are put one under the other."""
    outer_names: dict[str, str]
    arrange: dict[str, Callable[[DecoderConfig, Tensor], Tensor]] = {}
    """Our module -> a reordering of the rows of its weight and bias."""

    def checked_config(self, raw: dict[str, Any], source: str) -> DecoderConfig:
        """Reads values that may be missing or wrong. `source` names the file that holds them.
        Raises NaiadError."""
        check_sizes(raw, source)
        try:
            config = self.read_config(raw)
            msgspec.convert(msgspec.to_builtins(config), DecoderConfig)
        except KeyError as error:
            raise invalid_arg(f"{source} has no {error.args[0]}") from error
        except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise invalid_arg(f"{source} has a value that cannot be used: {error}") from error
        if config.num_kv_heads < 1 or config.num_heads % config.num_kv_heads:
            raise invalid_arg(
                f"{source} has {config.num_heads} attention heads and {config.num_kv_heads} heads "
                "of keys and values, expected a multiple"
            )
        return config


def check_sizes(raw: dict[str, Any], source: str) -> None:
    """Raises NaiadError."""
    for name, (lowest, highest) in SIZES.items():
        value = raw.get(name)
        if value is None:
            continue
        if type(value) is not int or not lowest <= value <= highest:
            raise invalid_arg(
                f"{source} has {name} {str(value)[:40]}, expected a number from {lowest} to "
                f"{highest}"
            )
