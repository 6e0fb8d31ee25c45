"""`pb_utils.PreferredMemory`: where a caller would like BLS outputs. Accepted and kept: outputs
arrive in CPU memory here."""

from __future__ import annotations

import enum

from naiad.backends.python.error import signature_error


class MemoryType(enum.IntEnum):
    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1

    __str__ = enum.Enum.__str__


TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU


class PreferredMemory:
    __slots__ = ("device_id", "memory_type")

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        if not isinstance(preferred_memory_type, MemoryType) or not isinstance(
            preferred_device_id, int
        ):
            signature = (
                "PreferredMemory(preferred_memory_type: MemoryType, preferred_device_id: int = 0)"
            )
            raise signature_error(signature, preferred_memory_type, preferred_device_id)
        self.memory_type = preferred_memory_type
        self.device_id = preferred_device_id
