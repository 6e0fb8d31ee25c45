"""Compares `naiad perf` with NVIDIA's perf_analyzer on the same server: latencies and CPU.

    python -m bench.perf_tool
        Runs everything, which takes about ten minutes, and prints a markdown table.
    python -m bench.perf_tool --kinds http --keep runs.jsonl
        Runs a part. The next call with the same file resumes.
    python -m bench.perf_tool --rounds 5 --kinds http,grpc,stream --server naiad|triton

The tools take turns, and medians over the rounds are compared. Rates are half of the throughput of
perf_analyzer at concurrency 16. Latencies are compared on `steady`, whose latency is that of the
model. On `add_sub` the tail depends on the scheduler of the machine and is only shown.
perf_analyzer gets 32 threads: with its default of 4 it sends late and measures from then. Windows
are short because it sorts the requests of a window in quadratic time, and never ends at about
15,000 requests per second with its default of 5 s. CPU is the user and system time of the tool's
process per request, from the first request that the server counts.

The exit code is 1 if a goal is missed: at half capacity, p50 within 10% and p99 within 25%; at
concurrency 16, at least as many inferences per second; at most 1.5 times the CPU per request.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import oracle
from bench.compare import REPOSITORY, launch
from bench.process_tree import TICKS_PER_S
from tests.server.harness import Server, naiad_command, naiad_environment

PERF_REPOSITORY = str(Path(__file__).parent / "perf_repository")
KINDS = {
    "http": ["-i", "http"],
    "grpc": ["-i", "grpc"],
    "stream": ["-i", "grpc", "--streaming", "--async"],
}
WINDOWS = ["--measurement-interval", "500", "--stability-percentage", "999", "--max-trials", "6"]
TIMEOUT_S = 60
CLOSED_GATES = {"infer_per_s": (1.0, math.inf), "cpu_us": (0.0, 1.5)}
OPEN_GATES = {"p50_us": (0.9, 1.1), "p99_us": (0.75, 1.25), "cpu_us": (0.0, 1.5)}


@dataclass(frozen=True)
class Run:
    infer_per_s: float
    p50_us: float
    p99_us: float
    cpu_us: float
    """CPU microseconds of the tool per request."""


def counted(server: Server, model: str) -> int:
    stats = json.loads(server.get(f"/v2/models/{model}/stats")[1])
    return sum(int(version["inference_count"]) for version in stats["model_stats"])


def command_of(tool: str, flags: list[str]) -> tuple[list[str], dict[str, str]]:
    if tool == "naiad":
        return naiad_command("perf", *flags), naiad_environment()
    return oracle.perf_analyzer_command(flags), oracle.perf_analyzer_environment()


def measure(tool: str, server: Server, model: str, kind: str, load: list[str]) -> Run | None:
    """Returns None if the tool gave no figures. Sometimes perf_analyzer never ends, so callers try
    again."""
    address = server.http if kind == "http" else server.grpc
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.csv"
        flags = ["-m", model, "-u", address, *KINDS[kind], *load, *WINDOWS, "-f", str(report)]
        command, environment = command_of(tool, flags)
        before = counted(server, model)
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        alarm = threading.Timer(TIMEOUT_S, process.kill)
        alarm.start()
        while process.poll() is None and counted(server, model) == before:
            time.sleep(0.02)
        first, start_s = counted(server, model), own_cpu_seconds(process.pid)
        _, _, usage = os.wait4(process.pid, 0) if process.returncode is None else (0, 0, None)
        alarm.cancel()
        requests = counted(server, model) - first
        if usage is None or not report.exists() or not requests:
            return None
        row = next(csv.DictReader(report.read_text().splitlines()))
    cpu_s = usage.ru_utime + usage.ru_stime - start_s
    return Run(
        float(row["Inferences/Second"]),
        float(row["p50 latency"]),
        float(row["p99 latency"]),
        cpu_s / requests * 1e6,
    )


def own_cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


class Runs:
    """The measured runs, including those of an earlier call if there is a file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self._runs: dict[str, Run] = {
            entry["key"]: Run(**entry["run"]) for entry in map(json.loads, lines)
        }

    def get(self, key: str, measured: Callable[[], Run]) -> Run:
        if key not in self._runs:
            self._runs[key] = measured()
            print(f"  {key}: {self._runs[key]}", file=sys.stderr, flush=True)
            if self._path is not None:
                with self._path.open("a") as file:
                    file.write(
                        json.dumps({"key": key, "run": dataclasses.asdict(self._runs[key])}) + "\n"
                    )
        return self._runs[key]


