"""A real Prometheus, and what a Grafana board asks it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_VARIABLE_DEFAULTS = {"$__rate_interval": "15s", "$__interval": "15s", "$__range": "1m"}


@contextlib.contextmanager
def running_prometheus(folder: Path, config: str, port: int) -> Iterator[str]:
    """Runs Prometheus with `config`; the result is its address."""
    (folder / "prometheus.yml").write_text(config)
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml",
             f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"],
            stdout=log,
            stderr=log,
        )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def ask(address: str, query: str) -> list[Any]:
    url = f"{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=10) as response:
        return list(json.loads(response.read())["data"]["result"])


def board_queries(board: dict[str, Any], variables: dict[str, str]) -> list[tuple[str, str]]:
    """The title of each panel and its queries, with values for the variables of the board."""
    rows = []
    panels = list(board["panels"])
    while panels:
        panel = panels.pop(0)
        panels += panel.get("panels", [])
        for target in panel.get("targets", ()):
            query = target.get("expr", "")
            for name, value in {**_VARIABLE_DEFAULTS, **variables}.items():
                query = query.replace(name, value)
            if query:
                rows.append((panel.get("title", ""), query))
    return rows


def without_data(address: str, rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(title, query) for title, query in rows if not ask(address, query)]


def wait_for(address: str, query: str, limit_s: float = 30.0) -> None:
    end_s = time.monotonic() + limit_s
    while True:
        with contextlib.suppress(OSError):
            if ask(address, query):
                return
        assert time.monotonic() < end_s, f"no data for {query}"
        time.sleep(0.5)
