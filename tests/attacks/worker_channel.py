"""What a native library might write to its worker's socket: lengths without messages, beginnings of
messages, random bytes.

Every request must get a response, because a message that has begun has a deadline
(naiad.instances.channel), and the model must serve again after it.
"""

from __future__ import annotations

import json
import random
import struct
import time

from naiad.ipc.framing import MAX_WORKER_MESSAGE_BYTES
from tests.attacks.attack import CODE, MIB, attack
from tests.attacks.target import Target
from tests.server.gates import eventually

ANSWER_LIMIT_S = 20.0
"""The deadline of a message, and time for a busy machine."""
NUM_RANDOM = 12
_FLAGS = ("--worker-max-restarts=1000000", "--worker-restart-window-secs=0.05")
_STRAY = """
import os, socket, stat
for name in os.listdir("/proc/self/fd"):
    fd = int(name)
    try:
        is_socket = stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        continue
    if is_socket:
        sock = socket.socket(fileno=os.dup(fd))
        if sock.family == socket.AF_UNIX and sock.type == socket.SOCK_STREAM:
            sock.sendall(bytes.fromhex("%s"))
            result = result + "wrote "
"""


def _length(size: int) -> bytes:
    return struct.pack("<I", size)


def _strays() -> dict[str, bytes]:
    random_ = random.Random(31)
    strays = {
        "2 GB announced": _length((1 << 31) - 1) + b"x" * 1000,
        "more than a worker sends": _length(MAX_WORKER_MESSAGE_BYTES + 1) + b"x" * 8,
        "100 MB announced": _length(100 * MIB) + b"x" * 1000,
        "files of a model announced": _length((1 << 31) - 1) + b"\x93\x27" + b"x" * 1000,
        "a part of a length": b"\x01\x02",
        "an empty message": _length(0),
    }
    for number in range(NUM_RANDOM):
        strays[f"random {number}"] = random_.randbytes(random_.randrange(1, 300))
    return strays


@attack(64 * MIB, flags=_FLAGS, repository=CODE)
def stray_bytes_in_the_channel_of_a_worker(target: Target) -> None:
    path = "/v2/models/runs_code"
    for name, stray in _strays().items():
        eventually(lambda: target.get(f"{path}/ready")[0] == 200, f"ready before '{name}'")
        tensor = {"name": "CODE", "shape": [1], "datatype": "BYTES"}
        body = {"inputs": [{**tensor, "data": [_STRAY % stray.hex()]}]}
        start_s = time.monotonic()
        status, response = target.post(f"{path}/infer", json.dumps(body).encode())
        seconds = time.monotonic() - start_s
        assert status == 500, f"{name}: {status} {response!r}"
        assert b"its worker process ended" in response, f"{name}: {response!r}"
        assert seconds < ANSWER_LIMIT_S, f"{name}: no response for {seconds:.1f} s"
    eventually(lambda: target.get(f"{path}/ready")[0] == 200, "ready again")
