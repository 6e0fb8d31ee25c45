"""Kills workers, templates, processes that models have started and frontend processes, at random,
under mixed load, and stops some of them for STOP_S. The clients check every response.

    python -m tests.attacks.random_kills --kills 1000 [--seed 7] [--pause 0.05]
    python -m tests.attacks.random_kills --templates 20

The second form kills the template alone, again and again, on a server with default limits, and
shows for how long models refuse requests: its death is no crash of theirs.

The load is JSON and binary tensors over HTTP, unary calls and streams over gRPC, event streams, an
ensemble, and models that fork. The rules:
- every request gets a response, and no response is wrong;
- a request fails only if a worker of its model was killed while it was under way, or restarts;
- a connection breaks only if a frontend process was killed (`NAIAD_FRONTEND_PROCESSES=2`);
- at the end all models serve, and the server's memory and descriptors are what they were after the
  first fifth of the kills;
- nothing is left when the server has stopped.
The server forgets deaths at once (`--worker-restart-window-secs`) and knows no crash loop
(`--worker-max-restarts`), because here every worker dies more often than any worker should.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import queue
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from tests.server.harness import (
    Server,
    frontends,
    launch_naiad,
    launchers,
    process_name,
    process_state,
    process_tree,
    wait_gone,
)

REQUEST_LIMIT_S = 30.0
RESTART_WAIT_S = 10.0
READY_LIMIT_S = 60.0
NOTICE_S = 1.0
"""A request that was sent this long after a kill may still have gone to the dead worker."""
RESTART_LIMIT_S = 60.0
"""On a busy machine a restart takes seconds, and the next kill may hit a worker that starts."""
REAP_LIMIT_S = 10.0
MEMORY_SLACK_BYTES = 24 << 20
DESCRIPTOR_SLACK = 16
STREAM_LENGTH = 20
LARGE_ELEMENTS = 64_000
"""256 KB, which travel in shared memory."""
STOP_SHARE = 0.1
STOP_S = 2.0
MAX_GAP_S = 2.0
"""How long a model may answer 503 after its template was killed."""
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)
EXPECTED_ERRORS = (
    "its worker process ended",
    "and is restarting",
    "is not able to serve",
    "no instance of the model is able to serve",
    "the instance that held this sequence ended",
)
FRONTEND = "frontend"
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
FLAGS = [
    "--worker-max-restarts=1000000",
    "--worker-restart-window-secs=0.05",
    f"--worker-restart-wait-secs={RESTART_WAIT_S:g}",
]

CONFIG = """backend: "python"
max_batch_size: 16
input [ {{ name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] }} ]
dynamic_batching {{ }}
instance_group [ {{ count: {count} kind: KIND_CPU }} ]
"""
DECOUPLED = """backend: "python"
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 2 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
ENSEMBLE = """platform: "ensemble"
max_batch_size: 16
input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] } ]
ensemble_scheduling { step [
  { model_name: "pair" model_version: -1
    input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "between" } },
  { model_name: "lone" model_version: -1
    input_map { key: "IN" value: "between" } output_map { key: "OUT" value: "OUT" } } ] }
"""
ADDS = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values + 1)]))
        return responses
"""
FORKS = """
import os
import subprocess
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.child = subprocess.Popen(["sleep", "3600"])
        subprocess.run(["sh", "-c", "setsid sleep 3600 >/dev/null 2>&1 &"])

    def execute(self, requests):
        child = os.fork()
        if child == 0:
            time.sleep(0.001)
            os._exit(0)
        os.waitpid(child, 0)
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values + 1)]))
        return responses
"""
STREAMS = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            first, count = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().ravel()
            for index in range(count):
                out = pb_utils.Tensor("OUT", np.array([first + index], np.int32))
                sender.send(pb_utils.InferenceResponse([out]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
"""
WORKERS = {"pair": 2, "lone": 1, "forks": 2, "streams": 1}
PARTS = {"both": ("pair", "lone")}
"""The models whose workers a request to this model needs; by default only its own."""


