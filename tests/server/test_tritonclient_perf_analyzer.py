"""NVIDIA's perf_analyzer runs without errors against Naiad: both protocols, streaming, request
rates, and strings. It needs the wheels of bench.oracle."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench import oracle
from tests.server.harness import Endpoints

pytestmark = pytest.mark.skipif(
    not oracle.is_installed(),
    reason="perf_analyzer is not installed: `python -m bench.oracle install` brings it (1.5 GB)",
)
BRIEF = [
    *("--measurement-mode", "count_windows"),
    *("--measurement-request-count", "50"),
    *("--stability-percentage", "999"),
    *("--max-trials", "3"),
]


def run(command: list[str]) -> subprocess.CompletedProcess[str] | None:
    """Returns None if perf_analyzer fails. On a busy machine it sometimes misses its own windows,
    so the caller tries again."""
    try:
        done = subprocess.run(
            command,
            env=oracle.perf_analyzer_environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        print(done.stdout[-2000:] + done.stderr[-1000:])
        return None
    return done


@pytest.mark.parametrize(
    "flags",
    [
        ["-m", "add_sub", "-i", "http", "--concurrency-range", "4"],
        ["-m", "add_sub", "-i", "grpc", "--concurrency-range", "4"],
        ["-m", "add_sub", "-i", "grpc", "--streaming", "--concurrency-range", "4"],
        ["-m", "add_sub", "-i", "grpc", "--async", "--concurrency-range", "8"],
        ["-m", "add_sub", "-i", "http", "--async", "--concurrency-range", "8", "-b", "4"],
        ["-m", "add_sub", "-i", "http", "--request-rate-range", "200"],
        ["-m", "add_sub", "-i", "grpc", "--request-rate-range", "200"],
        ["-m", "identity_bytes", "-i", "http", "--shape", "TEXT:3", "--concurrency-range", "2"],
        ["-m", "identity_fp32", "-i", "grpc", "--shape", "INPUT0:4096", "--concurrency-range", "2"],
        [
            "-m",
            "repeat",
            "-i",
            "grpc",
            "--streaming",
            "--concurrency-range",
            "2",
            "--input-data",
            "COUNT=3",
        ],
    ],
    ids=lambda flags: " ".join(flags[1:]),
)
def test_perf_analyzer(main_server: Endpoints, tmp_path: Path, flags: list[str]) -> None:
    address = main_server.http if "http" in flags else main_server.grpc
    data = tmp_path / "data.json"
    data.write_text('{"data": [{"COUNT": [3]}]}')
    flags = [str(data) if flag == "COUNT=3" else flag for flag in flags]
    command = oracle.perf_analyzer_command([*flags, "-u", address, *BRIEF])
    done = run(command) or run(command)
    assert done is not None, "perf_analyzer failed twice"
    assert "Throughput:" in done.stdout
    assert "error" not in done.stderr.lower()
