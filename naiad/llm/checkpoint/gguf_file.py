"""The GGUF container: a header of key-value pairs, a list of tensors, and their bytes, mapped from
disk.

In:  a path. Out: `metadata` as plain Python values, `tensors` by name, raw bytes of each.
Rule: nothing in the file is believed: every length is checked against the file's size before it is
      used.
"""

from __future__ import annotations

import mmap
import struct
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from naiad.errors import invalid_arg
from naiad.files.regular_file import require_regular

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
STRING, ARRAY = 8, 9
MAX_HEADER_BYTES = 512 << 20
MAX_HEADER_VALUES = 16 << 20
"""The header is read into Python values. A vocabulary of 256,000 tokens has a million of them, in
20 MB."""
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}

BLOCKS: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}  # fmt: skip
"""Type number -> name, values per block, bytes per block."""


class GgufTensor(msgspec.Struct, frozen=True):
    kind: str
    shape: tuple[int, ...]
    """As PyTorch counts: the fastest dimension last."""
    start: int
    num_bytes: int


class GgufFile:
    def __init__(self, path: Path) -> None:
        self._name = path.name
        require_regular(path, "the checkpoint")
        with path.open("rb") as file:
            try:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError as error:
                raise invalid_arg(f"'{path.name}' is empty, expected a GGUF file") from error
        self._at = 0
        self._num_values = 0
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}
        self._read()

    def raw(self, tensor: GgufTensor) -> memoryview:
        return memoryview(self._data)[tensor.start : tensor.start + tensor.num_bytes]

    def without_tensors(self) -> bytes:
        """A GGUF file with the same keys, for readers that want nothing else."""
        start = len(MAGIC) + 4
        return self._data[:start] + bytes(8) + self._data[start + 8 : self._pairs_end]

    def _read(self) -> None:
        if self._take(4) != MAGIC:
            raise invalid_arg(f"'{self._name}' is not a GGUF file")
        version = self._number("<I")
        if version not in VERSIONS:
            raise invalid_arg(
                f"'{self._name}' is GGUF version {version}, expected one of {VERSIONS}"
            )
        num_tensors, num_pairs = self._count(24), self._count(12)
        self._add_values(num_tensors + num_pairs)
        for _ in range(num_pairs):
            key = self._string()
            self.metadata[key] = self._value(self._number("<I"))
        self._pairs_end = self._at
        headers = [self._tensor_header() for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise invalid_arg(
                f"'{self._name}' has general.alignment {alignment}, expected a positive number"
            )
        base = -(-self._at // alignment) * alignment
        for name, shape, kind, offset in headers:
            self.tensors[name] = self._place(name, shape, kind, base + offset)

    def _tensor_header(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        num_dims = self._number("<I")
        if not 1 <= num_dims <= 4:
            raise invalid_arg(
                f"tensor '{name}' of '{self._name}' has {num_dims} dimensions, expected 1 to 4"
            )
        shape = tuple(self._number("<Q") for _ in range(num_dims))
        return name, shape[::-1], self._number("<I"), self._number("<Q")

    def _place(self, name: str, shape: tuple[int, ...], kind: int, start: int) -> GgufTensor:
        if kind not in BLOCKS:
            raise invalid_arg(
                f"tensor '{name}' of '{self._name}' has type {kind}, expected one of "
                f"{', '.join(b[0] for b in BLOCKS.values())}"
            )
        label, per_block, block_bytes = BLOCKS[kind]
        if shape[-1] % per_block:
            raise invalid_arg(
                f"tensor '{name}' of '{self._name}' has rows of {shape[-1]} values, expected a "
                f"multiple of {per_block}"
            )
        num_bytes = prod(shape) // per_block * block_bytes
        if start + num_bytes > len(self._data):
            raise invalid_arg(
                f"tensor '{name}' lies beyond the end of '{self._name}': the file is cut short"
            )
        return GgufTensor(label, shape, start, num_bytes)

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            element = self._number("<I")
            if element == ARRAY:
                raise invalid_arg(f"'{self._name}' holds nested arrays, which no known key does")
            return self._array(element)
        if kind not in _SCALARS:
            raise invalid_arg(f"'{self._name}' holds a value of unknown type {kind}")
        return self._number(_SCALARS[kind])

    def _array(self, element: int) -> list[Any]:
        if element == STRING:
            return [self._string() for _ in range(self._add_values(self._count(8)))]
        if element not in _SCALARS:
            raise invalid_arg(f"'{self._name}' holds an array of unknown type {element}")
        letter = _SCALARS[element][1]
        size = struct.calcsize("<" + letter)
        count = self._add_values(self._count(size))
        return list(struct.unpack(f"<{count}{letter}", self._take(count * size)))

    def _string(self) -> str:
        return self._take(self._count(1)).decode("utf-8", "replace")

    def _count(self, least_bytes: int) -> int:
        """How many of something follow; more than the file could hold is refused before anything is
        made for them."""
        count = self._number("<Q")
        if count * least_bytes > len(self._data) - self._at:
            raise invalid_arg(
                f"'{self._name}' announces {count} entries, more than it can hold: the file is "
                "damaged"
            )
        return count

    def _add_values(self, count: int) -> int:
        self._num_values += count
        if self._num_values > MAX_HEADER_VALUES:
            raise invalid_arg(
                f"the header of '{self._name}' has more than {MAX_HEADER_VALUES} values"
            )
        return count

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _take(self, count: int) -> bytes:
        if self._at + count > len(self._data):
            raise invalid_arg(
                f"'{self._name}' ends in the middle of its header: the file is cut short"
            )
        if self._at + count > MAX_HEADER_BYTES:
            raise invalid_arg(
                f"the header of '{self._name}' has more than {MAX_HEADER_BYTES >> 20} MiB"
            )
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken
