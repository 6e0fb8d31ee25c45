"""Counts failures and leaks of 100 reloads under load, 50 loads and unloads, and 50 failing loads.

    python -m bench.reloads

tests/server/test_reload.py and test_model_control.py assert the same; this prints the figures for
RESULTS.md.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from bench.process_tree import MIB, memory_bytes, num_processes
from tests.server.harness import Server, naiad
from tests.server.model_folder import Control, model_code, put, write_ensemble, write_model
from tests.server.test_reload import Load

RELOADS, CYCLES = 100, 50


def reloads(server: Server, control: Control, repository: Path) -> str:
    write_model(repository, "m", "0")
    write_ensemble(repository, "e", "m")
    control.load("e")
    took: list[float] = []
    with Load(server, ["m", "e"]) as load:
        for number in range(1, RELOADS + 1):
            put(repository / "m" / "1" / "model.py", model_code(str(number)))
            start = time.monotonic()
            status, message = control.load("m")
            took.append(time.monotonic() - start)
            if status != 200:
                load.failures.append(message)
    took.sort()
    result = f"{load.num_answers:,} responses, {len(load.failures)} failures"
    median_ms = took[len(took) // 2] * 1000
    return f"| {RELOADS} reloads, 4 clients | {result} | {median_ms:.0f} ms median reload |"


def cycles(server: Server, control: Control, repository: Path, initialize: str, what: str) -> str:
    write_model(repository, "c", initialize=initialize)

    def cycle(count: int) -> None:
        for _ in range(count):
            control.load("c")
            control.unload("c")
            while any(
                state in ("LOADING", "UNLOADING", "READY") for _, _, state, _ in control.index("c")
            ):
                pass

    cycle(5)
    before = (
        memory_bytes(server.pid)["Anonymous"],
        num_processes(server.pid),
        len(os.listdir(f"/proc/{server.pid}/fd")),
    )
    cycle(CYCLES)
    after = (
        memory_bytes(server.pid)["Anonymous"],
        num_processes(server.pid),
        len(os.listdir(f"/proc/{server.pid}/fd")),
    )
    memory, processes, descriptors = (now - then for now, then in zip(after, before, strict=True))
    grown = f"{memory / MIB:+.2f} MiB of {before[0] / MIB:.1f}"
    return f"| {CYCLES} {what} | {grown} | {processes:+d} processes, {descriptors:+d} descriptors |"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder)
        with naiad([folder], ["--model-control-mode=explicit"]) as server:
            control = Control(server)
            lines = [
                reloads(server, control, repository),
                cycles(
                    server,
                    control,
                    repository,
                    "self.weights = np.ones(4_000_000)",
                    "loads and unloads of 32 MB",
                ),
                cycles(
                    server,
                    control,
                    repository,
                    "x = np.ones(4_000_000); raise ValueError('no')",
                    "loads that fail",
                ),
            ]
    print("| what | result | |\n|---|---|---|\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
