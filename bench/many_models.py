"""Measures a repository of many small Python models: time to ready, memory of the process tree, and
the cost of a request.

The models are copies of add_sub. Each server runs alone, first with one model and then with all.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.load import Figures, perf_analyzer
from bench.process_tree import MIB, memory_bytes, num_processes
from bench.table import Row
from tests.server.harness import Server

MODEL = Path(__file__).parent / "repository" / "add_sub"
START_LIMIT_S = 600.0
Launch = Callable[[str, str], Server]


def write_repository(folder: Path, count: int) -> None:
    for number in range(count):
        shutil.copytree(MODEL, folder / f"model_{number:03}")
        config = folder / f"model_{number:03}" / "config.pbtxt"
        config.write_text(config.read_text().replace('"add_sub"', f'"model_{number:03}"'))


def measure(count: int, launch: Launch) -> list[Row]:
    results = {
        (name, models): one_server(name, models, launch)
        for models in (1, count)
        for name in ("triton", "naiad")
    }
    made = [
        Row(
            f"{count} models: time to ready",
            results["naiad", count][0],
            results["triton", count][0],
            "s",
            "<= 0.3",
        ),
        Row(
            f"{count} models: memory (PSS)",
            results["naiad", count][1] / MIB,
            results["triton", count][1] / MIB,
            "MiB",
            "<= 0.7",
        ),
    ]
    for models in (1, count):
        ours, theirs = results["naiad", models][2], results["triton", models][2]
        if ours is not None and theirs is not None:
            made.append(
                Row(
                    f"{models} models: add_sub grpc c=16",
                    ours.infer_per_s,
                    theirs.infer_per_s,
                    "infer/s",
                )
            )
            made.append(
                Row(
                    f"{models} models: add_sub grpc c=16",
                    ours.cpu_us,
                    theirs.cpu_us,
                    "us CPU / infer",
                )
            )
    return made


def one_server(name: str, count: int, launch: Launch) -> tuple[float, int, Figures | None]:
    """Returns the seconds to ready, the PSS when ready, and the figures of one of the models."""
    with tempfile.TemporaryDirectory(prefix="naiad-bench-") as folder:
        write_repository(Path(folder), count)
        start = time.monotonic()
        server = launch(name, folder)
        try:
            server.wait_started(START_LIMIT_S)
            ready_s = time.monotonic() - start
            pss = memory_bytes(server.pid)["Pss"]
            print(
                f"{name} {count} models: ready in {ready_s:.1f} s, PSS {pss / MIB:.0f} MiB,"
                f" {num_processes(server.pid)} processes",
                file=sys.stderr,
                flush=True,
            )
            figures = perf_analyzer(server, "model_000", "grpc", 16, []) or perf_analyzer(
                server, "model_000", "grpc", 16, []
            )
        finally:
            server.stop(120)
    return ready_s, pss, figures