class Kill(msgspec.Struct, frozen=True):
    time_s: float
    model: str
    """Empty for a template, which takes all workers with it; FRONTEND for a frontend process."""


class Outcome(msgspec.Struct):
    num_kills: int = 0
    killed: Counter[str] = msgspec.field(default_factory=Counter)
    succeeded: Counter[str] = msgspec.field(default_factory=Counter)
    lost: Counter[str] = msgspec.field(default_factory=Counter)
    """Requests that were under way on a killed worker, by client."""
    broken: Counter[str] = msgspec.field(default_factory=Counter)
    """Requests that were under way on a connection of a killed frontend, by client."""
    violations: list[str] = []
    memory_bytes: tuple[int, int] = (0, 0)
    descriptors: tuple[int, int] = (0, 0)
    seconds: float = 0.0


class RefusedError(Exception):
    """The server's own error, as a client sees it."""


# The repository.


def write_repository(folder: Path) -> Path:
    configs = {
        **{name: CONFIG.format(count=WORKERS[name]) for name in ("pair", "lone", "forks")},
        "streams": DECOUPLED,
        "both": ENSEMBLE,
    }
    code = {"pair": ADDS, "lone": ADDS, "forks": FORKS, "streams": STREAMS}
    for name, config in configs.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
        if name in code:
            (folder / name / "1" / "model.py").write_text(code[name])
    return folder


# The clients. Each makes one request, checks the response, and raises RefusedError for an error of
# the server or AssertionError for a wrong response.


class HttpClient:
    def __init__(self, server: Server, model: str, path: str = "infer") -> None:
        self.name, self.model = f"http {path} {model}", model
        self._server = server
        self._path = f"/v2/models/{model}/{path}"
        self._connection: http.client.HTTPConnection | None = None

    def _post(self, body: bytes, headers: dict[str, str]) -> http.client.HTTPResponse:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(
                "127.0.0.1", self._server.http_port, timeout=REQUEST_LIMIT_S
            )
        self._connection.request("POST", self._path, body, headers)
        return self._connection.getresponse()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def reopen(self) -> None:
        self.close()

    def call(self, number: int) -> None:
        values = [number, number + 7, -number]
        tensor = {"name": "IN", "datatype": "INT32", "shape": [1, 3], "data": values}
        body = {"id": str(number), "inputs": [tensor]}
        response = self._post(json.dumps(body).encode(), {})
        reply = json.loads(response.read())
        if response.status != 200:
            raise RefusedError(f"{response.status} {reply['error']}")
        added = 2 if self.model == "both" else 1
        assert reply["id"] == str(number), reply
        assert reply["outputs"][0]["data"] == [value + added for value in values], reply


class BinaryClient(HttpClient):
    def __init__(self, server: Server, model: str) -> None:
        super().__init__(server, model)
        self.name = f"http binary {model}"

    def call(self, number: int) -> None:
        values = np.arange(number, number + LARGE_ELEMENTS, dtype=np.int32)
        head = json.dumps(
            {
                "inputs": [
                    {
                        "name": "IN",
                        "datatype": "INT32",
                        "shape": [1, LARGE_ELEMENTS],
                        "parameters": {"binary_data_size": values.nbytes},
                    }
                ],
                "parameters": {"binary_data_output": True},
            }
        ).encode()
        response = self._post(
            head + values.tobytes(), {"Inference-Header-Content-Length": str(len(head))}
        )
        body = response.read()
        if response.status != 200:
            raise RefusedError(f"{response.status} {json.loads(body)['error']}")
        size = int(response.headers["Inference-Header-Content-Length"])
        assert np.array_equal(np.frombuffer(body[size:], np.int32), values + 1), body[:size]


