"""Our load generator beside NVIDIA's, on the same server in turn: do they see the same latencies, and what do they cost?

    python -m bench.perf_tool                     everything; prints markdown tables
    python -m bench.perf_tool --rounds 5 --kinds http,grpc,stream --server naiad|triton

Rates: half of what perf_analyzer drives at concurrency 16, so that both can send it. The two take turns; medians over the rounds are
compared. CPU is user and system time of the generator's own process, start and preparation included, per request that it sent.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench import oracle
from bench.compare import REPOSITORY, launch
from tests.server.harness import Server, naiad_executable

KINDS = {"http": ["-i", "http"], "grpc": ["-i", "grpc"], "stream": ["-i", "grpc", "--streaming", "--async"]}
WINDOWS = ["--measurement-interval", "3000", "--stability-percentage", "999", "--max-trials", "3"]
TIMEOUT_S = 90


@dataclass(frozen=True)
class Run:
    infer_per_s: float
    p50_us: float
    p99_us: float
    cpu_us: float
    """CPU of the generator per request."""


def counted(server: Server) -> int:
    stats = json.loads(server.get("/v2/models/add_sub/stats")[1])
    return sum(int(version["inference_count"]) for version in stats["model_stats"])


def measure(tool: str, server: Server, kind: str, load: list[str]) -> Run | None:
    """None when the tool gave no figures: perf_analyzer now and then never ends, so callers try again."""
    address = server.http if kind == "http" else server.grpc
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.csv"
        flags = ["-m", "add_sub", "-u", address, *KINDS[kind], *load, *WINDOWS, "-f", str(report)]
        if tool == "naiad":
            command, environment = [naiad_executable(), "perf", *flags], dict(os.environ)
        else:
            command, environment = oracle.perf_analyzer_command(flags), oracle.perf_analyzer_environment()
        before, requests = resource.getrusage(resource.RUSAGE_CHILDREN), counted(server)
        try:
            subprocess.run(command, env=environment, capture_output=True, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return None
        after, requests = resource.getrusage(resource.RUSAGE_CHILDREN), counted(server) - requests
        if not report.exists() or not requests:
            return None
        rows = list(csv.DictReader(report.read_text().splitlines()))
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    row = rows[0]
    return Run(float(row["Inferences/Second"]), float(row["p50 latency"]), float(row["p99 latency"]), cpu_s / requests * 1e6)


def take_turns(server: Server, kind: str, load: list[str], rounds: int) -> dict[str, Run]:
    found: dict[str, list[Run]] = {"perf_analyzer": [], "naiad": []}
    for number in range(rounds):
        for tool, runs in found.items():
            run = measure(tool, server, kind, load) or measure(tool, server, kind, load)
            if run is None:
                sys.exit(f"{tool} gave no figures for {kind} {' '.join(load)}")
            runs.append(run)
            print(f"  {kind} {' '.join(load)} round {number + 1} {tool}: {run}", file=sys.stderr)
    fields = ("infer_per_s", "p50_us", "p99_us", "cpu_us")
    return {tool: Run(*(statistics.median(getattr(run, field) for run in runs) for field in fields)) for tool, runs in found.items()}


def row(kind: str, load: str, medians: dict[str, Run]) -> str:
    theirs, ours = medians["perf_analyzer"], medians["naiad"]
    cells = [kind, load]
    for field, digits in (("infer_per_s", 0), ("p50_us", 0), ("p99_us", 0), ("cpu_us", 1)):
        first, second = getattr(theirs, field), getattr(ours, field)
        cells.append(f"{first:,.{digits}f} / {second:,.{digits}f} (x{second / first:.2f})")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", default="http,grpc,stream")
    parser.add_argument("--server", choices=("naiad", "triton"), default="naiad")
    given = parser.parse_args()
    server = launch(given.server, REPOSITORY)
    try:
        server.wait_started()
        print("| protocol | load | infer/s: perf_analyzer / naiad perf | p50 us | p99 us | generator CPU us per request |")
        print("|---|---|---|---|---|---|")
        for kind in given.kinds.split(","):
            full = take_turns(server, kind, ["--concurrency-range", "16"], given.rounds)
            print(row(kind, "concurrency 16", full), flush=True)
            rate = round(full["perf_analyzer"].infer_per_s / 2)
            half = take_turns(server, kind, ["--request-rate-range", str(rate)], given.rounds)
            print(row(kind, f"{rate} requests/s", half), flush=True)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
