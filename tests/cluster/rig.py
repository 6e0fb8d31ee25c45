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

from naiad.cluster import ray_node
from naiad.cluster.actors import sweep_folder
from naiad.cluster.command import CONTROLLER, start_controller
from naiad.cluster.placement import NAME_LABEL
from tests.server.harness import free_ports

REPOSITORY = Path(__file__).parent.parent / "repositories" / "main"


class Rig:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = free_ports()
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

    def start_controller(self) -> None:
        self._ray.init(address=self.ray.address, namespace="naiad", log_to_driver=False)
        start_controller()

    def call(self, method: str, *arguments: object) -> Any:
        handle = self._ray.get_actor(CONTROLLER, namespace="naiad")
        return self._ray.get(getattr(handle, method).remote(*arguments), timeout=120)

    def apply(self, deployments: list[dict[str, Any]]) -> None:
        router = {
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


def deployment(name: str, model: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "repository": str(REPOSITORY), "models": [model], **fields}
