"""A real Prometheus finds the replicas behind a router, and the cluster's board has data."""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from collections.abc import Iterator

import pytest

from tests.image.live_prometheus import (
    ask,
    board_queries,
    running_prometheus,
    wait_for,
    without_data,
)
from tests.image.test_image import ROOT, SEVEN
from tests.server.gates import eventually
from tests.server.harness import Server, free_ports, naiad_command, naiad_environment, port_flags

LOAD_SECS = 15

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus")

CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
scrape_configs:
  - job_name: routers
    static_configs: [{{targets: ["127.0.0.1:{metrics}"]}}]
  - job_name: replicas
    http_sd_configs: [{{url: "http://127.0.0.1:{http}/router/targets", refresh_interval: 1s}}]
"""


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prometheus")
    servers: list[Server] = []
    rows = []
    try:
        for node in ("a", "b"):
            ports = free_ports()
            flags = [f"--node-name={node}", f"--replica-name=d-{node}"]
            repository = f"--model-repository={ROOT / 'examples' / 'repository'}"
            command = naiad_command("serve", repository, *port_flags(ports), *flags)
            servers.append(Server(command, ports, naiad_environment()))
            rows.append({"url": f"http://127.0.0.1:{ports[0]}", "name": f"d-{node}", "node": node})
        (folder / "router.json").write_text(json.dumps({"replica": rows}))
        ports = free_ports()
        [web, *_] = free_ports()
        config = f"--config={folder}/router.json"
        command = naiad_command("router", config, "--router-name=router", *port_flags(ports))
        router = Server(command, ports, naiad_environment()).wait_started()
        servers.append(router)
        eventually(lambda: is_served(router), "the router does not serve", 120)
        text = CONFIG.format(http=ports[0], metrics=ports[2])
        with running_prometheus(folder, text, web) as address:
            end_s = time.monotonic() + LOAD_SECS
            while time.monotonic() < end_s:
                assert is_served(router)
                time.sleep(0.02)
            wait_for(address, 'rate(nv_inference_count{replica="d-b"}[15s])')
            yield address
    finally:
        for server in servers:
            server.stop()


def is_served(router: Server) -> bool:
    return router.post("/v2/models/digits/infer", SEVEN)[0] == 200


def test_every_panel_of_the_clusters_board_has_data(prometheus: str) -> None:
    board = json.loads((ROOT / "deploy" / "grafana" / "cluster.json").read_text())
    rows = board_queries(board, {"$job": ".*", "$node": ".*"})
    assert len(rows) >= 15
    assert without_data(prometheus, rows) == []


def test_the_replicas_are_found_with_their_labels(prometheus: str) -> None:
    up = ask(prometheus, 'up{job="replicas"} == 1')
    assert {(row["metric"]["node"], row["metric"]["replica"]) for row in up} == {
        ("a", "d-a"),
        ("b", "d-b"),
    }
    with urllib.request.urlopen(f"{prometheus}/api/v1/targets", timeout=10) as response:
        targets = json.loads(response.read())["data"]["activeTargets"]
    assert all(target["lastError"] == "" for target in targets)
