"""What serving costs a token: the whole server and 64 streaming clients around an engine whose device is only a clock (bench/paced.py).

    python -m bench.llm_path                      at the pace of an H200 (5.8 ms a step), then as fast as the host can
    python -m bench.llm_path --step-us 0 --protocol grpc

Prints tokens per second and the CPU microseconds per token of the server process, of the worker and of the clients. Needs torch.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench.llm_checkpoints import write_checkpoint
from bench.llm_shapes import SHAPES
from bench.process_tree import TICKS_PER_S
from bench.stream_load import START_S, Plan, measure, percentile
from tests.server.harness import Server, free_ports, port_flags, process_tree

CONFIG = """
backend: "paced"
model_transaction_policy {{ decoupled: true }}
input [
  {{ name: "text_input" data_type: TYPE_STRING dims: [1] }},
  {{ name: "stream" data_type: TYPE_BOOL dims: [1] optional: true }}
]
output [ {{ name: "text_output" data_type: TYPE_STRING dims: [-1] }}, {{ name: "finish_reason" data_type: TYPE_STRING dims: [-1] }} ]
parameters {{ key: "PACED_CHECKPOINT" value: {{ string_value: "{checkpoint}" }} }}
parameters {{ key: "STEP_US" value: {{ string_value: "{step_us}" }} }}
parameters {{ key: "GRAPH_US" value: {{ string_value: "{graph_us}" }} }}
parameters {{ key: "LAUNCH_US" value: {{ string_value: "{launch_us}" }} }}
"""


def write_repository(folder: Path, paces: list[int]) -> Path:
    checkpoint = write_checkpoint(folder / "checkpoint", SHAPES["llama-3.1-8b"])
    for step_us in paces:
        (folder / "repository" / f"paced{step_us}" / "1").mkdir(parents=True)
        graph_us, launch_us = (200, 1500) if step_us else (0, 0)
        text = CONFIG.format(checkpoint=checkpoint, step_us=step_us, graph_us=graph_us, launch_us=launch_us)
        (folder / "repository" / f"paced{step_us}" / "config.pbtxt").write_text(text)
    package = folder / "packages" / "paced-0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: paced\nVersion: 0\n")
    (package / "entry_points.txt").write_text("[naiad.backends]\npaced = bench.paced:PacedBackend\n")
    return folder


def start(folder: Path) -> Server:
    ports = free_ports()
    command = [sys.executable, "-c", "from naiad.cli import main; main()", "serve", f"--model-repository={folder / 'repository'}"]
    path = os.pathsep.join([str(Path(__file__).parents[1]), str(folder / "packages"), os.environ.get("PYTHONPATH", "")])
    return Server([*command, *port_flags(ports)], ports, {**os.environ, "PYTHONPATH": path}).wait_started()


def cpu_by_process(pid: int) -> dict[str, float]:
    """Name -> CPU seconds of the server and its descendants."""
    found: dict[str, float] = {}
    for member in process_tree(pid):
        text = Path(f"/proc/{member}/stat").read_text()
        name = "server" if member == pid else text[text.find("(") + 1 : text.rfind(")")]
        fields = text.rsplit(")", 1)[1].split()
        found[name] = found.get(name, 0.0) + (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    return found


def show(server: Server, protocol: str, step_us: int, window_s: float) -> None:
    model = f"paced{step_us}"
    port = server.http_port if protocol == "http" else server.grpc_port
    plan = Plan(protocol, port, model, window_s=window_s, seed=random.randrange(1 << 30))
    marks: list[dict[str, float]] = []

    def mark() -> None:
        time.sleep(START_S + plan.warm_s)
        marks.append(cpu_by_process(server.pid))
        time.sleep(plan.window_s)
        marks.append(cpu_by_process(server.pid))

    watcher = threading.Thread(target=mark)
    watcher.start()
    readings = measure(plan)
    watcher.join()
    spent = {name: seconds - marks[0].get(name, 0.0) for name, seconds in marks[1].items()}
    worker_s = sum(seconds for name, seconds in spent.items() if name != "server")
    tokens = max(1, readings.tokens)
    p50_ms, p99_ms = (percentile(readings.inter_token_s, share) * 1e3 for share in (0.5, 0.99))
    print(
        f"{protocol:5} step {step_us:5} us  {tokens / window_s:8.0f} tok/s  server {spent['server'] / tokens * 1e6:6.1f}  "
        f"worker {worker_s / tokens * 1e6:6.1f}  clients {readings.cpu_s / tokens * 1e6:6.1f} us/token  "
        f"first token {percentile(readings.first_token_s, 0.5) * 1e3:.1f} ms  "
        f"between tokens p50 {p50_ms:.2f} p99 {p99_ms:.2f} ms",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-us", type=int, action="append")
    parser.add_argument("--protocol", action="append", choices=["http", "grpc"])
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    paces = arguments.step_us or [5800, 0]
    with tempfile.TemporaryDirectory() as folder:
        server = start(write_repository(Path(folder), paces))
        try:
            for step_us in paces:
                for protocol in arguments.protocol or ["grpc", "http"]:
                    show(server, protocol, step_us, arguments.seconds)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
