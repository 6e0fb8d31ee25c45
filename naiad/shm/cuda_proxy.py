"""The server's proxy for the process that holds clients' GPU memory (cuda_process.py).

It starts the process when it is needed, replaces it when it has died and stops it when it is
unused.
In:  commands from the threads of RegionTable, one at a time. Out: replies. Data is exchanged
     through `memory`, which both sides map.
Rule: nothing here runs on the event loop, and nothing waits forever: a process that does not reply
      in time is killed.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

import msgspec

from naiad import log
from naiad.errors import NaiadError, internal
from naiad.shm.arena import SEALS
from naiad.shm.cuda_process import MAX_MESSAGE_BYTES, AnyCommand, Close, Open, Read, Reply, Write

MEMORY_BYTES = 16 << 20
"""The size of the memory shared with the process. Larger tensors are copied in pieces."""
REPLY_LIMIT_S = 30.0
COMMAND = (sys.executable, "-P", "-m", "naiad.shm.cuda_process")

_LOST = "the GPU memory of shared memory region '{}' was lost; register it again"


class CudaProxy:
    def __init__(
        self,
        command: Sequence[str] = COMMAND,
        reply_limit_s: float = REPLY_LIMIT_S,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._command = list(command)
        self._reply_limit_s = reply_limit_s
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._memory: mmap.mmap | None = None
        self._generation = 0
        """Number of processes started so far. The regions of earlier processes are lost."""
        self._last_region = 0
        self._open: set[int] = set()
        self._decoder = msgspec.msgpack.Decoder(Reply)

    @property
    def pid(self) -> int:
        """The id of the process, or 0 if there is none."""
        return self._process.pid if self._process is not None else 0

    # Called in threads.

    def open(self, raw_handle: bytes, device_id: int) -> tuple[tuple[int, int], int]:
        """Returns the region's key, (generation, number), and its size in bytes.

        Raises NaiadError with the driver's message, which clients must not see.
        """
        with self._lock:
            self._start()
            self._last_region += 1
            number = self._last_region
            reply = self._send(Open(number, raw_handle, device_id))
            if reply.error:
                self._stop_if_unused()
                raise internal(reply.error)
            self._open.add(number)
            return (self._generation, number), reply.byte_size

    def close(self, region: tuple[int, int]) -> None:
        with self._lock:
            if region[0] != self._generation or region[1] not in self._open:
                return
            self._open.discard(region[1])
            try:
                self._send(Close(region[1]))
            except NaiadError as error:
                log.error(f"closing a CUDA region failed: {error.message}")
            self._stop_if_unused()

    def read_into(
        self, name: str, region: tuple[int, int], offset: int, buffer: memoryview
    ) -> None:
        for start in range(0, len(buffer), self._memory_bytes):
            piece = buffer[start : start + self._memory_bytes]
            with self._lock:
                self._copy(name, region, Read(region[1], offset + start, len(piece)))
                assert self._memory is not None
                piece[:] = memoryview(self._memory)[: len(piece)]

    def write(self, name: str, region: tuple[int, int], offset: int, data: memoryview) -> None:
        for start in range(0, len(data), self._memory_bytes):
            piece = data[start : start + self._memory_bytes]
            with self._lock:
                self._check_open(name, region)
                assert self._memory is not None
                memoryview(self._memory)[: len(piece)] = piece
                self._copy(name, region, Write(region[1], offset + start, len(piece)))

    def stop(self) -> None:
        with self._lock:
            self._stop()

    # With the lock held.

    def _copy(self, name: str, region: tuple[int, int], command: AnyCommand) -> None:
        self._check_open(name, region)
        try:
            reply = self._send(command)
        except NaiadError:
            raise internal(_LOST.format(name)) from None
        if reply.error:
            log.error(f"copying from or to CUDA region '{name}' failed: {reply.error}")
            self._stop()
            raise internal(_LOST.format(name))

    def _check_open(self, name: str, region: tuple[int, int]) -> None:
        if region[0] != self._generation or region[1] not in self._open:
            raise internal(_LOST.format(name))

    def _send(self, command: AnyCommand) -> Reply:
        """Sends a command and waits for its reply.

        Raises NaiadError if the process is gone or does not reply in time. It is killed then.
        """
        assert self._sock is not None
        try:
            self._sock.send(msgspec.msgpack.encode(command))
            data = self._sock.recv(MAX_MESSAGE_BYTES)
        except OSError as error:
            data, reason = b"", f"did not reply: {error}"
        else:
            reason = "ended"
        if not data:
            log.error(f"the process that holds clients' GPU memory {reason}")
            self._stop()
            raise internal("the process that holds clients' GPU memory is gone")
        return self._decoder.decode(data)

    def _start(self) -> None:
        if self._process is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(self._reply_limit_s)
        fd = os.memfd_create("naiad", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, self._memory_bytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
            self._memory = mmap.mmap(fd, self._memory_bytes)
            arguments = [*self._command, str(theirs.fileno()), str(fd)]
            self._process = subprocess.Popen(
                arguments,
                pass_fds=(theirs.fileno(), fd),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise internal(
                f"failed to start the process that holds clients' GPU memory: {error.strerror}"
            ) from error
        finally:
            theirs.close()
            os.close(fd)
        self._sock = ours
        self._generation += 1

    def _stop_if_unused(self) -> None:
        """Stops an unused process: its context occupies hundreds of megabytes of each GPU."""
        if not self._open:
            self._stop()

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        self._open.clear()
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        self._memory = None
        process.kill()
        process.wait()
