"""The calls of NVIDIA's driver library that clients' GPU memory needs: open, copy, close.

It uses ctypes, so that no GPU library has to be installed. Only the process of cuda_process.py uses
it: if the driver crashes or hangs, only that process is lost.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p

HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1


class _IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * HANDLE_BYTES)]


class CudaError(Exception):
    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name}")
        self.code = code


class CudaDriver:
    def __init__(self) -> None:
        """Raises OSError if there is no driver, CudaError if there is no GPU."""
        self._library = ctypes.CDLL("libcuda.so.1")
        self._contexts: dict[int, c_void_p] = {}
        self._call("cuInit", c_uint(0))

    def open(self, raw_handle: bytes, device_id: int) -> tuple[int, int]:
        """Returns the address and the number of bytes from there to the end of the allocation."""
        self._use(device_id)
        handle = _IpcHandle.from_buffer_copy(raw_handle)
        address, base, size = c_void_p(), c_void_p(), c_size_t()
        self._call("cuIpcOpenMemHandle_v2", byref(address), handle, c_uint(_LAZY_PEER_ACCESS))
        try:
            self._call("cuMemGetAddressRange_v2", byref(base), byref(size), address)
        except CudaError:
            self.close(address.value or 0, device_id)
            raise
        return address.value or 0, (base.value or 0) + size.value - (address.value or 0)

    def close(self, address: int, device_id: int) -> None:
        self._use(device_id)
        self._call("cuIpcCloseMemHandle", c_void_p(address))

    def read(self, host: int, address: int, num_bytes: int, device_id: int) -> None:
        self._use(device_id)
        self._call("cuMemcpyDtoH_v2", c_void_p(host), c_void_p(address), c_size_t(num_bytes))

    def write(self, address: int, host: int, num_bytes: int, device_id: int) -> None:
        self._use(device_id)
        self._call("cuMemcpyHtoD_v2", c_void_p(address), c_void_p(host), c_size_t(num_bytes))
        # A small copy returns when the data is staged. The client must not get its response before
        # the data has arrived.
        self._call("cuCtxSynchronize")

    def pin(self, host: int, num_bytes: int) -> None:
        """Makes copies from and to this memory several times faster. It needs a context."""
        self._call("cuMemHostRegister_v2", c_void_p(host), c_size_t(num_bytes), c_uint(1))

    def _use(self, device_id: int) -> None:
        context = self._contexts.get(device_id)
        if context is None:
            device, context = c_int(), c_void_p()
            self._call("cuDeviceGet", byref(device), c_int(device_id))
            self._call("cuDevicePrimaryCtxRetain", byref(context), device)
            self._contexts[device_id] = context
        self._call("cuCtxSetCurrent", context)

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            text = c_char_p()
            self._library.cuGetErrorName(c_int(code), byref(text))
            raise CudaError(name, code, text.value.decode() if text.value else str(code))
