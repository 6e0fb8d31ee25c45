"""Compares ONNX models in Naiad, MLServer, a FastAPI app, and onnxruntime called in a loop.

    python -m bench.backends --peers PYTHON --minilm MODEL

PYTHON is an interpreter with mlserver, fastapi, uvicorn, orjson and onnxruntime; without it only
the loop is compared with Naiad. MODEL is examples/embeddings/repository/minilm/1/model.onnx.

wrk sends the same JSON requests to every server over persistent connections, one server at a time.
Rounds alternate between the servers, and the median round of each server is shown. All servers use
the same number of threads for the model. (FastAPI runs several requests at once, each with this
number of threads.) CPU is that of the server's process tree.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from bench.process_tree import cpu_seconds
from bench.table import figure
from tests import onnx_file
from tests.onnx_file import Constant, Node, Value
from tests.server.harness import Server, free_ports, launch_naiad

PEERS = Path(__file__).with_name("peers")
ROUNDS = 3
SECONDS = 4
TOKENS = 32


@dataclass(frozen=True)
class Workload:
    name: str
    model: Path
    inputs: dict[str, np.ndarray[Any, Any]]
    """Inputs of one request with batch size 1."""
    max_batch_size: int
    threads: int
    """Total number of threads that a server may use for the model."""
    connections: int


@dataclass(frozen=True)
class Result:
    rate: float
    p50_ms: float
    cpu_us: float


def tiny_model(path: Path) -> Path:
    weights = np.random.default_rng(1).standard_normal((16, 8), np.float32)
    nodes = [Node("MatMul", ["x", "w"], ["h"]), Node("Relu", ["h"], ["y"])]
    values = [Value("x", "FP32", ["N", 16])], [Value("y", "FP32", ["N", 8])]
    return onnx_file.write(path, nodes, *values, [Constant("w", weights)])


def direct_loop(load: Workload) -> tuple[float, int, float]:
    """Returns the inferences per second with the best batch size, that batch size, and the CPU
    microseconds per inference."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = load.threads
    session = onnxruntime.InferenceSession(
        str(load.model), options, providers=["CPUExecutionProvider"]
    )
    best = (0.0, 0, 0.0)
    size = 1
    while size <= load.max_batch_size:
        inputs = {name: np.repeat(array, size, axis=0) for name, array in load.inputs.items()}
        session.run(None, inputs)
        count, start, cpu = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - start < SECONDS / 3:
            session.run(None, inputs)
            count += size
        best = max(
            best,
            (
                count / (time.perf_counter() - start),
                size,
                (time.process_time() - cpu) / count * 1e6,
            ),
        )
        size *= 2
    return best


# Servers.


@contextmanager
def naiad(load: Workload, folder: Path, instances: int) -> Iterator[tuple[Server, str, str]]:
    """Serves the model with Naiad. The instances share the threads equally."""
    repository = folder / f"repository-{instances}"
    (repository / "bench" / "1").mkdir(parents=True, exist_ok=True)
    link = repository / "bench/1/model.onnx"
    if not link.exists():
        link.symlink_to(load.model.resolve())
    (repository / "bench/config.pbtxt").write_text(
        f"max_batch_size: {load.max_batch_size}\ndynamic_batching {{ }}\n"
        f"instance_group [ {{ kind: KIND_CPU count: {instances} }} ]\n"
        'parameters { key: "intra_op_thread_count" value { string_value: '
        f'"{load.threads // instances}" }} }}\n'
    )
    server = launch_naiad([str(repository)])
    try:
        server.wait_started()
        yield server, "/v2/models/bench/infer", v2_body(load)
    finally:
        server.stop()


@contextmanager
def fastapi(load: Workload, folder: Path, python: str) -> Iterator[tuple[Server, str, str]]:
    ports = free_ports()
    environment = {
        **os.environ,
        "BENCH_MODEL": str(load.model),
        "BENCH_THREADS": str(load.threads),
        "PYTHONPATH": str(PEERS),
    }
    command = [
        python,
        "-m",
        "uvicorn",
        "fastapi_app:app",
        "--port",
        str(ports[0]),
        "--no-access-log",
    ]
    server = Server(command, ports, environment)
    try:
        server.wait_for_line("Uvicorn running on")
        yield (
            server,
            "/infer",
            json.dumps({"inputs": {name: array.tolist() for name, array in load.inputs.items()}}),
        )
    finally:
        server.stop()


@contextmanager
def mlserver(
    load: Workload, folder: Path, python: str, *, is_batching: bool
) -> Iterator[tuple[Server, str, str]]:
    ports = free_ports()
    home = folder / f"mlserver-{is_batching}"
    (home / "bench").mkdir(parents=True, exist_ok=True)
    settings = {
        "http_port": ports[0],
        "grpc_port": ports[1],
        "metrics_port": ports[2],
        "host": "127.0.0.1",
        "debug": False,
    }
    # The model runs in MLServer's process; its default, worker processes, is slower.
    (home / "settings.json").write_text(
        json.dumps(
            {**settings, "parallel_workers": 0, "logging_settings": str(home / "logging.ini")}
        )
    )
    (home / "logging.ini").write_text(
        "[loggers]\nkeys=root\n[handlers]\nkeys=h\n[formatters]\nkeys=f\n"
        "[logger_root]\nlevel=INFO\nhandlers=h\n"
        "[handler_h]\nclass=StreamHandler\nformatter=f\nargs=(sys.stdout,)\n"
        "[formatter_f]\nformat=%(message)s\n"
    )
    model: dict[str, Any] = {"name": "bench", "implementation": "mlserver_onnx.OnnxModel"}
    if is_batching:
        model |= {"max_batch_size": load.max_batch_size, "max_batch_time": 0.002}
    model["parameters"] = {"uri": str(load.model), "extra": {"threads": load.threads}}
    (home / "bench/model-settings.json").write_text(json.dumps(model))
    command = [str(Path(python).with_name("mlserver")), "start", str(home)]
    server = Server(command, ports, {**os.environ, "PYTHONPATH": str(PEERS)})
    try:
        server.wait_for_line("Loaded model 'bench' successfully|Application startup complete")
        wait_ready(server)
        yield server, "/v2/models/bench/infer", v2_body(load)
    finally:
        server.stop()


