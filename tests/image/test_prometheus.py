"""A real Prometheus scrapes a server under load, and every panel's query returns data."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.image.test_image import ROOT, SEVEN, free_ports

MAIN = "from naiad.cli.main import main; main()"
LOAD_SECS = 25

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus")

CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}/rules.yml, {rules}/alerts.yml]
scrape_configs:
  - job_name: naiad
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prometheus")
    http, grpc, metrics, web = free_ports(4)
    keys = ["--api-key-file", str(folder / "keys.json")]
    command = [sys.executable, "-c", MAIN]
    created = subprocess.run(
        [*command, "key", "create", "test", *keys], check=True, capture_output=True, text=True
    )
    key = next(word for word in created.stdout.split() if word.startswith("sk-naiad-"))
    (folder / "prometheus.yml").write_text(
        CONFIG.format(rules=ROOT / "deploy" / "prometheus", port=metrics)
    )
    repository = str(ROOT / "examples" / "repository")
    ports = [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
    with (folder / "log").open("w") as log:
        processes = [
            subprocess.Popen(
                [*command, "serve", "--model-repository", repository, *ports, *keys,
                 f"--audit-log={folder}/audit", "--metrics-config=histogram_latencies=true"],
                stdout=log,
                stderr=log,
            ),
            subprocess.Popen(
                ["prometheus", f"--config.file={folder}/prometheus.yml",
                 f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{web}"],
                stdout=log,
                stderr=log,
            ),
        ]  # fmt: skip
    try:
        put_under_load(f"http://127.0.0.1:{http}/v2/models/digits/infer", key)
        yield f"http://127.0.0.1:{web}"
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)


def put_under_load(url: str, key: str) -> None:
    body, count = json.dumps(SEVEN).encode(), 0
    end = time.monotonic() + LOAD_SECS
    while time.monotonic() < end:
        # Every tenth request has no key, and is refused.
        headers = {} if count % 10 == 0 else {"Authorization": f"Bearer {key}"}
        try:
            urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=5).close()
        except OSError:
            pass
        count += 1
        time.sleep(0.02)
    assert count > 100


def ask(address: str, query: str) -> list[Any]:
    url = f"{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=10) as response:
        return list(json.loads(response.read())["data"]["result"])


@pytest.mark.parametrize("name", ["models", "keys"])
def test_every_panel_has_data(prometheus: str, name: str) -> None:
    """The board of language models needs a language model, and is not tested here."""
    board = json.loads((ROOT / "deploy" / "grafana" / f"{name}.json").read_text())
    for variable in ("job", "model", "key"):
        board = json.loads(json.dumps(board).replace(f"${variable}", ".*"))
    empty = []
    for panel in board["panels"]:
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "15s")
            # Tokens are those of language models.
            if not ask(prometheus, query) and "tokens_total" not in query:
                empty.append((panel["title"], query))
    assert not empty


def test_the_recording_rules_have_data(prometheus: str) -> None:
    for name in ("requests:rate1m", "queue_seconds:mean1m", "pending_requests"):
        assert ask(prometheus, f"naiad:{name}"), name
    rates = ask(prometheus, 'naiad:requests:rate1m{model="digits"}')
    assert float(rates[0]["value"][1]) > 1


def test_no_alert_fires_on_a_healthy_server(prometheus: str) -> None:
    assert ask(prometheus, 'ALERTS{alertstate="firing"}') == []
