"""Runs NVIDIA's perf_analyzer against Naiad in every mode that `naiad perf` also has.

    python -m bench.perf_analyzer_modes
        Runs all modes and prints a markdown table. The exit code is 1 if one failed.
    python -m bench.perf_analyzer_modes sequences shape
        Runs the modes whose names contain one of these texts.
    python -m bench.perf_analyzer_modes --server triton
        Runs against Triton instead.

A run is clean if its exit code is 0, the report has figures, no request failed, no error was
printed, and the requested files can be read.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench import oracle
from tests.server.harness import Server, free_ports, naiad_command, naiad_environment, port_flags

REPOSITORIES = [
    str(Path(__file__).parent / "perf_repository"),
    str(Path(__file__).parents[1] / "tests" / "repositories" / "main"),
]
BRIEF = ["--measurement-interval", "300", "--stability-percentage", "999", "--max-trials", "3"]
COUNTED = [
    "--measurement-mode",
    "count_windows",
    "--measurement-request-count",
    "40",
    "--stability-percentage",
    "999",
    "--max-trials",
    "3",
]
TIMEOUT_S = 40
ADD_SUB = "-m add_sub"
STRINGS = "-m identity_bytes --shape TEXT:3"
SUMS = "-m running_sum"

MODES = {
    "concurrency range": f"{ADD_SUB} --concurrency-range 1:5:2",
    "concurrency range, asynchronous": f"{ADD_SUB} --concurrency-range 1:5:2 --async",
    "batch size": f"{ADD_SUB} -b 4 --concurrency-range 2",
    "model version": f"{ADD_SUB} -x 1",
    "request rate": f"{ADD_SUB} --request-rate-range 100:300:100",
    "request rate, poisson": f"{ADD_SUB} --request-rate-range 200 --request-distribution poisson",
    "request intervals": f"{ADD_SUB} --request-intervals INTERVALS",
    "binary search with latency threshold": (
        f"{ADD_SUB} --concurrency-range 1:8:1 -l 500 --binary-search"
    ),
    "latency threshold": f"{ADD_SUB} --concurrency-range 1:3 -l 500",
    "count windows": f"{ADD_SUB} --concurrency-range 2 COUNTED",
    "request count": f"{ADD_SUB} --concurrency-range 2 --request-count 60",
    "percentile": f"{ADD_SUB} --percentile 95",
    "input data zero": f"{ADD_SUB} --input-data zero",
    "input data random": f"{ADD_SUB} --input-data random",
    "input data JSON": f"{ADD_SUB} --input-data ADD_SUB.json",
    "input data folder": f"{ADD_SUB} --input-data FOLDER",
    "shape": "-m identity_fp32 --shape INPUT0:4096 --concurrency-range 2",
    "string data": f"{STRINGS} --string-data hello",
    "string length": f"{STRINGS} --string-length 40",
    "JSON tensors": f"{ADD_SUB} --input-tensor-format json --output-tensor-format json",
    "collect metrics": f"{ADD_SUB} --collect-metrics --metrics-url METRICS --metrics-interval 100",
    "sequences": f"{SUMS} --concurrency-range 3 --sequence-length 8",
    "sequences at a rate": (
        f"{SUMS} --request-rate-range 100 --num-of-sequences 3 --sequence-length 6"
    ),
    "sequences, serial, id range": (
        f"{SUMS} --request-rate-range 60 --num-of-sequences 2 --serial-sequences "
        "--sequence-id-range 100:200"
    ),
    "system shared memory": (
        f"{ADD_SUB} --shared-memory system --output-shared-memory-size 1024 --concurrency-range 2"
    ),
    "CSV": f"{ADD_SUB} -f REPORT",
    "verbose CSV": f"{ADD_SUB} --verbose-csv -f REPORT",
    "profile export": f"{ADD_SUB} --profile-export-file EXPORT",
    "trace level": f"{ADD_SUB} --trace-level OFF",
}
STREAMED = {
    "streaming": f"{ADD_SUB} --streaming --concurrency-range 3",
    "streaming at a rate": f"{ADD_SUB} --streaming --request-rate-range 200",
    "streaming sequences": f"{SUMS} --streaming --concurrency-range 2 --sequence-length 5",
    "streaming, decoupled": "-m repeat --streaming --concurrency-range 2 --input-data COUNT.json",
    "streaming, decoupled, profile export": (
        "-m repeat --streaming --input-data COUNT.json --profile-export-file EXPORT"
    ),
    # A request must last longer than the burst. perf_analyzer 2.50 aborts if a worker sends a
    # second request on a context that has had its final response.
    "periodic concurrency": (
        "-m repeat --streaming --async --input-data LONG.json --periodic-concurrency-range 1:7:2 "
        "--request-period 2 --profile-export-file EXPORT"
    ),
    "compression": f"{ADD_SUB} --grpc-compression-algorithm gzip",
}


@dataclass(frozen=True)
class Outcome:
    is_clean: bool
    seconds: float
    message: str


def launch(name: str) -> Server:
    ports = free_ports()
    if name == "triton":
        return Server(
            oracle.serve_command(REPOSITORIES, port_flags(ports)), ports, oracle.serve_environment()
        )
    command = naiad_command(
        "serve",
        *(f"--model-repository={repository}" for repository in REPOSITORIES),
        "--allow-client-shm=true",
        *port_flags(ports),
    )
    return Server(command, ports, naiad_environment())


def write_data(folder: Path) -> None:
    (folder / "intervals").write_text("2000\n4000\n3000\n")
    numbers = [float(number) for number in range(16)]
    (folder / "add_sub.json").write_text(
        json.dumps({"data": [{"INPUT0": numbers, "INPUT1": numbers}] * 2})
    )
    (folder / "count.json").write_text(json.dumps({"data": [{"COUNT": [4]}]}))
    (folder / "long.json").write_text(json.dumps({"data": [{"COUNT": [400]}]}))
    (folder / "raw").mkdir()
    for name in ("INPUT0", "INPUT1"):
        (folder / "raw" / name).write_bytes(bytes(4 * 16))


def flags_of(mode: str, protocol: str, server: Server, folder: Path) -> list[str]:
    places = {
        "INTERVALS": "intervals",
        "ADD_SUB.json": "add_sub.json",
        "COUNT.json": "count.json",
        "LONG.json": "long.json",
        "FOLDER": "raw",
    }
    flags: list[str] = []
    for part in mode.split():
        if part == "COUNTED":
            flags += COUNTED
        elif part == "METRICS":
            flags.append(f"127.0.0.1:{server.metrics_port}/metrics")
        elif part in places or part in ("REPORT", "EXPORT"):
            flags.append(str(folder / places.get(part, part.lower())))
        else:
            flags.append(part)
    pace = [] if "COUNTED" in mode or "--request-count" in mode else BRIEF
    return [*flags, "-i", protocol, "-u", server.http if protocol == "http" else server.grpc, *pace]


def run(flags: list[str], folder: Path) -> Outcome:
    started = time.monotonic()
    command, environment = oracle.perf_analyzer_command(flags), oracle.perf_analyzer_environment()
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=folder
        )
    except subprocess.TimeoutExpired:
        return Outcome(False, TIMEOUT_S, "did not end")
    seconds, text = time.monotonic() - started, done.stdout + done.stderr
    if done.returncode:
        return Outcome(False, seconds, f"exit code {done.returncode}: {_last_line(text)}")
    errors = [
        line.strip()
        for line in text.splitlines()
        if "error" in line.lower() or "failed" in line.lower()
    ]
    if errors:
        return Outcome(False, seconds, errors[0])
    if "throughput" not in text.lower():
        return Outcome(False, seconds, "no figures")
    return Outcome(True, seconds, _file_summary(folder, flags) or _last_line(done.stdout))


def _file_summary(folder: Path, flags: list[str]) -> str:
    if "-f" in flags:
        rows = list(csv.DictReader((folder / "report").read_text().splitlines()))
        return f"CSV of {len(rows)} rows, {len(rows[0])} columns"
    if "--profile-export-file" in flags:
        requests = json.loads((folder / "export").read_text())["experiments"][0]["requests"]
        return f"export of {len(requests)} requests"
    return ""


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def protocols_of(name: str) -> tuple[str, ...]:
    if name in STREAMED:
        return ("grpc",)
    return ("http",) if name == "JSON tensors" else ("http", "grpc")


def run_modes(server: Server, filters: list[str]) -> bool:
    print("| mode | protocol | clean | s | output of perf_analyzer |\n|---|---|---|---|---|")
    is_good = True
    for name, mode in (MODES | STREAMED).items():
        if filters and not any(text in name for text in filters):
            continue
        for protocol in protocols_of(name):
            with tempfile.TemporaryDirectory() as place:
                folder = Path(place)
                write_data(folder)
                outcome = run(flags_of(mode, protocol, server, folder), folder)
            is_good = is_good and outcome.is_clean
            verdict = "yes" if outcome.is_clean else "NO"
            message = outcome.message.replace("|", "/")[:110]
            print(
                f"| {name} | {protocol} | {verdict} | {outcome.seconds:.1f} | {message} |",
                flush=True,
            )
    return is_good


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("filters", nargs="*", help="texts; modes whose names contain one run")
    parser.add_argument("--server", choices=("naiad", "triton"), default="naiad")
    arguments = parser.parse_args()
    server = launch(arguments.server)
    try:
        server.wait_started()
        is_good = run_modes(server, arguments.filters)
    finally:
        server.stop()
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
