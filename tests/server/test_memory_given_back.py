"""Memory that nobody waits for goes back to the system within seconds, and attacks on it stay
within the budget."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as http_client

from bench.process_tree import MIB, memory_bytes
from tests.attacks.memory import BUDGET_BYTES, FLAGS, MAX_GROWTH_BYTES, MEMORY, http_request
from tests.server.gates import eventually
from tests.server.harness import Endpoints, Server, naiad, process_tree

pytestmark = pytest.mark.slow

LEFT_BYTES = 64 * MIB

CONFIG = """backend: "python"
input [ { name: "SIZE" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_UINT8 dims: [ -1 ] } ]
"""
MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            size = pb_utils.get_input_tensor_by_name(request, "SIZE").as_numpy()[0]
            output = pb_utils.Tensor("OUT", np.ones(size, np.uint8))
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    (folder / "inflate" / "1").mkdir(parents=True)
    (folder / "inflate" / "config.pbtxt").write_text(CONFIG)
    (folder / "inflate" / "1" / "model.py").write_text(MODEL)
    repository = str(Path(__file__).parents[2] / "bench" / "repository")
    with naiad([repository, str(folder)], FLAGS) as one:
        yield one


def metric(server: Endpoints, name: str) -> float:
    page = server.get("/metrics", "metrics")[1].decode()
    return next(float(line.split()[1]) for line in page.splitlines() if line.startswith(f"{name} "))


def open_files(server: Server) -> int:
    return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in process_tree(server.pid))


def test_output_slots_of_a_worker_are_given_back(server: Server) -> None:
    """Forty clients hold a response each, so that the worker needs as many slots."""
    size = 3 * MIB
    tensor = http_client.InferInput("SIZE", [1], "INT32")
    tensor.set_data_from_numpy(np.array([size], np.int32))
    with http_client.InferenceServerClient(server.http) as client:
        client.infer("inflate", [tensor])
    files, memory = open_files(server), memory_bytes(server.pid)["Pss"]
    body = b'{"inputs":[{"name":"SIZE","shape":[1],"datatype":"INT32","data":[%d]}],' % size
    body += b'"parameters":{"binary_data_output":true}}'
    request = b"POST /v2/models/inflate/infer HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n%b"
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            one = stack.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect(("127.0.0.1", server.http_port))
            one.sendall(request % (len(body), body))
        eventually(lambda: open_files(server) > files + 60, "the worker has many slots")
    eventually(lambda: open_files(server) <= files + 4, "the slots are given back")
    eventually(
        lambda: memory_bytes(server.pid)["Pss"] < memory + LEFT_BYTES, "their memory is, too"
    )


def test_clients_that_leave_the_queue_leave_no_memory(server: Server) -> None:
    before = memory_bytes(server.pid)["Pss"]
    request = http_request(8 * MIB)

    def leave(_: int) -> None:
        with socket.create_connection(("127.0.0.1", server.http_port)) as one:
            with contextlib.suppress(OSError):
                one.sendall(request)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(leave, range(60)))
    eventually(lambda: metric(server, "naiad_request_memory_used_bytes") < MIB, "nothing is held")
    eventually(
        lambda: memory_bytes(server.pid)["Pss"] < before + LEFT_BYTES, "the memory is given back"
    )


@pytest.mark.parametrize("name", list(MEMORY))
def test_attacks_stay_within_the_budget(server: Server, name: str) -> None:
    attack: Callable[[Endpoints], None] = MEMORY[name]
    eventually(lambda: metric(server, "naiad_request_memory_used_bytes") < MIB, "it is idle")
    before, files = memory_bytes(server.pid)["Pss"], open_files(server)
    peak = peak_used = 0.0
    is_over = threading.Event()

    def watch() -> None:
        nonlocal peak, peak_used
        while not is_over.wait(0.1):
            peak = max(peak, memory_bytes(server.pid)["Pss"] - before)
            peak_used = max(peak_used, metric(server, "naiad_request_memory_used_bytes"))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        attack(server)
    finally:
        is_over.set()
        thread.join()
    # Responses that a model has already made are counted, not refused: a few may come on top.
    assert peak_used <= 1.25 * BUDGET_BYTES
    assert peak <= MAX_GROWTH_BYTES
    eventually(lambda: metric(server, "naiad_request_memory_used_bytes") < MIB, "nothing is held")
    eventually(lambda: open_files(server) <= files + 8, "no descriptor is left")
    eventually(
        lambda: memory_bytes(server.pid)["Pss"] < before + LEFT_BYTES, "the memory is given back"
    )
    assert server.is_ready()


def test_bodies_of_many_chunks_leave_no_memory(server: Server) -> None:
    """A hundred bodies of 70,000 chunks of one byte, each of which is refused."""
    head = (
        b"POST /v2/models/inflate/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    body = b"1\r\na\r\n" * 70_000

    def attack(count: int) -> None:
        for _ in range(count):
            with (
                socket.create_connection(("127.0.0.1", server.http_port), 30) as connection,
                contextlib.suppress(ConnectionError),
            ):
                connection.sendall(head + body)
                assert connection.recv(16) == b"HTTP/1.1 400 Bad"

    attack(5)
    before = memory_bytes(server.pid)["Anonymous"]
    attack(100)
    assert memory_bytes(server.pid)["Anonymous"] < before + MIB
