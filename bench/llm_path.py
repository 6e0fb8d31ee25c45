"""Measures the cost of serving a token: the whole server and 64 streaming clients around an engine
whose device is only a clock (bench/paced.py).

    python -m bench.llm_path
        Runs at the pace of an H200 (5.07 ms per step), then as fast as the host can.
    python -m bench.llm_path --step-us 0 --protocol grpc

Prints the tokens per second, also relative to the same engine in a loop without a server and with
the same number of requests; the share of time in which the clock ran, and the rows per step; and
the CPU microseconds per token of the server process, the worker and the clients. The client
processes need their own CPUs, otherwise they slow down the server. Requires torch.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.llm_checkpoints import write_checkpoint
from bench.llm_shapes import SHAPES
from bench.paced import PacedRunner, build_engine
from bench.process_tree import TICKS_PER_S
from bench.stream_load import START_S, Plan, measure, percentile
from naiad.llm.checkpoint.folder import open_folder, read_tokenizer
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.generation import GenerationRequest
from naiad.llm.parameters import SamplingParameters
from tests.server.harness import (
    Server,
    free_ports,
    naiad_command,
    naiad_environment,
    port_flags,
    process_tree,
)

CLIENTS, NUM_IN, NUM_OUT = 64, 128, 128
CONFIG = """
backend: "paced"
model_transaction_policy {{ decoupled: true }}
input [
  {{ name: "text_input" data_type: TYPE_STRING dims: [1] }},
  {{ name: "stream" data_type: TYPE_BOOL dims: [1] optional: true }}
]
output [
  {{ name: "text_output" data_type: TYPE_STRING dims: [-1] }},
  {{ name: "finish_reason" data_type: TYPE_STRING dims: [-1] }}
]
parameters {{ key: "PACED_CHECKPOINT" value: {{ string_value: "{checkpoint}" }} }}
parameters {{ key: "STEP_US" value: {{ string_value: "{step_us}" }} }}
parameters {{ key: "GRAPH_US" value: {{ string_value: "{graph_us}" }} }}
parameters {{ key: "LAUNCH_US" value: {{ string_value: "{launch_us}" }} }}
parameters {{ key: "PACED_READINGS" value: {{ string_value: "{readings}" }} }}
"""


def write_repository(folder: Path, paces: list[int], launch_us: int) -> Path:
    checkpoint = write_checkpoint(folder / "checkpoint", SHAPES["llama-3.1-8b"])
    for step_us in paces:
        (folder / "repository" / f"paced{step_us}" / "1").mkdir(parents=True)
        readings = folder / f"readings{step_us}"
        np.zeros(3).tofile(readings)
        graph_us, busy_us = launch_costs(step_us, launch_us)
        text = CONFIG.format(
            checkpoint=checkpoint,
            step_us=step_us,
            graph_us=graph_us,
            launch_us=busy_us,
            readings=readings,
        )
        (folder / "repository" / f"paced{step_us}" / "config.pbtxt").write_text(text)
    package = folder / "packages" / "paced-0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: paced\nVersion: 0\n")
    (package / "entry_points.txt").write_text(
        "[naiad.backends]\npaced = bench.paced:PacedBackend\n"
    )
    return folder


def launch_costs(step_us: int, launch_us: int) -> tuple[int, int]:
    return (200, launch_us) if step_us else (0, 0)


def alone(folder: Path, step_us: int, launch_us: int, seconds: float) -> float:
    """Returns the tokens per second of the engine in a loop, with 64 concurrent requests."""
    checkpoint = open_folder(folder / "checkpoint")
    vocab_size = int(checkpoint.config["vocab_size"])
    graph_us, busy_us = launch_costs(step_us, launch_us)
    costs = {"step_us": step_us, "graph_us": graph_us, "launch_us": busy_us}
    engine = build_engine(
        PacedRunner(costs.get, vocab_size), read_tokenizer(checkpoint), vocab_size, EngineSettings()
    )

    def submit(number: int, num_out: int) -> None:
        parameters = SamplingParameters(temperature=0.6, max_tokens=num_out, ignore_eos=True)
        prompt = [random.randrange(vocab_size) for _ in range(NUM_IN)]
        engine.submit(GenerationRequest(id=str(number), prompt=prompt, parameters=parameters))

    for number in range(CLIENTS):
        submit(number, random.randint(1, NUM_OUT))
    number, tokens, begin_s = CLIENTS, 0, time.monotonic() + 1.0
    while (now_s := time.monotonic()) < begin_s + seconds:
        for output in engine.step():
            tokens += len(output.token_ids) if now_s >= begin_s else 0
            if output.finish_reason is not None:
                submit(number, NUM_OUT)
                number += 1
    return tokens / seconds


def start(folder: Path) -> Server:
    ports = free_ports()
    command = naiad_command(
        "serve", f"--model-repository={folder / 'repository'}", *port_flags(ports)
    )
    path = os.pathsep.join([str(folder / "packages"), os.environ.get("PYTHONPATH", "")])
    return Server(command, ports, naiad_environment({"PYTHONPATH": path})).wait_started()


def cpu_by_process(pid: int) -> dict[str, float]:
    """Returns the CPU seconds of the server and its descendants, by name."""
    seconds: dict[str, float] = {}
    for member in process_tree(pid):
        text = Path(f"/proc/{member}/stat").read_text()
        name = "server" if member == pid else text[text.find("(") + 1 : text.rfind(")")]
        fields = text.rsplit(")", 1)[1].split()
        ticks = int(fields[11]) + int(fields[12])
        seconds[name] = seconds.get(name, 0.0) + ticks / TICKS_PER_S
    return seconds


def show(
    server: Server, folder: Path, protocol: str, step_us: int, window_s: float, alone_rate: float
) -> None:
    model = f"paced{step_us}"
    port = server.http_port if protocol == "http" else server.grpc_port
    plan = Plan(
        protocol,
        port,
        model,
        CLIENTS,
        NUM_IN,
        NUM_OUT,
        window_s=window_s,
        seed=random.randrange(1 << 30),
    )
    marks: list[dict[str, float]] = []
    clock: list[NDArray[np.float64]] = []
    readings_file = folder / f"readings{step_us}"

    def mark() -> None:
        time.sleep(START_S + plan.warm_s)
        for wait_s in (plan.window_s, 0.0):
            marks.append(cpu_by_process(server.pid))
            clock.append(np.fromfile(readings_file))
            time.sleep(wait_s)

    watcher = threading.Thread(target=mark)
    watcher.start()
    readings = measure(plan)
    watcher.join()
    spent = {name: seconds - marks[0].get(name, 0.0) for name, seconds in marks[1].items()}
    worker_s = sum(seconds for name, seconds in spent.items() if name != "server")
    tokens = max(1, readings.tokens)
    p50_ms, p99_ms = (percentile(readings.inter_token_s, share) * 1e3 for share in (0.5, 0.99))
    steps, rows, busy_s = clock[1] - clock[0]
    rate = tokens / window_s
    print(
        f"{protocol:5} step {step_us:5} us  {rate:8.0f} tok/s  "
        f"{rate / alone_rate:6.1%} of the engine alone  "
        f"device busy {busy_s / window_s:.1%}, {rows / max(1, steps):.1f} rows per step  "
        f"server {spent['server'] / tokens * 1e6:6.1f}  worker {worker_s / tokens * 1e6:6.1f}  "
        f"clients {readings.cpu_s / tokens * 1e6:6.1f} us/token  "
        f"first token {percentile(readings.first_token_s, 0.5) * 1e3:.1f} ms  "
        f"between tokens p50 {p50_ms:.2f} p99 {p99_ms:.2f} ms",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--step-us", type=int, action="append")
    parser.add_argument("--protocol", action="append", choices=["http", "grpc"])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument(
        "--launch-us",
        type=int,
        default=8000,
        help="microseconds to launch a step that contains prompts",
    )
    arguments = parser.parse_args()
    paces = arguments.step_us or [5070, 0]
    with tempfile.TemporaryDirectory() as name:
        folder = write_repository(Path(name), paces, arguments.launch_us)
        rates = {
            step_us: alone(folder, step_us, arguments.launch_us, arguments.seconds)
            for step_us in paces
        }
        for step_us, rate in rates.items():
            print(f"engine alone, step {step_us:5} us  {rate:8.0f} tok/s", flush=True)
        server = start(folder)
        try:
            for step_us in paces:
                for protocol in arguments.protocol or ["grpc", "http"]:
                    show(server, folder, protocol, step_us, arguments.seconds, rates[step_us])
        finally:
            server.stop()


if __name__ == "__main__":
    main()
