"""CUDA shared memory: GPU memory of a client, by the handle that it exported. The helper process
has it open; we have a number."""

from __future__ import annotations

import threading
from typing import Any

from naiad import log
from naiad.core.tensor import Buffer
from naiad.errors import NaiadError, invalid_arg
from naiad.shm.cuda_proxy import CudaHelper
from naiad.shm.region import CUDA


class CudaRegion:
    kind = CUDA
    is_slow = True

    def __init__(
        self, helper: CudaHelper, name: str, device_id: int, byte_size: int, number: tuple[int, int]
    ) -> None:
        self.name = name
        self.byte_size = byte_size
        self._helper = helper
        self._device_id = device_id
        self._number = number

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "device_id": self._device_id, "byte_size": self.byte_size}

    def read(self, offset: int, num_bytes: int) -> bytes:
        buffer = bytearray(num_bytes)
        self.read_into(offset, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self._helper.read_into(self.name, self._number, offset, buffer)

    def write(self, offset: int, data: Buffer) -> None:
        self._helper.write(self.name, self._number, offset, memoryview(data).cast("B"))

    def close(self) -> None:
        """On the event loop, so the helper is told by a thread."""
        threading.Thread(
            target=self._helper.close, args=(self._number,), name="naiad-cuda-close", daemon=True
        ).start()


def open_cuda_region(
    helper: CudaHelper, name: str, raw_handle: bytes, device_id: int, byte_size: int
) -> CudaRegion:
    """Raises NaiadError. In a thread."""
    try:
        number, available_bytes = helper.open(raw_handle, device_id)
    except NaiadError as error:
        log.error(f"failed to open CUDA IPC handle: {error.message}")
        raise invalid_arg("failed to register shared memory region: invalid args") from None
    if not 0 < byte_size <= available_bytes:
        helper.close(number)
        raise invalid_arg(f"failed to register shared memory region '{name}': invalid args")
    return CudaRegion(helper, name, device_id, byte_size, number)
