"""What a family of checkpoints must say: how to read its config.json, and under which names its
tensors lie.

A family's module holds one `Family` value; registry.py lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from naiad.llm.models.decoder_config import DecoderConfig

if TYPE_CHECKING:
    from torch import Tensor


class Family(msgspec.Struct, frozen=True, kw_only=True):
    read_config: Callable[[dict[str, Any]], DecoderConfig]
    layer_prefix: str
    """With {} for the layer's number."""
    layer_names: dict[str, list[str]]
    """Our module -> the checkpoint's modules, whose rows are put one under the other."""
    outer_names: dict[str, str]
    arrange: dict[str, Callable[[DecoderConfig, Tensor], Tensor]] = {}
    """Our module -> a reordering of the rows of its weight and bias."""
