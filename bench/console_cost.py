"""What the console costs a server: idle, and with ten pages open while add_sub is under load.

In:  nothing; it starts the servers. Out: CPU and memory of an idle server with and without the
     console, and the ratio of throughput and of CPU per request with and without ten pages, in
     turns on one server.
Use: `python -m bench.console_cost [--seconds 4] [--rounds 6] [--idle 60]`. On a machine that others
     use, compare the CPU per request: it is the server process's own time.
"""

from __future__ import annotations

import argparse
import http.client
import os
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench.raw_client import send_many, small_request
from naiad.console.process_reading import read_process
from tests.server.harness import Server, naiad

REPOSITORY = str(Path(__file__).parent / "repository")
OPTIONS = ["--model-control-mode=explicit", "--load-model=add_sub"]
NUM_PAGES = 10
CONNECTIONS, DEPTH = 16, 1
MAX_IDLE_CORE = 0.005
MAX_IDLE_BYTES = 5_000_000
MAX_LOSS = 0.03


class Idle(msgspec.Struct, frozen=True):
    core: float
    """Part of a core that the server process uses."""
    memory_bytes: int


class Load(msgspec.Struct, frozen=True):
    requests_per_s: float
    cpu_us: float
    """CPU time of the server process per request."""


def cpu_ns(pid: int) -> int:
    """Finer than the ticks of /proc/PID/stat; the main thread runs the event loop."""
    return sum(
        int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0])
        for thread in os.listdir(f"/proc/{pid}/task")
    )


def measure_idle(server: Server, seconds: float) -> Idle:
    time.sleep(3)  # the start is over
    before = cpu_ns(server.pid)
    time.sleep(seconds)
    used_s = (cpu_ns(server.pid) - before) / 1e9
    return Idle(used_s / seconds, read_process(server.pid).memory_bytes)


@contextmanager
def open_pages(server: Server, count: int) -> Iterator[None]:
    """Connections that read the events as fast as a browser does."""
    connections = [http.client.HTTPConnection(server.http, timeout=30) for _ in range(count)]
    threads = []
    for connection in connections:
        connection.request("GET", "/console/api/events")
        response = connection.getresponse()
        assert response.status == 200
        threads.append(threading.Thread(target=read_all, args=(response,), daemon=True))
        threads[-1].start()
    try:
        yield
    finally:
        for connection in connections:
            if connection.sock is not None:
                connection.sock.shutdown(2)
        for thread in threads:
            thread.join()


def read_all(response: http.client.HTTPResponse) -> None:
    try:
        while response.readline():
            pass
    except (OSError, ValueError, http.client.HTTPException):
        pass


def measure_load(server: Server, count: int) -> Load:
    port = int(server.http.rpartition(":")[2])
    before, start_s = cpu_ns(server.pid), time.monotonic()
    send_many(port, small_request(), count, CONNECTIONS, DEPTH)
    seconds = time.monotonic() - start_s
    return Load(count / seconds, (cpu_ns(server.pid) - before) / count / 1000)


def measure_turns(seconds: float, rounds: int) -> dict[str, list[Load]]:
    """Without and with pages, in turns; the order changes from round to round."""
    with naiad([REPOSITORY], [*OPTIONS, "--console=true"]) as server:
        rate = measure_load(server, 2000).requests_per_s
        count = int(rate * seconds)
        loads: dict[str, list[Load]] = {"closed": [], "open": []}
        for number in range(rounds):
            for name in ("closed", "open")[:: 1 if number % 2 else -1]:
                with open_pages(server, NUM_PAGES if name == "open" else 0):
                    loads[name].append(measure_load(server, count))
        return loads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one load")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--idle", type=float, default=60.0, help="seconds to be idle")
    options = parser.parse_args()
    idle = {}
    for name in ("false", "true"):
        with naiad([REPOSITORY], [*OPTIONS, f"--console={name}"]) as server:
            idle[name] = measure_idle(server, options.idle)
            print(
                f"idle, --console={name:5}  {idle[name].core:.3%} of a core,"
                f" {idle[name].memory_bytes / 1e6:.1f} MB"
            )
    core = idle["true"].core - idle["false"].core
    memory = idle["true"].memory_bytes - idle["false"].memory_bytes
    print(
        f"the idle console costs {core:.3%} of a core (limit {MAX_IDLE_CORE:.1%}) and"
        f" {memory / 1e6:.1f} MB (limit {MAX_IDLE_BYTES / 1e6:.0f} MB)"
    )
    loads = measure_turns(options.seconds, options.rounds)
    for name, rounds in loads.items():
        rates = statistics.median(load.requests_per_s for load in rounds)
        cpu = min(load.cpu_us for load in rounds)
        print(f"pages {name:6}  {rates:9,.0f} requests/s, {cpu:.2f} us of CPU each at least")
    pairs = list(zip(loads["closed"], loads["open"], strict=True))
    rate = statistics.median(new.requests_per_s / old.requests_per_s for old, new in pairs)
    cost = statistics.median(new.cpu_us / old.cpu_us for old, new in pairs)
    print(
        f"ten pages: {rate - 1:+.1%} requests/s (limit {-MAX_LOSS:.0%}),"
        f" {cost - 1:+.1%} CPU per request"
    )


if __name__ == "__main__":
    main()
