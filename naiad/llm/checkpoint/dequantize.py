"""GGUF's quantized blocks -> integers with their scales, and float32. One function per type; blocks
are rows of bytes.

Values come in blocks of 32 (or 256 for the K types), each with its scales; LLM checkpoints quantize
along the inputs of a matrix. All types mean the same: value = scale * integer + offset, with one
scale and offset for a group of 32 or 16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Integers = NDArray[np.uint8] | NDArray[np.int8]


class Groups(NamedTuple):
    """`integers` is [groups, size]; the others are [groups, 1]."""

    integers: Integers
    scales: Floats
    offsets: Floats | None
    """None: zero everywhere."""


def dequantize(kind: str, raw: memoryview, shape: tuple[int, ...]) -> Floats:
    if kind in _PLAIN:
        return _PLAIN[kind](np.frombuffer(raw, np.uint8)).reshape(shape)
    groups = read_groups(kind, raw, shape)
    values = groups.scales * groups.integers
    if groups.offsets is not None:
        values += groups.offsets
    return values.reshape(shape)


def is_quantized(kind: str) -> bool:
    return kind in _QUANTIZED


def read_groups(kind: str, raw: memoryview, shape: tuple[int, ...]) -> Groups:
    """Row after row; a quantized type's only."""
    per_block, function = _QUANTIZED[kind]
    num_blocks = int(np.prod(shape)) // per_block
    return function(np.frombuffer(raw, np.uint8).reshape(num_blocks, -1))


def _half(blocks: Bytes, start: int) -> Floats:
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16).astype(np.float32)


def _nibbles(blocks: Bytes) -> Bytes:
    """The low halves of all bytes, then the high ones."""
    return np.concatenate((blocks & 0xF, blocks >> 4), axis=1)


def _fifth_bits(blocks: Bytes, start: int) -> Bytes:
    """32 bits, one per value, already at their place."""
    words = np.ascontiguousarray(blocks[:, start : start + 4]).view(np.uint32)
    return (((words >> np.arange(32, dtype=np.uint32)) & 1) << 4).astype(np.uint8)


def _f32(raw: Bytes) -> Floats:
    return raw.view(np.float32)


def _f16(raw: Bytes) -> Floats:
    return raw.view(np.float16).astype(np.float32)


def _bf16(raw: Bytes) -> Floats:
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _q4_0(blocks: Bytes) -> Groups:
    scales = _half(blocks, 0)
    return Groups(_nibbles(blocks[:, 2:]), scales, -8 * scales)


def _q4_1(blocks: Bytes) -> Groups:
    return Groups(_nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2))


def _q5_0(blocks: Bytes) -> Groups:
    integers = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return Groups(integers.view(np.int8) - np.int8(16), _half(blocks, 0), None)


def _q5_1(blocks: Bytes) -> Groups:
    return Groups(
        _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4), _half(blocks, 0), _half(blocks, 2)
    )


def _q8_0(blocks: Bytes) -> Groups:
    return Groups(np.ascontiguousarray(blocks[:, 2:]).view(np.int8), _half(blocks, 0), None)


def _k_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    """Eight 6-bit scales and eight 6-bit minima in twelve bytes: the last four of each keep their
    upper bits in the first eight bytes. They count in two scales of the block."""
    packed = blocks[:, 4:16]
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate((low & 0x3F, (high & 0xF) | ((low >> 6) << 4)), axis=1).astype(
        np.float32
    )
    minima = np.concatenate((middle & 0x3F, (high >> 4) | ((middle >> 6) << 4)), axis=1).astype(
        np.float32
    )
    return (scales * _half(blocks, 0)).reshape(-1, 1), (-minima * _half(blocks, 2)).reshape(-1, 1)


def _four_bit_groups(quants: Bytes) -> Bytes:
    """128 bytes -> 8 groups of 32: each 32 bytes give a group of low halves, then one of high
    halves."""
    parts = quants.reshape(-1, 4, 1, 32)
    return np.concatenate((parts & 0xF, parts >> 4), axis=2).reshape(-1, 8, 32)


def _q4_k(blocks: Bytes) -> Groups:
    scales, offsets = _k_scales(blocks)
    return Groups(_four_bit_groups(blocks[:, 16:]).reshape(-1, 32), scales, offsets)


def _q5_k(blocks: Bytes) -> Groups:
    scales, offsets = _k_scales(blocks)
    high = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[None, :, None]
    integers = _four_bit_groups(blocks[:, 48:]) | ((high & 1) << 4)
    return Groups(integers.reshape(-1, 32), scales, offsets)


def _q6_k(blocks: Bytes) -> Groups:
    low, high = blocks[:, :128].reshape(-1, 2, 64), blocks[:, 128:192].reshape(-1, 2, 32)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32) * _half(
        blocks, 208
    )
    fours = np.concatenate((low & 0xF, low >> 4), axis=2).reshape(-1, 2, 4, 32)
    twos = (high[:, :, None, :] >> np.array([0, 2, 4, 6], np.uint8)[None, None, :, None]) & 3
    integers = (fours | (twos << 4)).view(np.int8) - np.int8(32)
    return Groups(integers.reshape(-1, 16), scales.reshape(-1, 1), None)


_PLAIN: dict[str, Callable[[Any], Any]] = {"F32": _f32, "F16": _f16, "BF16": _bf16}
_QUANTIZED: dict[str, tuple[int, Callable[[Any], Groups]]] = {
    "Q4_0": (32, _q4_0), "Q4_1": (32, _q4_1), "Q5_0": (32, _q5_0), "Q5_1": (32, _q5_1),
    "Q8_0": (32, _q8_0),
    "Q4_K": (256, _q4_k), "Q5_K": (256, _q5_k), "Q6_K": (256, _q6_k),
}  # fmt: skip
SYMMETRIC = {"Q5_0": 32, "Q8_0": 32, "Q6_K": 16}
"""Types without offsets, and the sizes of their groups."""
