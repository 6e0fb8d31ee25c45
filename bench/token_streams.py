"""Tokens per second to many streaming clients, of an engine that takes no time, with 1, 2, 4 and 8
frontend processes.

    python -m bench.token_streams --frontends 1 2 4 8 --clients 512 --workers 4
    python -m bench.token_streams --protocol grpc-tokens

The engine (bench/token_engine.py) makes one token per step for every open request, as fast as its
worker can. Every client has one chat completion at a time (`--protocol chat`), one /generate_stream
request (`http`), or one request of its own ModelStreamInfer call (`grpc-tokens`).
`cpu_us_per_event` are the CPU microseconds of the server process, the frontends and the workers per
event, `times_one` is the rate relative to the first row of the same run. A client that does not
keep up gets several tokens in one event. The clients are in processes of their own, and need CPUs
of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from bench.frontends import cpu_s, kinds
from bench.stream_load import Plan, measure, percentile
from tests.server.harness import Server, free_ports, naiad_command, naiad_environment, port_flags

CONFIG = """
backend: "llm"
model_transaction_policy { decoupled: true }
input [ { name: "text_input" data_type: TYPE_STRING dims: [1] optional: true },
        { name: "stream" data_type: TYPE_BOOL dims: [1] optional: true } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [-1] } ]
"""
STAND_IN = """
import naiad.worker.import_backend
naiad.worker.import_backend.BACKENDS["llm"] = "bench.token_engine:TokenBackend"
"""
NAMES = {"scheduler": "server", "frontends": "frontends", "workers": "workers"}


def write_repository(folder: Path, num_workers: int) -> None:
    for number in range(num_workers):
        model = folder / "repository" / f"tokens{number}"
        (model / "1").mkdir(parents=True)
        (model / "config.pbtxt").write_text(CONFIG)
    (folder / "packages").mkdir()
    # Every Python process imports this when it starts.
    (folder / "packages" / "sitecustomize.py").write_text(STAND_IN)


def start(folder: Path, num_frontends: int, *flags: str) -> Server:
    ports = free_ports()
    command = naiad_command(
        "serve",
        f"--model-repository={folder / 'repository'}",
        f"--frontend-processes={num_frontends}",
        "--disable-auto-complete-config",
        *flags,
        *port_flags(ports),
    )
    path = os.pathsep.join([str(folder / "packages"), os.environ.get("PYTHONPATH", os.getcwd())])
    return Server(command, ports, naiad_environment({"PYTHONPATH": path})).wait_started()


def count_events(server: Server, model: str) -> int:
    """The responses that the model has sent since the start."""
    statistics = json.loads(server.get(f"/v2/models/{model}/stats")[1])["model_stats"][0]
    return sum(each["success"]["count"] for each in statistics["response_stats"].values())


def row(folder: Path, num_frontends: int, options: argparse.Namespace) -> dict[str, Any]:
    server = start(folder, num_frontends)
    try:
        names = kinds(server.pid)
        plan = Plan(
            options.protocol,
            server.grpc_port if options.protocol == "grpc-tokens" else server.http_port,
            "tokens",
            clients=options.clients,
            num_in=32,
            num_out=options.tokens,
            warm_s=options.warm,
            window_s=options.seconds,
            num_models=options.workers,
        )
        before = {pid: cpu_s(pid) for pid in names}
        readings = measure(plan)
        used = dict.fromkeys(NAMES.values(), 0.0)
        for pid, seconds in before.items():
            used[NAMES[names[pid]]] += cpu_s(pid) - seconds
        # CPU times and events are those of the whole run, warm-up included.
        num_events = sum(count_events(server, f"tokens{n}") for n in range(options.workers))
        busy_s = options.warm + options.seconds
        return {
            "frontends": num_frontends,
            "tokens_per_s": round(readings.tokens / options.seconds),
            "events_per_s": round(num_events / busy_s),
            "requests_per_s": round(readings.finished / options.seconds, 1),
            "first_token_ms_p50": round(percentile(readings.first_token_s, 0.5) * 1e3, 1),
            "first_token_ms_p99": round(percentile(readings.first_token_s, 0.99) * 1e3, 1),
            "cpu_us_per_event": {
                name: round(seconds / max(num_events, 1) * 1e6, 2) for name, seconds in used.items()
            },
            "busy_cpus": {name: round(seconds / busy_s, 2) for name, seconds in used.items()},
        }
    finally:
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--frontends", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--protocol", choices=["chat", "http", "grpc-tokens"], default="chat")
    parser.add_argument("--clients", type=int, default=512)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--warm", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=6.0)
    options = parser.parse_args()
    first = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_repository(folder, options.workers)
        for num_frontends in options.frontends:
            reading = row(folder, num_frontends, options)
            first = first or reading["tokens_per_s"]
            reading["times_one"] = round(reading["tokens_per_s"] / max(first, 1), 2)
            print(json.dumps(reading), flush=True)


if __name__ == "__main__":
    main()
