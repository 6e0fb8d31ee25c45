"""Targets that send to a real server over sockets: HTTP/1.1, HTTP/2 and gRPC.

The inputs have the layout of the targets `http`, `http2` and `grpc` (frontends.py) and share their
seeds. After a number of cases the server must serve add_sub in time, its log must have no line
about a handler that failed, and it must hold no more memory and descriptors than before.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import socket
import struct
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tests.fuzz.frontends import FRAMES, HTTP_TOKENS, METHODS
from tests.fuzz.mutation import mutated
from tests.fuzz.target import FOLDER, target
from tests.server.harness import Server, launch_naiad, serving_processes

REPOSITORY = Path(__file__).parents[2] / "bench" / "repository"
PROBE_EVERY = 50
PROBE_LIMIT_S = 5.0
LINGER_LIMIT_S = 10.0
QUIET_S = 0.01
"""A connection that sends nothing for this long has nothing to say about the input."""
MAX_READS = 50
MAX_MORE_BYTES = 200 << 20
MAX_MORE_DESCRIPTORS = 64
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FAULTS = ("Traceback", "internal error", "the handler of", "could not be continued", "failed: ")
PROBE = {
    "inputs": [
        {"name": name, "datatype": "FP32", "shape": [1, 16], "data": [1.0] * 16}
        for name in ("INPUT0", "INPUT1")
    ]
}


class LiveServer:
    def __init__(self) -> None:
        self.server: Server = launch_naiad([str(REPOSITORY)]).wait_started()
        atexit.register(self._stop)
        self._num_cases = 0
        self._num_lines = 0
        self.probe()
        self._first = self._measure()

    def _stop(self) -> None:
        with contextlib.suppress(AssertionError):
            self.server.stop(10)

    def _measure(self) -> tuple[int, int]:
        """(memory, descriptors) of the processes that serve."""
        memory_bytes = num_descriptors = 0
        for pid in serving_processes(self.server):
            status = Path(f"/proc/{pid}/status").read_text()
            resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
            memory_bytes += int(resident.split()[1]) << 10
            num_descriptors += len(os.listdir(f"/proc/{pid}/fd"))
        return memory_bytes, num_descriptors

    def send(self, kind: str, data: bytes, size: int) -> bytes:
        """Sends the data in pieces and returns what comes back until the server is silent."""
        received = bytearray()
        address = ("127.0.0.1", self.server.port(kind))
        with socket.create_connection(address, PROBE_LIMIT_S) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(OSError):  # the server may close the connection at any time
                for start in range(0, len(data), size):
                    connection.sendall(data[start : start + size])
                if size % 2:
                    connection.shutdown(socket.SHUT_WR)
                connection.settimeout(QUIET_S)
                for _ in range(MAX_READS):
                    part = connection.recv(1 << 16)
                    if not part:
                        break
                    received += part
        self._num_cases += 1
        if self._num_cases % PROBE_EVERY == 0:
            self.probe()
        return bytes(received)

    def probe(self) -> None:
        start_s = time.monotonic()
        status, body = self.server.post("/v2/models/add_sub/infer", PROBE, PROBE_LIMIT_S)
        assert status == 200, body
        assert time.monotonic() - start_s < PROBE_LIMIT_S
        lines = self.server.lines[self._num_lines :]
        self._num_lines += len(lines)
        faults = [line for line in lines if any(text in line for text in FAULTS)]
        assert not faults, "\n".join(lines[-60:])
        if self._num_cases:
            self._check_growth()

    def _check_growth(self) -> None:
        """A connection that ends with an error stays for a moment, so that the client can read
        why."""
        end_s = time.monotonic() + LINGER_LIMIT_S
        while True:
            memory, descriptors = self._measure()
            if (
                memory < self._first[0] + MAX_MORE_BYTES
                and descriptors < self._first[1] + MAX_MORE_DESCRIPTORS
            ):
                return
            assert time.monotonic() < end_s, (self._first, memory, descriptors)
            time.sleep(0.05)


@cache
def live_server() -> LiveServer:
    return LiveServer()


def seeds_of(name: str) -> Iterable[bytes]:
    return [path.read_bytes() for path in sorted((FOLDER / "seeds" / name).iterdir())]


@target(tokens=HTTP_TOKENS, more_seeds=lambda: seeds_of("http"), is_live=True)
def live_http(data: bytes) -> None:
    if data:
        response = live_server().send("http", data[1:], data[0] or 1 << 16)
        assert not response or response.startswith(b"HTTP/1."), response[:200]
        assert b"internal error" not in response, response[:500]


def mutated_frames(data: bytes, chance: random.Random) -> bytes:
    """Changes whole frames of a connection: their order, type, flags, stream and payload."""
    start = data.find(PREFACE) + len(PREFACE)
    if start < len(PREFACE):
        return data
    frames = split_frames(data[start:])
    for _ in range(chance.choice((1, 2, 3, 8))):
        if not frames:
            break
        index = chance.randrange(len(frames))
        kind, flags, stream, payload = frames[index]
        match chance.randrange(8):
            case 0:
                del frames[index]
            case 1:
                frames[index:index] = [frames[index]] * chance.choice((1, 2, 60))
            case 2:
                chance.shuffle(frames)
            case 3:
                frames[index] = (chance.randrange(12), flags, stream, payload)
            case 4:
                frames[index] = (kind, chance.choice((0, 1, 4, 5, 8, 9, 32, 255)), stream, payload)
            case 5:
                frames[index] = (kind, flags, chance.choice((0, 1, 2, 3, 5, 2**31)), payload)
            case _:
                frames[index] = (kind, flags, stream, mutated(payload, payload, FRAMES, chance))
    return data[:start] + b"".join(frame_bytes(*frame) for frame in frames)


def split_frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    frames = []
    while len(data) >= 9:
        size = int.from_bytes(data[:3], "big")
        kind, flags, stream = struct.unpack_from(">BBI", data, 3)
        frames.append((kind, flags, stream, data[9 : 9 + size]))
        data = data[9 + size :]
    return frames


def frame_bytes(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


@target(tokens=FRAMES, mutate=mutated_frames, more_seeds=lambda: seeds_of("http2"), is_live=True)
def live_http2(data: bytes) -> None:
    if data:
        live_server().send("grpc", data[1:], data[0] or 1 << 16)


@target(
    tokens=(b"\x0a", b"\x12", b"\x1a", b"\x3a", b"FP32", b"BYTES"),
    more_seeds=lambda: seeds_of("grpc"),
    is_live=True,
)
def live_grpc(data: bytes) -> None:
    if len(data) < 2:
        return
    method = METHODS[data[0] % len(METHODS)]
    encoding = ("gzip", "deflate", "identity")[data[1] // 3 % 3]
    message = struct.pack(">BI", data[1] % 3, len(data) - 2) + data[2:]
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": f"/inference.GRPCInferenceService/{method}",
        ":authority": "fuzz",
        "te": "trailers",
        "content-type": "application/grpc",
        "grpc-encoding": encoding,
    }
    # Literal fields without indexing: no table of the connection is needed to write them.
    block = b"".join(
        bytes((0, len(name))) + name.encode() + bytes((len(value),)) + value.encode()
        for name, value in fields.items()
    )
    frames = [PREFACE, frame_bytes(4, 0, 0, b""), frame_bytes(1, 4, 1, block)]
    pieces = [message[start : start + 16_384] for start in range(0, len(message), 16_384)]
    frames += [frame_bytes(0, part is pieces[-1], 1, part) for part in pieces]
    response = live_server().send("grpc", b"".join(frames), 1 << 16)
    assert b"internal error" not in response, response
