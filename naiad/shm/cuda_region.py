"""A region of CUDA shared memory: GPU memory of a client, which it exported as an IPC handle.

The process behind CudaProxy has the memory open. The server only has a key.
"""

from __future__ import annotations

import threading
from typing import Any

import msgspec

from naiad import log
from naiad.core.tensor import Buffer
from naiad.errors import NaiadError, invalid_arg
from naiad.shm.cuda_proxy import CudaProxy
from naiad.shm.region import CUDA, cannot_open


class CudaRegion:
    kind = CUDA
    is_slow = True

    def __init__(
        self, proxy: CudaProxy, name: str, device_id: int, byte_size: int, key: tuple[int, int]
    ) -> None:
        self.name = name
        self.byte_size = byte_size
        self._proxy = proxy
        self._device_id = device_id
        self._key = key

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "device_id": self._device_id, "byte_size": self.byte_size}

    def read(self, offset: int, num_bytes: int) -> bytes:
        buffer = bytearray(num_bytes)
        self.read_into(offset, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self._proxy.read_into(self.name, self._key, offset, buffer)

    def write(self, offset: int, data: Buffer) -> None:
        self._proxy.write(self.name, self._key, offset, memoryview(data).cast("B"))

    def close(self) -> None:
        """Returns at once, because it runs on the event loop: a thread closes the memory."""
        threading.Thread(
            target=self._proxy.close, args=(self._key,), name="naiad-cuda-close", daemon=True
        ).start()


def open_cuda_region(
    proxy: CudaProxy, name: str, raw_handle: bytes, device_id: int, byte_size: int
) -> CudaRegion:
    """Raises NaiadError. It blocks, so it is called in a thread."""
    try:
        key, available_bytes = proxy.open(raw_handle, device_id)
    except (NaiadError, OSError, msgspec.MsgspecError) as error:
        # The operator needs the reason; to clients every reason looks the same, as in Triton.
        log.error(f"failed to open CUDA IPC handle: {error}")
        raise cannot_open() from None
    if not 0 < byte_size <= available_bytes:
        proxy.close(key)
        raise invalid_arg(f"failed to register shared memory region '{name}': invalid args")
    return CudaRegion(proxy, name, device_id, byte_size, key)