class EventStreamClient(HttpClient):
    def __init__(self, server: Server) -> None:
        super().__init__(server, "streams", "generate_stream")

    def call(self, number: int) -> None:
        response = self._post(json.dumps({"IN": [number, STREAM_LENGTH]}).encode(), {})
        body = response.read()
        if response.status != 200:
            raise RefusedError(f"{response.status} {body.decode()}")
        assert body.startswith(b"data: "), (response.status, body[:200])
        events = [json.loads(part[6:]) for part in body.split(b"\n\n") if part]
        received = [event["OUT"] for event in events if "error" not in event]
        assert received == list(range(number, number + len(received))), received
        if "error" in events[-1]:
            raise RefusedError(events[-1]["error"])
        assert len(received) == STREAM_LENGTH, received


class GrpcClient:
    def __init__(self, server: Server, model: str) -> None:
        self.name, self.model = f"grpc {model}", model
        self._server = server
        self._client = grpc_client.InferenceServerClient(server.grpc, channel_args=OWN_CONNECTION)

    def close(self) -> None:
        self._client.close()

    def reopen(self) -> None:
        """A client that has failed to connect waits for seconds before it tries again, and fails
        every call meanwhile."""
        self.close()
        self._client = grpc_client.InferenceServerClient(
            self._server.grpc, channel_args=OWN_CONNECTION
        )

    def call(self, number: int) -> None:
        values = np.array([[number, number + 1]], np.int32)
        tensor = grpc_client.InferInput("IN", [1, 2], "INT32")
        tensor.set_data_from_numpy(values)
        try:
            result = self._client.infer(
                self.model, [tensor], request_id=str(number), client_timeout=REQUEST_LIMIT_S
            )
        except InferenceServerException as error:
            raise RefusedError(f"{error.status()} {error.message()}") from None
        added = 2 if self.model == "both" else 1
        assert result.get_response().id == str(number)
        assert np.array_equal(result.as_numpy("OUT"), values + added), result.get_response()


class GrpcStreamClient:
    def __init__(self, server: Server) -> None:
        self.name, self.model = "grpc stream", "streams"
        self._server = server
        self._open()

    def _open(self) -> None:
        self._client = grpc_client.InferenceServerClient(
            self._server.grpc, channel_args=OWN_CONNECTION
        )
        received: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        self._received = received
        self._client.start_stream(lambda result, error: received.put((result, error)))

    def reopen(self) -> None:
        """After a wrong response, the next request must not read what is left of this one: it would
        look wrong, too, and such a client floods the model. A connection that has ended has taken
        the stream with it."""
        self._client.stop_stream(cancel_requests=True)
        self._client.close()
        self._open()

    def close(self) -> None:
        self._client.stop_stream()
        self._client.close()

    def call(self, number: int) -> None:
        tensor = grpc_client.InferInput("IN", [2], "INT32")
        tensor.set_data_from_numpy(np.array([number, STREAM_LENGTH], np.int32))
        # The end is a response of its own: a worker that is killed before it has sent that fails
        # the request, although all values are here.
        self._client.async_stream_infer(
            "streams", [tensor], request_id=str(number), enable_empty_final_response=True
        )
        for index in range(STREAM_LENGTH + 1):
            result, error = self._received.get(timeout=REQUEST_LIMIT_S)
            if error is not None:
                raise RefusedError(f"{error.status()} {error.message()}")
            response = result.get_response()
            assert response.id == str(number), response
            is_last = response.parameters["triton_final_response"].bool_param
            assert is_last == (index == STREAM_LENGTH), response
            if not is_last:
                assert result.as_numpy("OUT").tolist() == [number + index]


Client = HttpClient | GrpcClient | GrpcStreamClient


def make_clients(server: Server) -> list[Client]:
    return [
        HttpClient(server, "pair"),
        HttpClient(server, "lone"),
        HttpClient(server, "forks"),
        HttpClient(server, "both"),
        BinaryClient(server, "pair"),
        EventStreamClient(server),
        GrpcClient(server, "pair"),
        GrpcClient(server, "lone"),
        GrpcClient(server, "forks"),
        GrpcClient(server, "both"),
        GrpcStreamClient(server),
    ]


# The run.


