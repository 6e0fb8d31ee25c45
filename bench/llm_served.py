"""Measures a language model through the whole server, with streaming clients over gRPC and HTTP.

In:  a shape, and settings for the engine.
Out: rows, which are printed immediately, so that a run that is cut off has shown the first ones.

llm_gpu.py compares the rows with the offline engine on the same device. Both are in the memory of
the device at the same time (their KV caches are bounded), but only one works at a time.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

from bench.llm_checkpoints import write_checkpoint, write_model
from bench.stream_load import Plan, Readings, measure, percentile
from tests.server.harness import Server, free_ports, naiad_command, naiad_environment, port_flags

MODEL = "served"
SHARES = (0.5, 0.9, 0.99)


class ServedRow(msgspec.Struct):
    case: str
    model: str
    protocol: str
    tokens_per_s: float
    requests_per_s: float
    first_token_ms: list[float]
    """Percentiles of SHARES."""
    inter_token_ms: list[float]
    request_ms: list[float]
    late_ms: float
    """Maximum delay between the due time and the send time of a request at a fixed rate."""


class ServedModel:
    """Starts the server immediately; `wait` returns when it is ready."""

    def __init__(
        self, folder: Path, model: str, shape: dict[str, Any], settings: dict[str, object]
    ) -> None:
        self.model = model
        self.rows: list[ServedRow] = []
        self._num_runs = 0
        checkpoint = write_checkpoint(folder / "checkpoint", shape)
        write_model(folder / "repository", MODEL, checkpoint, settings)
        self._started_s = time.monotonic()
        self.server = launch(folder / "repository")
        self.ready_s = 0.0

    def wait(self, limit_s: float) -> None:
        self.server.wait_started(limit_s)
        self.ready_s = time.monotonic() - self._started_s
        print(f"{self.model}: served {self.ready_s:.1f} s after the server's start", flush=True)

    def closed_loop(self, protocol: str, clients: int, **plan: Any) -> ServedRow:
        return self._measure(f"{clients} clients", protocol, clients=clients, **plan)

    def at_rate(self, protocol: str, rate: float, **plan: Any) -> ServedRow:
        return self._measure(f"{rate:g} requests/s", protocol, rate=rate, **plan)

    def _measure(self, case: str, protocol: str, **plan: Any) -> ServedRow:
        port = self.server.http_port if protocol == "http" else self.server.grpc_port
        self._num_runs += 1
        whole = Plan(protocol, port, MODEL, seed=self._num_runs, **plan)
        row = summarize(case, self.model, protocol, measure(whole), whole.window_s)
        print(format_row(row), flush=True)
        self.rows.append(row)
        return row

    def stop(self) -> None:
        self.server.stop()


def launch(repository: Path) -> Server:
    ports = free_ports()
    return Server(
        naiad_command("serve", f"--model-repository={repository}", *port_flags(ports)),
        ports,
        naiad_environment(),
    )


def summarize(
    case: str, model: str, protocol: str, readings: Readings, window_s: float
) -> ServedRow:
    first, between, whole = (
        [percentile(values, share) * 1e3 for share in SHARES]
        for values in (readings.first_token_s, readings.inter_token_s, readings.request_s)
    )
    rate, requests = readings.tokens / window_s, readings.finished / window_s
    return ServedRow(
        case, model, protocol, rate, requests, first, between, whole, readings.late_s * 1e3
    )


def format_row(row: ServedRow) -> str:
    first, between = (
        "/".join(f"{value:.1f}" for value in values)
        for values in (row.first_token_ms, row.inter_token_ms)
    )
    return (
        f"  {row.protocol:4} {row.case:15} {row.tokens_per_s:8.0f} tok/s"
        f" {row.requests_per_s:7.1f} requests/s  "
        f"first token p50/90/99 {first} ms  between tokens {between} ms"
    )
