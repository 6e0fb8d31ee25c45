"""The process that holds clients' GPU memory for the server.

In:  commands, one at a time. Out: one reply each. Data is exchanged through shared memory.
cuda_proxy.py starts it for the first CUDA region, as `python -m naiad.shm.cuda_process SOCKET
MEMORY`. It ends with the last region or with the server.
Rule: a driver error in a copy ends the process, because after an illegal address no call works.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
from typing import Protocol

import msgspec
import numpy as np

from naiad.shm.cuda_driver import CudaDriver, CudaError

MAX_MESSAGE_BYTES = 4096


class Command(msgspec.Struct, array_like=True, tag_field="t"):
    pass


class Open(Command, tag=1):
    region: int
    raw_handle: bytes
    device_id: int


class Close(Command, tag=2):
    region: int


class Read(Command, tag=3):
    """Copies to the start of the shared memory."""

    region: int
    offset: int
    num_bytes: int


class Write(Command, tag=4):
    """Copies from the start of the shared memory."""

    region: int
    offset: int
    num_bytes: int


class Reply(msgspec.Struct, array_like=True):
    error: str = ""
    byte_size: int = 0
    """The reply to Open: how much memory the handle gives access to."""


AnyCommand = Open | Close | Read | Write


class Driver(Protocol):
    def open(self, raw_handle: bytes, device_id: int) -> tuple[int, int]: ...
    def close(self, address: int, device_id: int) -> None: ...
    def read(self, host: int, address: int, num_bytes: int, device_id: int) -> None: ...
    def write(self, address: int, host: int, num_bytes: int, device_id: int) -> None: ...
    def pin(self, host: int, num_bytes: int) -> None: ...


class CudaMemory:
    """The open regions. Copies between them and the memory shared with the server."""

    def __init__(self, driver: Driver, host: int, host_bytes: int) -> None:
        self._driver = driver
        self._host = host
        self._host_bytes = host_bytes
        self._is_pinned = False
        self._regions: dict[int, tuple[int, int]] = {}
        """Region number -> (address, device)."""

    def run(self, command: AnyCommand) -> Reply:
        """Raises CudaError if a copy fails."""
        match command:
            case Open():
                try:
                    address, byte_size = self._driver.open(command.raw_handle, command.device_id)
                except CudaError as error:
                    return Reply(str(error))
                self._regions[command.region] = (address, command.device_id)
                self._pin()
                return Reply(byte_size=byte_size)
            case Close():
                address, device_id = self._regions.pop(command.region)
                self._driver.close(address, device_id)
            case Read() | Write():
                address, device_id = self._regions[command.region]
                if command.num_bytes > self._host_bytes:
                    return Reply("too much at once")
                if isinstance(command, Read):
                    self._driver.read(
                        self._host, address + command.offset, command.num_bytes, device_id
                    )
                else:
                    self._driver.write(
                        address + command.offset, self._host, command.num_bytes, device_id
                    )
        return Reply()

    def _pin(self) -> None:
        if not self._is_pinned:
            self._is_pinned = True
            try:
                self._driver.pin(self._host, self._host_bytes)
            except CudaError:
                pass  # copies are only slower


def serve(sock: socket.socket, memory_fd: int, driver: Driver) -> None:
    """Runs commands until the server closes the socket."""
    mapping = mmap.mmap(memory_fd, os.fstat(memory_fd).st_size)
    host: int = np.frombuffer(mapping, np.uint8).__array_interface__["data"][0]
    memory = CudaMemory(driver, host, len(mapping))
    decoder = msgspec.msgpack.Decoder(AnyCommand)
    while data := sock.recv(MAX_MESSAGE_BYTES):
        try:
            reply = memory.run(decoder.decode(data))
        except CudaError as error:
            sock.send(msgspec.msgpack.encode(Reply(str(error))))
            return
        sock.send(msgspec.msgpack.encode(reply))


def main(arguments: list[str]) -> int:
    sock = socket.socket(fileno=int(arguments[0]))
    try:
        driver = CudaDriver()
    except (OSError, CudaError) as error:
        sock.recv(MAX_MESSAGE_BYTES)
        sock.send(msgspec.msgpack.encode(Reply(str(error))))
        return 1
    serve(sock, int(arguments[1]), driver)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
