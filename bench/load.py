"""Runs the load generators: NVIDIA's perf_analyzer for both protocols, and wrk for JSON.

Each run gives the rate, p50 and the CPU per inference. The latter is the CPU time of the server's
process tree during the run, divided by the inferences that the server counted. It does not depend
on the warm-up or the windows of the load generator.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench import oracle
from bench.process_tree import cpu_seconds
from tests.server.harness import Server

TIMEOUT_S = 45
STEADY = ["--stability-percentage", "15", "--max-trials", "10"]
"""Flags for large tensors. perf_analyzer keeps a copy of all data sent and received in a window,
and needs twice the CPU until it can reuse the memory of earlier windows. Its first windows, which
are sufficient for small requests, would measure that. Its default stability of 10 % is not always
reached on a shared machine."""


@dataclass(frozen=True)
class Figures:
    infer_per_s: float
    p50_us: float
    cpu_us: float
    """CPU microseconds of the server's process tree per inference."""


def count(server: Server, model: str) -> int:
    stats = json.loads(server.get(f"/v2/models/{model}/stats")[1])
    return sum(int(version["inference_count"]) for version in stats["model_stats"])


def perf_analyzer(
    server: Server, model: str, protocol: str, concurrency: int, extra: list[str]
) -> Figures | None:
    """Returns None if perf_analyzer gave no figures. Sometimes it never ends its last window, so
    callers try again."""
    address = server.http if protocol == "http" else server.grpc
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.csv"
        flags = [
            "-m",
            model,
            "-i",
            protocol,
            "-u",
            address,
            "--concurrency-range",
            str(concurrency),
            "--measurement-interval",
            "1000",
        ]
        flags += ["--stability-percentage", "999", "--max-trials", "3", "-f", str(report), *extra]
        cpu, counted = cpu_seconds(server.pid), count(server, model)
        try:
            subprocess.run(
                oracle.perf_analyzer_command(flags),
                env=oracle.perf_analyzer_environment(),
                capture_output=True,
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            return None
        cpu, counted = cpu_seconds(server.pid) - cpu, count(server, model) - counted
        if not report.exists() or not counted:
            return None
        with report.open() as file:
            rows = list(csv.DictReader(file))
    if not rows:
        return None
    return Figures(
        float(rows[0]["Inferences/Second"]), float(rows[0]["p50 latency"]), cpu / counted * 1e6
    )


def has_wrk() -> bool:
    return shutil.which("wrk") is not None


def wrk(
    server: Server, connections: int, seconds: int = 5, model: str = "add_sub"
) -> Figures | None:
    script = Path(__file__).with_name("infer.lua" if model == "add_sub" else "pipeline.lua")
    command = [
        "wrk",
        "-t",
        "2",
        "-c",
        str(connections),
        "-d",
        f"{seconds}s",
        "--latency",
        "-s",
        str(script),
        f"http://{server.http}",
    ]
    cpu = cpu_seconds(server.pid)
    environment = {**os.environ, "WRK_MODEL": model}
    text = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment
    ).stdout
    cpu = cpu_seconds(server.pid) - cpu
    done, rate, p50 = (
        re.search(pattern, text)
        for pattern in (
            r"(\d+) requests in",
            r"Requests/sec:\s+([\d.]+)",
            r"50%\s+([\d.]+)(us|ms|s)",
        )
    )
    if done is None or rate is None or p50 is None or "Non-2xx" in text:
        return None
    scale = {"us": 1.0, "ms": 1e3, "s": 1e6}[p50.group(2)]
    return Figures(
        float(rate.group(1)), float(p50.group(1)) * scale, cpu / int(done.group(1)) * 1e6
    )