def wait_ready(server: Server) -> None:
    for _ in range(200):
        try:
            if server.get("/v2/models/bench/ready")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"the server is not ready{server.tail()}")


def v2_body(load: Workload) -> str:
    kinds = {"float32": "FP32", "int64": "INT64"}
    tensors = [
        {
            "name": name,
            "datatype": kinds[array.dtype.name],
            "shape": list(array.shape),
            "data": array.reshape(-1).tolist(),
        }
        for name, array in load.inputs.items()
    ]
    return json.dumps({"inputs": tensors})


# Load.


def measure(server: Server, path: str, body: str, connections: int, folder: Path) -> Result:
    script = folder / "request.lua"
    script.write_text(
        'wrk.method = "POST"\nwrk.headers["Content-Type"] = "application/json"\n'
        f"wrk.body = [==[{body}]==]\n"
    )
    probe = urllib.request.Request(
        f"http://{server.http}{path}", body.encode(), {"Content-Type": "application/json"}
    )
    status, content = server.fetch(probe)
    if status != 200:
        raise RuntimeError(f"{path}: {status} {content[:300]!r}")
    command = [
        "wrk",
        "-t",
        "1",
        "-c",
        str(connections),
        "-d",
        f"{SECONDS}s",
        "--latency",
        "-s",
        str(script),
        f"http://{server.http}{path}",
    ]
    cpu = cpu_seconds(server.pid)
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    cpu = cpu_seconds(server.pid) - cpu
    done = re.search(r"(\d+) requests in", text)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    p50 = re.search(r"50%\s+([\d.]+)(us|ms|s)", text)
    if done is None or rate is None or p50 is None or "Non-2xx" in text:
        raise RuntimeError(text)
    return Result(
        float(rate[1]),
        float(p50[1]) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[p50[2]],
        cpu / int(done[1]) * 1e6,
    )


def run(load: Workload, peers: str, folder: Path) -> dict[str, Result]:
    servers: dict[str, Callable[[], Any]] = {}
    if load.threads > 1:
        servers[f"Naiad, {load.threads} instances"] = lambda: naiad(load, folder, load.threads)
    servers["Naiad" if load.threads == 1 else "Naiad, 1 instance"] = lambda: naiad(load, folder, 1)
    if peers:
        servers |= {
            "MLServer": lambda: mlserver(load, folder, peers, is_batching=False),
            "MLServer, adaptive batching": lambda: mlserver(load, folder, peers, is_batching=True),
            "FastAPI": lambda: fastapi(load, folder, peers),
        }
    rounds: dict[str, list[Result]] = {name: [] for name in servers}
    loops: list[tuple[float, int, float]] = []
    for number in range(ROUNDS):
        loops.append(direct_loop(load))
        for name, start in servers.items():
            with start() as (server, path, body):
                rounds[name].append(measure(server, path, body, load.connections, folder))
            print(f"  round {number + 1} {name}: {rounds[name][-1]}", file=sys.stderr)
        print(f"  round {number + 1} loop: {loops[-1]}", file=sys.stderr)
    rate, batch, cpu_us = statistics.median_low(loops)
    results = {name: _median_round(results) for name, results in rounds.items()}
    return {f"onnxruntime in a loop, batch {batch}": Result(rate, 0.0, cpu_us), **results}


def _median_round(results: list[Result]) -> Result:
    return sorted(results, key=lambda result: result.rate)[len(results) // 2]


def markdown(load: Workload, results: dict[str, Result]) -> str:
    lines = [
        f"**{load.name}**, {load.connections} connections, threads for the model: {load.threads}",
        "",
        "| | inferences/s | p50 ms | CPU us | best of Naiad / this |",
        "|---|---:|---:|---:|---:|",
    ]
    ours = max(result.rate for name, result in results.items() if name.startswith("Naiad"))
    for name, result in results.items():
        p50 = f"{result.p50_ms:.2f}" if result.p50_ms else ""
        cells = (name, figure(result.rate), p50, figure(result.cpu_us), f"{ours / result.rate:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--peers",
        default="",
        help="Python interpreter with mlserver, fastapi, uvicorn, orjson and onnxruntime",
    )
    parser.add_argument(
        "--minilm", type=Path, help="model.onnx of examples/embeddings, which build.py writes"
    )
    parser.add_argument("--only", default="", help="only workloads whose name contains this")
    arguments = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(1, 16)
        loads = [
            Workload("tiny", tiny_model(folder / "tiny.onnx"), {"x": x}, 64, 1, connections)
            for connections in (16, 64)
        ]
        if arguments.minilm:
            tokens = {
                "input_ids": np.arange(1000, 1000 + TOKENS, dtype=np.int64)[None],
                "attention_mask": np.ones((1, TOKENS), np.int64),
            }
            name = f"MiniLM, {TOKENS} tokens"
            loads += [
                Workload(name, arguments.minilm.resolve(), tokens, 32, threads, 32)
                for threads in sorted({1, cores})
            ]
        for number, load in enumerate(loads):
            if arguments.only in load.name:
                place = folder / str(number)
                place.mkdir()
                print(markdown(load, run(load, arguments.peers, place)), flush=True)


if __name__ == "__main__":
    main()
