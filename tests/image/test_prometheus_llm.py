"""A real Prometheus scrapes a language model under load: every panel of our board has data, and
every panel of vLLM's public boards, if NAIAD_VLLM_BOARDS names a folder with their JSON files."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.image.live_prometheus import board_queries, running_prometheus, wait_for, without_data
from tests.image.test_image import ROOT, free_ports
from tests.server.harness import Server, naiad_command, naiad_environment, port_flags

pytest.importorskip("openvino_genai", reason="the model needs the extra openvino-llm")
pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus")

LOAD_SECS = 25
BOARDS = Path(os.environ.get("NAIAD_VLLM_BOARDS", "/nonexistent"))
CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}/rules.yml]
scrape_configs:
  - job_name: naiad
    static_configs: [{{targets: ["127.0.0.1:{metrics}"]}}]
"""
VARIABLES = {
    "$job": ".*",
    "$model_name": "smollm2",
    "$model": ".*",
    "${model_name}": "smollm2",
    "$Deployment_id": ".*",
    "$percentile": "0.95",
    "${percentile}": "0.95",
}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prometheus")
    http, grpc, metrics, web = free_ports(4)
    ports = (http, grpc, metrics)
    command = naiad_command("serve", "--model=smollm2", *port_flags(ports))
    server = Server(command, ports, naiad_environment()).wait_started(300)
    text = CONFIG.format(rules=ROOT / "deploy" / "prometheus", metrics=metrics)
    try:
        with running_prometheus(folder, text, web) as address:
            put_under_load(server)
            wait_for(address, "rate(vllm:generation_tokens_total[15s]) > 0")
            yield address
    finally:
        server.stop()


def put_under_load(server: Server) -> None:
    end_s = time.monotonic() + LOAD_SECS
    failures: list[bytes] = []

    def run(number: int) -> None:
        while time.monotonic() < end_s:
            body = {
                "model": "smollm2",
                "prompt": f"Client {number} tells a short story.",
                "max_tokens": 24,
            }
            status, data = server.post("/v1/completions", body)
            if status != 200:
                failures.append(data)
                return

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_every_panel_of_our_board_has_data(prometheus: str) -> None:
    board = json.loads((ROOT / "deploy" / "grafana" / "language-models.json").read_text())
    assert without_data(prometheus, board_queries(board, VARIABLES)) == []


@pytest.mark.parametrize("path", sorted(BOARDS.glob("*.json")), ids=lambda path: path.stem)
def test_every_panel_of_vllms_boards_has_data(prometheus: str, path: Path) -> None:
    board = json.loads(path.read_text())
    rows = board_queries(board, VARIABLES)
    assert rows
    assert without_data(prometheus, rows) == []
