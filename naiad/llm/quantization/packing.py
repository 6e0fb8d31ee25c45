"""Integers of 4 or 8 bits in the words of checkpoints -> one uint8 each."""

from __future__ import annotations

import torch
from torch import Tensor

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Place i of an AutoAWQ word holds column AWQ_ORDER[i] of its eight."""


def unpack(words: Tensor, bits: int, dim: int, places: tuple[int, ...] | None = None) -> Tensor:
    """int32 words, each with 32 / bits values along `dim` (0 or 1), lowest bits first unless
    `places` says where each one goes."""
    count = 32 // bits
    mask = (1 << bits) - 1
    shape = list(words.shape)
    shape.insert(dim + 1, count)
    out = torch.empty(shape, dtype=torch.uint8, device=words.device)
    for index in range(count):
        value = ((words >> (bits * index)) & mask).to(torch.uint8)
        out.select(dim + 1, places[index] if places else index).copy_(value)
    return out.flatten(dim, dim + 1)


def pack(values: Tensor, bits: int, dim: int, places: tuple[int, ...] | None = None) -> Tensor:
    """The inverse of `unpack`; the values along `dim` are padded with zeros to whole words."""
    count = 32 // bits
    if values.shape[dim] % count:
        padding = [0, 0, 0, 0]
        padding[1 if dim == 1 else 3] = -values.shape[dim] % count
        values = torch.nn.functional.pad(values, padding)
    parts = values.unflatten(dim, (-1, count))
    shape = [size for axis, size in enumerate(parts.shape) if axis != dim + 1]
    words = torch.zeros(shape, dtype=torch.int32, device=values.device)
    for index in range(count):
        words |= parts.select(dim + 1, places[index] if places else index).to(torch.int32) << (
            bits * index
        )
    return words
