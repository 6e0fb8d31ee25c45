"""Allocates GPU memory that another process can map.

Calls the CUDA driver directly, so that no CUDA package is needed.
Rule: only this file uses libcuda, and only for --shared-memory cuda.
"""

from __future__ import annotations

import ctypes
from typing import Any

from naiad.settings.option import OptionError

_HANDLE_BYTES = 64


class ClientCudaMemory:
    def __init__(self, byte_size: int, device: int = 0) -> None:
        """Raises OptionError if there is no usable GPU."""
        self.device = device
        self._cuda = _driver()
        self._pointer = ctypes.c_uint64(0)
        number = ctypes.c_int(0)
        self._context = ctypes.c_void_p(None)
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(number), device)
        self._number = number.value
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._number)
        self._call("cuCtxSetCurrent", self._context)
        self._call("cuMemAlloc_v2", ctypes.byref(self._pointer), ctypes.c_size_t(byte_size))

    def write(self, offset: int, data: bytes) -> None:
        self._call(
            "cuMemcpyHtoD_v2",
            ctypes.c_uint64(self._pointer.value + offset),
            data,
            ctypes.c_size_t(len(data)),
        )

    def read(self, offset: int, byte_size: int) -> bytes:
        buffer = ctypes.create_string_buffer(byte_size)
        self._call(
            "cuMemcpyDtoH_v2",
            buffer,
            ctypes.c_uint64(self._pointer.value + offset),
            ctypes.c_size_t(byte_size),
        )
        return buffer.raw

    def handle(self) -> bytes:
        """Returns the cudaIpcMemHandle_t, which has the same bytes as the driver's handle."""
        handle = (ctypes.c_char * _HANDLE_BYTES)()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), self._pointer)
        return bytes(handle.raw)

    def close(self) -> None:
        if self._pointer.value:
            self._call("cuMemFree_v2", self._pointer)
            self._call("cuDevicePrimaryCtxRelease_v2", self._number)
            self._pointer.value = 0

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            raise OptionError(f"--shared-memory cuda: {name} failed with CUDA error {code}")


def _driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise OptionError("--shared-memory cuda: this machine has no CUDA driver") from None
