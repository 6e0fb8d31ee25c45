"""The boards and rules ask for metrics that the server exports, and Prometheus can read them."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from naiad.metrics.loop_lag import LoopLag
from naiad.router.config import ReplicaSpec, RouterConfig
from naiad.router.core import RouterCore
from naiad.router.fleet import Fleet
from naiad.router.metrics import RouterMetrics

ROOT = Path(__file__).parents[3]
BOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
METRIC = re.compile(r"\b(?:nv_|naiad_|vllm:)[a-z0-9_]+")
SUFFIX = re.compile(r"_(bucket|sum|count)$")


@functools.cache
def exported() -> set[str]:
    """The names of metrics in the source, and on the router's page."""
    text = "".join(path.read_text() for path in (ROOT / "naiad").rglob("*.py"))
    names = set(re.findall(r'"((?:nv_|naiad_|vllm:)[a-z0-9_]+)"', text))
    return names | set(re.findall(r"^# TYPE (\S+)", router_page(), re.MULTILINE))


def router_page() -> str:
    """The page of a router that has everything that its page can show."""
    fleet = Fleet(RouterConfig())
    core = RouterCore(RouterConfig(), fleet)
    replica = fleet.add(ReplicaSpec("http://127.0.0.1:1", node="a"), "flag")
    replica.record("m").total_requests = 1
    core.waiting["m"] = 1
    loop = asyncio.new_event_loop()
    try:
        page = RouterMetrics(core, LoopLag(loop), lambda: {"http": 1}).render()
    finally:
        loop.close()
    return page.decode()


def queries(board: dict[str, Any]) -> list[str]:
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    found += [entry["expr"] for entry in board["annotations"]["list"]]
    variables = board["templating"]["list"]
    return found + [entry["query"]["query"] for entry in variables if entry["type"] == "query"]


def unknown(text: str) -> set[str]:
    names = exported()
    return {
        name
        for name in METRIC.findall(text)
        if name not in names and SUFFIX.sub("", name) not in names
    }


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_a_board_asks_for_metrics_that_exist(path: Path) -> None:
    board = json.loads(path.read_text())
    assert len(board["panels"]) >= 5
    for query in queries(board):
        assert METRIC.search(query)
        assert not unknown(query), query
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    # Boards must not depend on the name of somebody's data source.
    assert {panel["datasource"]["uid"] for panel in board["panels"]} == {"${datasource}"}


# The metrics of triton-inference-server/server deploy/k8s-onprem/dashboard.json.
TRITONS_BOARD = """
nv_cpu_memory_used_bytes nv_cpu_utilization nv_gpu_memory_used_bytes nv_gpu_power_usage
nv_gpu_utilization nv_inference_compute_infer_duration_us nv_inference_count
nv_inference_queue_duration_us nv_inference_request_failure nv_inference_request_success
"""


def test_tritons_own_board_finds_its_metrics() -> None:
    assert not unknown(TRITONS_BOARD)


# The metrics of all boards of vllm-project/vllm, under examples/observability: grafana.json of
# prometheus_grafana, and performance_statistics.json and query_statistics.json of dashboards.
VLLMS_BOARDS = """
vllm:e2e_request_latency_seconds vllm:generation_tokens_total vllm:inter_token_latency_seconds
vllm:iteration_tokens_total vllm:kv_cache_usage_perc vllm:num_requests_running
vllm:num_requests_waiting vllm:prompt_tokens_total vllm:request_decode_time_seconds
vllm:request_generation_tokens vllm:request_max_num_generation_tokens
vllm:request_prefill_time_seconds vllm:request_prompt_tokens vllm:request_queue_time_seconds
vllm:request_success_total vllm:time_to_first_token_seconds
"""


def test_vllms_own_boards_find_their_metrics() -> None:
    assert not unknown(VLLMS_BOARDS)


@pytest.mark.parametrize("name", ["rules.yml", "alerts.yml"])
def test_rules_ask_for_metrics_that_exist(name: str) -> None:
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / name).read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            assert not unknown(rule["expr"]), rule["expr"]


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_prometheus_can_parse_every_query(path: Path, tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool")
    board = json.loads(path.read_text())
    expressions = [query for query in queries(board) if not query.startswith("label_values")]
    rules = [
        {"record": f"panel:{index}", "expr": query.replace("$__rate_interval", "1m")}
        for index, query in enumerate(expressions)
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    result = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