class Run:
    def __init__(self, server: Server, seed: int, pause_s: float) -> None:
        self._server = server
        self._random = random.Random(seed)
        self._pause_s = pause_s
        self._kills: list[Kill] = []
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._pids: set[int] = set()
        self._stops: list[threading.Timer] = []
        self._num_frontends = len(frontends(server))
        self.outcome = Outcome()

    def run(self, num_kills: int) -> Outcome:
        start_s = time.monotonic()
        clients = make_clients(self._server)
        threads = [threading.Thread(target=self._load, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        first: tuple[int, int] = (0, 0)
        try:
            for number in range(num_kills):
                self._kill_one()
                if number == num_kills // 5:
                    self._wait_ready()
                    first = self._measure()
        finally:
            self._is_over.set()
            for stop in self._stops:
                stop.join()
            for thread in threads:
                thread.join(2 * REQUEST_LIMIT_S)
        for client, thread in zip(clients, threads, strict=True):
            if thread.is_alive():
                self._violate(f"{client.name}: a request has no response")
            client.close()
        self._wait_ready()
        last = self._measure()
        self._check_end(first, last)
        self.outcome.num_kills = num_kills
        self.outcome.seconds = time.monotonic() - start_s
        return self.outcome

    def _violate(self, message: str) -> None:
        with self._lock:
            self.outcome.violations.append(message)

    # Load.

    def _load(self, client: Client) -> None:
        numbers = iter(range(1, 1 << 24, 3))
        while not self._is_over.wait(self._pause_s):
            number = next(numbers)
            start_s = time.monotonic()
            try:
                client.call(number)
                with self._lock:
                    self.outcome.succeeded[client.name] += 1
            except RefusedError as error:
                message = str(error)
                is_known = any(text in message for text in EXPECTED_ERRORS)
                if "StatusCode.UNAVAILABLE" in message and not is_known:
                    self._judge_broken(client, start_s, message)
                else:
                    self._judge(client, start_s, message)
            except (ConnectionError, http.client.HTTPException) as error:
                self._judge_broken(client, start_s, repr(error))
            except BaseException as error:
                self._violate(f"{client.name}: {type(error).__name__}: {error}"[:400])
                if isinstance(error, AssertionError):
                    client.reopen()
                else:
                    self._violate(f"the log then: {self._server.tail(30)}")
                    return  # the connection or the stream is lost

    def _judge(self, client: Client, start_s: float, message: str) -> None:
        """An error is right only if a worker that the request needed was killed meanwhile, or
        before that and it still restarts."""
        models = {"", *PARTS.get(client.model, (client.model,))}
        before_s = RESTART_LIMIT_S if "is restarting" in message else NOTICE_S
        self.outcome.lost[client.name] += 1
        if not self._is_explained(models, start_s - before_s):
            self._violate(f"{client.name}: failed without a kill: {message}")
        elif not any(text in message for text in EXPECTED_ERRORS):
            details = self._server.get("/v2/health/details")[1].decode()
            self._violate(f"{client.name}: unexpected error: {message}; {details}")

    def _judge_broken(self, client: Client, start_s: float, message: str) -> None:
        self.outcome.broken[client.name] += 1
        if not self._is_explained({FRONTEND}, start_s - NOTICE_S):
            seconds = time.monotonic() - start_s
            self._violate(
                f"{client.name}: the connection ended without a kill, {seconds:.1f} s after the "
                f"request: {message}; {self._server.tail(6)}"
            )
        client.reopen()

    def _is_explained(self, models: set[str], start_s: float) -> bool:
        """A process that serves one of these models has been killed since then."""
        with self._lock:
            return any(
                kill.model in models and start_s <= kill.time_s for kill in reversed(self._kills)
            )

    # Kills.

    def _kill_one(self) -> None:
        time.sleep(self._random.uniform(0.0, 0.2))
        kinds = {"worker": 80, "template": 8, "child": 12}
        if self._num_frontends:
            kinds[FRONTEND] = 20
        kind = self._random.choices(list(kinds), list(kinds.values()))[0]
        is_stop = kind != "child" and self._random.random() < STOP_SHARE
        targets: list[tuple[int, str]] = []
        end_s = time.monotonic() + READY_LIMIT_S
        while not targets:
            if time.monotonic() > end_s:
                raise AssertionError(f"no {kind} to kill{self._server.tail()}")
            targets = list(self._targets(kind))
        pid, model = self._random.choice(targets)
        if is_stop:
            self._stop(pid, kind)
            return
        with self._lock:
            if kind != "child":
                self._kills.append(Kill(time.monotonic(), model))
            self.outcome.killed[f"{kind} {model}".strip()] += 1
        try:
            os.kill(pid, signal.SIGKILL if kind == "template" else self._random.choice(SIGNALS))
        except ProcessLookupError:
            pass
        if kind == FRONTEND:
            # On a busy machine a process lives on for a while.
            wait_gone([pid], REAP_LIMIT_S)
            with self._lock:
                self._kills.append(Kill(time.monotonic(), FRONTEND))

    def _stop(self, pid: int, kind: str) -> None:
        """Nothing may fail for it: whatever waits for the process waits a little longer."""
        self.outcome.killed[f"{kind} stopped"] += 1
        pidfd = os.pidfd_open(pid)

        def go_on() -> None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
            os.close(pidfd)

        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        timer = threading.Timer(STOP_S, go_on)
        self._stops.append(timer)
        timer.start()

    def _targets(self, kind: str) -> Iterator[tuple[int, str]]:
        """(process id, model) of the processes of a kind."""
        children, launcher = _children(self._server.pid), launchers(self._server)
        self._pids.update(children)
        if kind == FRONTEND:
            for pid in frontends(self._server):
                self._pids.add(pid)
                yield pid, FRONTEND
            return
        for template in sorted(set(children) - set(launcher)):
            if kind == "template":
                yield template, ""
                continue
            for worker in _children(template):
                self._pids.add(worker)
                model = process_name(worker).partition("_")[0]
                if kind == "worker" and model in WORKERS:
                    yield worker, model
                if kind == "child":
                    for child in _children(worker):
                        self._pids.add(child)
                        yield child, model

    # The end.

    def _wait_ready(self) -> None:
        end_s = time.monotonic() + READY_LIMIT_S
        while not self._server.is_ready():
            if time.monotonic() > end_s:
                raise AssertionError(f"the server is not ready again{self._server.tail()}")
            time.sleep(0.02)

    def _measure(self) -> tuple[int, int]:
        """(memory of the server that it shares with nobody, its open descriptors)"""
        rollup = Path(f"/proc/{self._server.pid}/smaps_rollup").read_text()
        private = sum(
            int(line.split()[1]) << 10
            for line in rollup.splitlines()
            if line.startswith(("Private_Clean", "Private_Dirty"))
        )
        return private, len(os.listdir(f"/proc/{self._server.pid}/fd"))

    def _check_end(self, first: tuple[int, int], last: tuple[int, int]) -> None:
        self.outcome.memory_bytes = (first[0], last[0])
        self.outcome.descriptors = (first[1], last[1])
        if last[0] - first[0] > MEMORY_SLACK_BYTES:
            self._violate(f"the server's memory grew from {first[0]} to {last[0]} bytes")
        if last[1] - first[1] > DESCRIPTOR_SLACK:
            self._violate(f"the server's descriptors grew from {first[1]} to {last[1]}")
        # Each worker of `forks` has two processes of its own, dead or alive.
        most = 2 + sum(WORKERS.values()) + 2 * WORKERS["forks"]
        if self._num_frontends:
            most += 1 + self._num_frontends
        end_s = time.monotonic() + REAP_LIMIT_S
        while len(tree := process_tree(self._server.pid)) > most and time.monotonic() < end_s:
            time.sleep(0.02)
        if len(tree) > most:
            names = [(pid, process_name(pid), process_state(pid)) for pid in tree]
            self._violate(f"{len(tree)} processes, expected at most {most}: {names}")
        self._pids.update(tree)
        code = self._server.stop()
        if code != 0:
            self._violate(f"the server exited with status {code}")
        left = wait_gone(sorted(self._pids - {self._server.pid}), 10)
        if left:
            self._violate(f"left behind: {[(pid, process_name(pid)) for pid in left]}")


def _children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            children += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        pass
    return children


def attack(
    num_kills: int, seed: int, report: Callable[[str], None] = print, pause_s: float = 0.0
) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        repository = write_repository(Path(folder) / "models")
        server = launch_naiad([str(repository)], FLAGS)
        try:
            outcome = Run(server.wait_started(), seed, pause_s).run(num_kills)
        finally:
            if server.process.poll() is None:
                server.stop()
    report(
        f"{outcome.num_kills} kills (seed {seed}) in {outcome.seconds:.0f} s: "
        f"{dict(sorted(outcome.killed.items()))}"
    )
    report(f"responses: {dict(sorted(outcome.succeeded.items()))}")
    report(f"lost with a killed worker: {dict(sorted(outcome.lost.items()))}")
    report(f"lost with a killed frontend: {dict(sorted(outcome.broken.items()))}")
    report(f"memory of the server: {outcome.memory_bytes[0]} -> {outcome.memory_bytes[1]} bytes")
    report(f"descriptors of the server: {outcome.descriptors[0]} -> {outcome.descriptors[1]}")
    for number, line in enumerate(server.lines):
        if "Traceback" in line:
            report("\n".join(server.lines[number - 3 : number + 30]))
            break
    for violation in outcome.violations:
        report(f"VIOLATION: {violation}")
    return outcome


def longest_gaps(num_kills: int, report: Callable[[str], None] = print) -> dict[str, float]:
    """Kills the template again and again, and returns for each model how long it answered 503 at
    most. Requests do not wait for a worker that restarts, so that every gap is seen."""
    gaps: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        repository = write_repository(Path(folder) / "models")
        server = launch_naiad([str(repository)], ["--worker-restart-wait-secs=0"])
        try:
            server.wait_started()
            for _ in range(num_kills):
                template = _parent_of(server, "pair")
                os.kill(template, signal.SIGKILL)
                wait_gone([template], REAP_LIMIT_S)
                for model, gap_s in _refused_for(server, ("pair", "lone", "forks")).items():
                    gaps[model] = max(gaps.get(model, 0.0), gap_s)
        finally:
            server.stop()
    report(f"{num_kills} killed templates; longest time of 503: {gaps}")
    return gaps


def _parent_of(server: Server, model: str) -> int:
    """The template that has a worker of this model."""
    for template in _children(server.pid):
        if any(process_name(worker).startswith(model) for worker in _children(template)):
            return template
    raise AssertionError(f"no worker of '{model}' has a template{server.tail()}")


def _refused_for(server: Server, models: Sequence[str]) -> dict[str, float]:
    """How long each model refuses requests from now on."""
    start_s = time.monotonic()
    gaps = dict.fromkeys(models, 0.0)
    refusing = set(models)
    while refusing:
        for model in sorted(refusing):
            client = HttpClient(server, model)
            try:
                client.call(1)
                refusing.discard(model)
            except RefusedError as error:
                if not str(error).startswith("500"):  # it was under way when the worker ended
                    gaps[model] = time.monotonic() - start_s
            finally:
                client.close()
        assert time.monotonic() - start_s < READY_LIMIT_S, f"{refusing} do not serve again"
    return gaps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="0 chooses one")
    parser.add_argument(
        "--pause", type=float, default=0.0, help="seconds between a client's requests"
    )
    parser.add_argument("--templates", type=int, default=0, help="kill so many templates instead")
    arguments = parser.parse_args()
    if arguments.templates:
        return int(max(longest_gaps(arguments.templates).values()) > MAX_GAP_S)
    seed = arguments.seed or random.SystemRandom().randrange(1, 1 << 31)
    outcome = attack(arguments.kills, seed, pause_s=arguments.pause)
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