def take_turns(
    runs: Runs, server: Server, model: str, kind: str, load: list[str], rounds: int
) -> dict[str, Run]:
    results: dict[str, list[Run]] = {"perf_analyzer": [], "naiad": []}

    def measured() -> Run:
        run = measure(tool, server, model, kind, load) or measure(tool, server, model, kind, load)
        return run or sys.exit(f"{tool} gave no figures for {model} {kind} {' '.join(load)}")

    for number in range(rounds):
        for tool, some in results.items():
            some.append(runs.get(f"{model} {kind} {' '.join(load)} {tool} {number + 1}", measured))
    fields = [field.name for field in dataclasses.fields(Run)]
    return {
        tool: Run(*(statistics.median(getattr(run, field) for run in some) for field in fields))
        for tool, some in results.items()
    }


def row(
    kind: str, load: str, medians: dict[str, Run], gates: dict[str, tuple[float, float]]
) -> tuple[str, bool]:
    """Returns a line of the table, and whether all goals are met. A goal is the minimum and the
    maximum of the ratio of `naiad perf` to perf_analyzer."""
    theirs, ours = medians["perf_analyzer"], medians["naiad"]
    cells, is_good = [kind, load], True
    for field, digits in (("infer_per_s", 0), ("p50_us", 0), ("p99_us", 0), ("cpu_us", 1)):
        first, second = getattr(theirs, field), getattr(ours, field)
        least, most = gates.get(field, (0.0, math.inf))
        is_within = least <= second / first <= most
        is_good = is_good and is_within
        verdict = "" if field not in gates else " yes" if is_within else " NO"
        cells.append(f"{first:,.{digits}f} / {second:,.{digits}f} (x{second / first:.2f}){verdict}")
    return "| " + " | ".join(cells) + " |", is_good


def compare_tools(runs: Runs, servers: dict[str, Server], kind: str, rounds: int) -> bool:
    full = take_turns(
        runs, servers["add_sub"], "add_sub", kind, ["--concurrency-range", "16"], rounds
    )
    lines = [row(kind, "add_sub, concurrency 16", full, CLOSED_GATES)]
    print(lines[-1][0], flush=True)
    capacity = runs.get(
        f"steady {kind} capacity", lambda: _capacity(servers["steady"], kind)
    ).infer_per_s
    for model, rate, gates in (
        ("steady", capacity / 2, OPEN_GATES),
        ("add_sub", full["perf_analyzer"].infer_per_s / 2, {}),
    ):
        load = ["--request-rate-range", str(round(rate)), "--max-threads", "32"]
        lines.append(
            row(
                kind,
                f"{model}, {rate:,.0f}/s",
                take_turns(runs, servers[model], model, kind, load, rounds),
                gates,
            )
        )
        print(lines[-1][0], flush=True)
    return all(is_good for _, is_good in lines)


def _capacity(server: Server, kind: str) -> Run:
    run = measure("perf_analyzer", server, "steady", kind, ["--concurrency-range", "16"])
    return run or sys.exit("perf_analyzer gave no figures")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", default="http,grpc,stream")
    parser.add_argument("--server", choices=("naiad", "triton"), default="naiad")
    parser.add_argument("--keep", type=Path, help="file of runs; a later call with it resumes")
    arguments = parser.parse_args()
    servers = {
        "add_sub": launch(arguments.server, REPOSITORY),
        "steady": launch(arguments.server, PERF_REPOSITORY),
    }
    try:
        for server in servers.values():
            server.wait_started()
        print(
            "| protocol | load | infer/s: perf_analyzer / naiad perf | p50 us | p99 us "
            "| CPU us of the tool per request |"
        )
        print("|---|---|---|---|---|---|")
        runs = Runs(arguments.keep)
        verdicts = [
            compare_tools(runs, servers, kind, arguments.rounds)
            for kind in arguments.kinds.split(",")
        ]
    finally:
        for server in servers.values():
            server.stop()
    sys.exit(0 if all(verdicts) else 1)


if __name__ == "__main__":
    main()
