"""A Ray cluster of several raylets on this machine, and the controller in it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from naiad.cluster import ray_node
from naiad.cluster.actors import sweep_folder
from naiad.cluster.command import CONTROLLER, command
from naiad.cluster.placement import NAME_LABEL
from tests.server.harness import free_ports

REPOSITORY = Path(__file__).parent.parent / "repositories" / "main"


class Rig:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = [*free_ports(), *free_ports()]
        self.moods = folder / "moods"
        """Has a file for each replica of the model `moody` that is not well."""
        self.moods.mkdir()
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        os.environ.update(ray_node.ray_environment(token))
        os.environ["NAIAD_CLUSTER_DIR"] = str(folder)
        # Ray reads its environment when it is imported.
        import ray
        from ray.cluster_utils import Cluster

        self._ray = ray
        self.ray = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 4, "labels": {NAME_LABEL: "head"}},
        )
        self.raylets: dict[str, Any] = {}

    def add_node(self, name: str, cpus: int = 4, **labels: str) -> None:
        self.raylets[name] = self.ray.add_node(num_cpus=cpus, labels={NAME_LABEL: name, **labels})

    def remove_node(self, name: str) -> None:
        """Kills the raylet with -9, as a machine that loses power would."""
        self.ray.remove_node(self.raylets.pop(name), allow_graceful=False)

    def raylet_pid(self, name: str) -> int:
        return int(self.raylets[name].all_processes["raylet"][0].process.pid)

    def forget_node(self, name: str) -> None:
        """Ends what Ray has left of a node that it has given up."""
        self.ray.remove_node(self.raylets.pop(name), allow_graceful=False)

    def set_mood(self, replica: str, mood: str) -> None:
        """`mood` is slow, error, or empty for a replica that is well."""
        path = self.moods / replica
        if mood:
            path.write_text(mood)
        else:
            path.unlink(missing_ok=True)

    def read(self, url: str) -> str:
        with urllib.request.urlopen(url, timeout=10) as response:
            return str(response.read().decode())

    def start_controller(self) -> None:
        """Attaches to the Ray cluster as an operator would to one that KubeRay runs."""
        done = CliRunner().invoke(command, ["attach", "--address", self.ray.address])
        assert done.exit_code == 0, done.output

    def call(self, method: str, *arguments: object) -> Any:
        handle = self._ray.get_actor(CONTROLLER, namespace="naiad")
        return self._ray.get(getattr(handle, method).remote(*arguments), timeout=120)

    def apply(self, deployments: list[dict[str, Any]]) -> None:
        router = {
            "count": 2,
            "http_port": self.ports[0],
            "grpc_port": self.ports[1],
            "metrics_port": self.ports[2],
        }
        data = json.dumps({"router": router, "deployment": deployments}).encode()
        error = self.call("apply", data, ".json", "test")
        assert error == "", error

    def settle(self, timeout_s: float = 120.0) -> dict[str, Any]:
        return self.wait(lambda status: bool(status["is_settled"]), timeout_s)

    def wait(
        self, condition: Callable[[dict[str, Any]], bool], timeout_s: float = 120.0
    ) -> dict[str, Any]:
        deadline_s = time.monotonic() + timeout_s
        time.sleep(1.2)
        while True:
            status: dict[str, Any] = self.call("status")
            if condition(status):
                return status
            assert time.monotonic() < deadline_s, json.dumps(status, indent=1)
            time.sleep(0.3)

    def infer(self, model: str = "add_sub", timeout_s: float = 60.0) -> int:
        """Returns the status of a request through the router."""
        body = {
            "inputs": [
                {"name": name, "datatype": "FP32", "shape": [1, 16], "data": list(range(16))}
                for name in ("INPUT0", "INPUT1")
            ]
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.ports[0]}/v2/models/{model}/infer",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code

    def gcs_pid(self) -> int:
        processes = self.ray.head_node.all_processes["gcs_server"]
        return int(processes[0].process.pid)

    def end_servers(self) -> None:
        """Ends everything as `naiad cluster down` does when nobody answers."""
        self._ray.shutdown()
        self.ray.shutdown()
        for node in sorted((self.folder / "nodes").glob("*")):
            sweep_folder(str(node), frozenset())

    def close(self) -> None:
        self.end_servers()


@contextlib.contextmanager
def make_rig(folder: Path) -> Iterator[Rig]:
    rig = Rig(folder)
    try:
        yield rig
    finally:
        rig.close()


_MOODY_CONFIG = """backend: "python"
max_batch_size: 64
input [
  { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] },
  { name: "INPUT1" data_type: TYPE_FP32 dims: [ 16 ] }
]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
instance_group [ { kind: KIND_CPU count: 4 } ]
"""
_MOODY_MODEL = """import os, time
import triton_python_backend_utils as pb_utils

MOOD = os.path.join(os.environ["MOODS"], os.environ["NAIAD_REPLICA_NAME"])


class TritonPythonModel:
    def execute(self, requests):
        mood = ""
        if os.path.exists(MOOD):
            with open(MOOD) as file:
                mood = file.read()
        if mood == "error":
            raise RuntimeError("this replica is broken")
        if mood == "slow":
            time.sleep(0.2)
        return [
            pb_utils.InferenceResponse([
                pb_utils.Tensor(
                    "OUTPUT0", pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
                )
            ])
            for request in requests
        ]
"""


def write_moody(folder: Path) -> Path:
    """Writes a repository with the model `moody`, whose replicas do what their files say."""
    version = folder / "moody" / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version.parent / "config.pbtxt").write_text(_MOODY_CONFIG)
    (version / "model.py").write_text(_MOODY_MODEL)
    return folder


def rows(status: dict[str, Any], name: str = "d") -> list[dict[str, Any]]:
    found = next(each for each in status["deployments"] if each["name"] == name)
    replicas: list[dict[str, Any]] = found["replicas"]
    return replicas


def deployment(name: str, model: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "repository": str(REPOSITORY), "models": [model]} | fields
