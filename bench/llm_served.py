"""A language model through the whole server: rates of streaming clients over HTTP and gRPC, beside the offline engine on the same device.

In:  a shape, and the settings that both engines get. Out: rows, printed as they come, so that a run which is cut off has shown the first ones.
The server and the offline engine live side by side in the device's memory (the KV cache is bounded), and only one works at a time.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from bench.llm_checkpoints import write_checkpoint, write_model
from bench.stream_load import Plan, Readings, measure, percentile
from tests.server.harness import Server, free_ports, port_flags

PROTOCOLS = ("grpc", "http")
MODEL = "served"


class ServedRow(msgspec.Struct):
    case: str
    protocol: str
    tokens_per_s: float
    first_token_ms: list[float]
    """p50, p90, p99."""
    inter_token_ms: list[float]
    num_requests: int
    late_ms: float = 0.0


class ServedModel:
    """Started at once; `wait` returns when it can be asked."""

    def __init__(self, folder: Path, shape: dict[str, Any], settings: dict[str, object]) -> None:
        self.started_s = time.monotonic()
        checkpoint = write_checkpoint(folder / "checkpoint", shape)
        write_model(folder / "repository", MODEL, checkpoint, settings)
        self.server = launch(folder / "repository")
        self.ready_s = 0.0
        self._num_runs = 0

    def wait(self, limit_s: float) -> None:
        self.server.wait_started(limit_s)
        self.ready_s = time.monotonic() - self.started_s
        print(f"server: the model is ready {self.ready_s:.1f} s after its start", flush=True)

    def closed_loop(self, protocol: str, plan: dict[str, Any]) -> ServedRow:
        return self._measure(f"{plan['clients']} clients", protocol, plan)

    def at_rate(self, protocol: str, rate: float, plan: dict[str, Any]) -> ServedRow:
        return self._measure(f"{rate:g} requests/s", protocol, plan | {"rate": rate})

    def _measure(self, case: str, protocol: str, plan: dict[str, Any]) -> ServedRow:
        port = self.server.http_port if protocol == "http" else self.server.grpc_port
        self._num_runs += 1
        whole = Plan(protocol, port, MODEL, seed=self._num_runs, **plan)
        try:
            readings = measure(whole)
        except RuntimeError:
            print(self.server.tail(), flush=True)
            raise
        row = summarize(case, protocol, readings, whole.window_s)
        print(format_row(row), flush=True)
        return row

    def stop(self) -> None:
        self.server.stop()


def launch(repository: Path) -> Server:
    ports = free_ports()
    command = [sys.executable, "-c", "from naiad.cli import main; main()", "serve", f"--model-repository={repository}", *port_flags(ports)]
    root = str(Path(__file__).parents[1])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    return Server(command, ports, {**os.environ, "PYTHONPATH": path})


def summarize(case: str, protocol: str, readings: Readings, window_s: float) -> ServedRow:
    first, between = (
        [percentile(values, share) * 1e3 for share in (0.5, 0.9, 0.99)] for values in (readings.first_token_s, readings.inter_token_s)
    )
    return ServedRow(case, protocol, readings.tokens / window_s, first, between, readings.finished, readings.late_s * 1e3)


def format_row(row: ServedRow) -> str:
    first, between = (" / ".join(f"{value:.1f}" for value in values) for values in (row.first_token_ms, row.inter_token_ms))
    late = f"  late {row.late_ms:.1f} ms" if row.late_ms > 1 and "requests/s" in row.case else ""
    return (
        f"  {row.protocol:4} {row.case:16} {row.tokens_per_s:9.1f} tok/s  first token p50/90/99 {first} ms  "
        f"between tokens {between} ms  {row.num_requests} requests{late}"
    )
