"""The process of CUDA regions with a fake driver, whose GPU memory is ordinary memory.

`python -m tests.unit.shm.fake_cuda_process SOCKET MEMORY`. A handle is `<byte><size>`: X crashes
the process, H makes it hang, and E is rejected.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys

from naiad.shm.cuda_driver import CudaError
from naiad.shm.cuda_process import serve


def handle_of(kind: str, num_bytes: int) -> bytes:
    return f"{kind}{num_bytes}".encode().ljust(64, b"\0")


class PaperDriver:
    def __init__(self) -> None:
        self._memory: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._kinds: dict[int, str] = {}

    def open(self, raw_handle: bytes, device_id: int) -> tuple[int, int]:
        text = raw_handle.rstrip(b"\0").decode()
        if text[0] == "E":
            raise CudaError("cuIpcOpenMemHandle_v2", 1, "CUDA_ERROR_INVALID_VALUE")
        memory = ctypes.create_string_buffer(b"", int(text[1:]))
        address = ctypes.addressof(memory)
        self._memory[address], self._kinds[address] = memory, text[0]
        return address, len(memory)

    def close(self, address: int, device_id: int) -> None:
        del self._memory[address]

    def read(self, host: int, address: int, num_bytes: int, device_id: int) -> None:
        self._misbehave(address)
        ctypes.memmove(host, address, num_bytes)

    def write(self, address: int, host: int, num_bytes: int, device_id: int) -> None:
        self._misbehave(address)
        ctypes.memmove(address, host, num_bytes)

    def pin(self, host: int, num_bytes: int) -> None:
        raise CudaError("cuMemHostRegister_v2", 2, "CUDA_ERROR_OUT_OF_MEMORY")

    def _misbehave(self, address: int) -> None:
        match self._kinds.get(address, ""):
            case "X":
                os.kill(os.getpid(), signal.SIGKILL)
            case "H":
                signal.pause()
            case "I":
                raise CudaError("cuMemcpyDtoH_v2", 700, "CUDA_ERROR_ILLEGAL_ADDRESS")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), PaperDriver())
