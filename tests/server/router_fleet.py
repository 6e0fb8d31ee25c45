"""A router process in front of server processes, and a repository whose models say who executes.

The environment variable REPLICA names a replica; DELAY_S and FAILS make the models of one replica
slow or faulty.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.server.gates import eventually
from tests.server.harness import (
    Server,
    free_ports,
    launch_naiad,
    naiad_command,
    naiad_environment,
    port_flags,
)

_CONFIG = """backend: "python"
max_batch_size: 0
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [
  { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "WHO" data_type: TYPE_STRING dims: [ 1 ] }
]
"""
_HEAD = """import os, time
import numpy as np
import triton_python_backend_utils as pb_utils

WHO = os.environ.get("REPLICA", "")
DELAY_S = float(os.environ.get("DELAY_S", "0"))
FAILS = os.environ.get("FAILS") == "1"


def respond(value):
    return pb_utils.InferenceResponse([
        pb_utils.Tensor("Y", np.array([value], np.int32)),
        pb_utils.Tensor("WHO", np.array([WHO], np.object_)),
    ])


def number(request):
    return int(pb_utils.get_input_tensor_by_name(request, "X").as_numpy().ravel()[0])


class TritonPythonModel:
"""
_MODELS = {
    "plus_one": (
        _CONFIG,
        _HEAD
        + """    def execute(self, requests):
        if FAILS:
            raise RuntimeError("this replica is broken")
        time.sleep(DELAY_S)
        return [respond(number(request) + 1) for request in requests]
""",
    ),
    "slow": (
        _CONFIG,
        _HEAD
        + """    def execute(self, requests):
        time.sleep(1.0)
        return [respond(number(request) + 1) for request in requests]
""",
    ),
    "sum": (
        _CONFIG
        + """sequence_batching {
  max_sequence_idle_microseconds: 60000000
  oldest { max_candidate_sequences: 64 }
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
  ]
}
""",
        _HEAD
        + """    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            key = int(pb_utils.get_input_tensor_by_name(request, "CORRID").as_numpy().ravel()[0])
            if pb_utils.get_input_tensor_by_name(request, "START").as_numpy().ravel()[0]:
                self.sums[key] = 0
            self.sums[key] += number(request)
            responses.append(respond(self.sums[key]))
        return responses
""",
    ),
    "numbers": (
        _CONFIG + "model_transaction_policy { decoupled: true }\n",
        _HEAD
        + """    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for value in range(number(request)):
                if sender.is_cancelled():
                    break
                sender.send(respond(value))
                time.sleep(0.01)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
""",
    ),
}


def write_repository(folder: Path) -> Path:
    for name, (config, code) in _MODELS.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(config)
        (version / "model.py").write_text(code)
    return folder


class Fleet:
    """Servers by name, and the router in front of them."""

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._ports: dict[str, tuple[int, int, int]] = {}
        self.servers: dict[str, Server] = {}
        self.router: Server

    def start(
        self, name: str, environment: dict[str, str] | None = None, flags: Sequence[str] = ()
    ) -> Server:
        """Starts a server without waiting. A name keeps its ports."""
        more = {"REPLICA": name, **(environment or {})}
        if name not in self._ports:
            server = launch_naiad([str(self._repository)], flags, more)
            self._ports[name] = (server.http_port, server.grpc_port, server.metrics_port)
        else:
            ports = self._ports[name]
            command = naiad_command(
                "serve", f"--model-repository={self._repository}", *port_flags(ports), *flags
            )
            server = Server(command, ports, naiad_environment(more))
        self.servers[name] = server
        return server

    def flag(self, name: str) -> str:
        http, grpc, _ = self._ports[name]
        return f"--replica=http://127.0.0.1:{http},grpc=127.0.0.1:{grpc},name={name}"

    def route(self, *flags: str) -> Server:
        """Starts the router, without waiting for the replicas."""
        ports = free_ports()
        command = naiad_command("router", *port_flags(ports), *flags)
        self.router = Server(command, ports, naiad_environment())
        return self.router.wait_started()

    def kill(self, name: str) -> None:
        """Ends all processes of a server at once."""
        server = self.servers.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.stop()

    def stop_server(self, name: str) -> int:
        """Ends a server as an operator does, and returns its exit code."""
        server = self.servers.pop(name)
        try:
            server.signal(signal.SIGTERM)
            return server.wait_exit()
        finally:
            server.stop()

    def replicas(self) -> dict[str, dict[str, Any]]:
        rows = json.loads(self.router.get("/router/replicas")[1])["replicas"]
        return {row["name"]: row for row in rows}

    def wait_ready(self, *names: str) -> None:
        def are_ready() -> bool:
            rows = self.replicas()
            return all(
                name in rows
                and rows[name]["state"] == "ready"
                and rows[name]["models"]
                and rows[name]["breaker"] != "open"
                for name in names
            )

        eventually(are_ready, f"the replicas {names} are not ready")

    def stop(self) -> None:
        for server in [*self.servers.values(), *([self.router] if hasattr(self, "router") else [])]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGCONT)
            server.stop()


@contextlib.contextmanager
def fleet(
    repository: Path, *names: str, flags: Sequence[str] = (), server_flags: Sequence[str] = ()
) -> Iterator[Fleet]:
    """Replicas with these names, and a router that knows them; all of them are ready."""
    one = Fleet(repository)
    try:
        for name in names:
            one.start(name, flags=server_flags)
        one.route(*(one.flag(name) for name in names), *flags)
        one.wait_ready(*names)
        yield one
    finally:
        one.stop()


def infer_body(value: int, **parameters: object) -> dict[str, object]:
    body: dict[str, object] = {
        "inputs": [{"name": "X", "datatype": "INT32", "shape": [1], "data": [value]}]
    }
    if parameters:
        body["parameters"] = parameters
    return body


def read_outputs(body: bytes) -> tuple[int, str]:
    outputs = {row["name"]: row["data"][0] for row in json.loads(body)["outputs"]}
    return int(outputs["Y"]), str(outputs["WHO"])
