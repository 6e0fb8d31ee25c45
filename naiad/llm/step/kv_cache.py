"""The keys and values of all sequences, in blocks, and the blocks that each slot holds.

In:  memory_plan.py decides the size; the operations write. Out: keys and values per layer, each
     [blocks, KV heads, block_size, head_dim]. The block tables have one row more than there are
     slots: padded rows of a graph use it, and write to block 0.
Rule: in fp8 a number is stored divided by its layer's scale, so a stored 1.0 stands for the scale.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from naiad.llm.models.description import ModelDescription


@dataclass(slots=True, frozen=True)
class KvScales:
    """What a layer's stored keys and values are multiplied by. Only an fp8 cache has others than
    1."""

    key: float = 1.0
    value: float = 1.0


UNSCALED = KvScales()


@dataclass(slots=True)
class KvCache:
    keys: list[Tensor]
    values: list[Tensor]
    block_tables: Tensor
    """int32 [slots + 1, blocks per sequence]."""
    block_size: int
    pairs: list[Tensor] = field(default_factory=list)
    """On a CPU, one tensor per layer for keys and values; `keys` and `values` are its halves."""
    scales: list[KvScales] = field(default_factory=list)
    """One entry per layer."""

    @property
    def num_blocks(self) -> int:
        return self.keys[0].shape[0]


def allocate_kv_cache(
    description: ModelDescription,
    num_blocks: int,
    block_size: int,
    num_slots: int,
    max_model_len: int,
    device: torch.device,
    dtype: torch.dtype,
    scales: list[KvScales] | None = None,
) -> KvCache:
    """Returns a zeroed cache, because a masked score times a stray NaN would still be NaN."""
    scales = scales or [UNSCALED] * len(description.kv_shapes)
    shapes = [
        (num_blocks, kv.num_kv_heads, block_size, kv.head_dim) for kv in description.kv_shapes
    ]
    tables = torch.zeros(
        (num_slots + 1, -(-max_model_len // block_size)), device=device, dtype=torch.int32
    )
    if device.type != "cuda":
        pairs = [torch.zeros((2, *shape), device=device, dtype=dtype) for shape in shapes]
        return KvCache(
            [pair[0] for pair in pairs],
            [pair[1] for pair in pairs],
            tables,
            block_size,
            pairs,
            scales,
        )
    return KvCache(
        keys=[torch.zeros(shape, device=device, dtype=dtype) for shape in shapes],
        values=[torch.zeros(shape, device=device, dtype=dtype) for shape in shapes],
        block_tables=tables,
        block_size=block_size,
        scales=scales,
    )


def block_bytes(description: ModelDescription, block_size: int, dtype: torch.dtype) -> int:
    return description.kv_values_per_token() * dtype.itemsize * block_size
