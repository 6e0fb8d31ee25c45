"""What `naiad router` costs: CPU per small request, and latency compared with a direct request.

    python -m bench.router_cost [--requests 4000] [--replicas 1] [--clients 16]
    python -m bench.router_cost --scale 4

One run starts servers and a router. Direct and routed requests alternate on one client connection
each, so that what else the machine does meets both. CPU is what the router's process has used, in
nanoseconds of the scheduler, with `--clients` requests at a time. Goals: under 40 us of CPU per
request, and p50 at most 150 us above direct.

`--scale N` compares the requests per second of one server with those of N behind a router, for a
model that computes for a millisecond. It needs a core for each server and each worker. Goal: at
least 3.4 times for 4.
"""

from __future__ import annotations

import argparse
import json
import select
import shutil
import socket
import statistics
import tempfile
import time
from pathlib import Path

from bench.raw_client import response_length, small_request
from tests.server.harness import (
    Server,
    free_ports,
    launch_naiad,
    naiad_command,
    naiad_environment,
    port_flags,
)

REPOSITORY = Path(__file__).parent / "repository"
CPU_GOAL_US = 40.0
LATENCY_GOAL_US = 150.0


def cpu_ns(pid: int) -> int:
    """The CPU time of all threads of a process."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir())


def connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def latencies_us(ports: list[int], count: int) -> list[list[float]]:
    """Sends `count` requests to each port, alternating; returns the latencies by port."""
    request = small_request()
    connections = [connect(port) for port in ports]
    lengths = [response_length(connection, request) for connection in connections]
    found: list[list[float]] = [[] for _ in ports]
    for _ in range(count):
        for connection, length, times in zip(connections, lengths, found, strict=True):
            start = time.perf_counter_ns()
            connection.sendall(request)
            received = 0
            while received < length:
                received += len(connection.recv(1 << 16))
            times.append((time.perf_counter_ns() - start) / 1e3)
    for connection in connections:
        connection.close()
    return found


def load(port: int, count: int, num_clients: int) -> float:
    """Keeps `num_clients` requests under way; returns requests per second."""
    request = small_request()
    connections = [connect(port) for _ in range(num_clients)]
    lengths = {c: response_length(c, request) for c in connections}
    left = dict(lengths)
    num_sent = num_done = 0
    poll = select.epoll()
    by_number = {c.fileno(): c for c in connections}
    start_s = time.perf_counter()
    for connection in connections:
        poll.register(connection.fileno(), select.EPOLLIN)
        connection.sendall(request)
        num_sent += 1
    while num_done < count:
        for number, _ in poll.poll():
            connection = by_number[number]
            left[connection] -= len(connection.recv(1 << 16))
            if left[connection] == 0:
                left[connection] = lengths[connection]
                num_done += 1
                if num_sent < count:
                    connection.sendall(request)
                    num_sent += 1
    seconds = time.perf_counter() - start_s
    for connection in connections:
        connection.close()
    return count / seconds


def start_router(replicas: list[Server]) -> Server:
    """Returns when the router knows that all replicas are ready."""
    ports = free_ports()
    flags = [f"--replica=http://{server.http},grpc={server.grpc}" for server in replicas]
    router = Server(
        naiad_command("router", *port_flags(ports), *flags), ports, naiad_environment()
    ).wait_started()
    while True:
        rows = json.loads(router.get("/router/replicas")[1])["replicas"]
        if all(row["state"] == "ready" for row in rows):
            return router
        time.sleep(0.1)


def busy_repository(folder: Path) -> Path:
    """The model add_sub, which computes for a millisecond."""
    shutil.copytree(REPOSITORY / "add_sub", folder / "add_sub")
    code = folder / "add_sub" / "1" / "model.py"
    text = code.read_text()
    marker = "    def execute(self, requests):\n"
    if marker not in text:
        raise RuntimeError(f"{code} has no execute")
    loop = "        import time\n        end = time.thread_time() + 0.001 * len(requests)\n"
    wait = "        while time.thread_time() < end:\n            pass\n"
    code.write_text(text.replace(marker, marker + loop + wait))
    return folder


def scale(num_replicas: int, num_requests: int, num_clients: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        repository = busy_repository(Path(folder))
        servers = [launch_naiad([str(repository)]) for _ in range(num_replicas)]
        try:
            for server in servers:
                server.wait_started()
            servers.append(start_router(servers))
            ports = [servers[0].http_port, servers[-1].http_port]
            one, many = (
                max(load(port, count, clients) for _ in range(3))
                for port, count, clients in (
                    (ports[0], num_requests, num_clients),
                    (ports[1], num_requests * num_replicas, num_clients * num_replicas),
                )
            )
            print(
                f"1 server: {one:.0f} requests/s; {num_replicas} behind a router: {many:.0f}, "
                f"{many / one:.2f} times (goal >= 3.4 for 4)"
            )
        finally:
            for server in reversed(servers):
                server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.scale:
        scale(arguments.scale, arguments.requests, arguments.clients)
        return
    servers: list[Server] = []
    try:
        servers = [
            launch_naiad([str(REPOSITORY)]).wait_started() for _ in range(arguments.replicas)
        ]
        router = start_router(servers)
        servers.append(router)
        direct_port = servers[0].http_port
        latencies_us([direct_port, router.http_port], 500)  # warm-up
        direct, routed = latencies_us([direct_port, router.http_port], arguments.requests)
        p50 = [statistics.median(direct), statistics.median(routed)]
        fastest = [min(direct), min(routed)]
        costs, rates = [], []
        for _ in range(arguments.rounds):
            before = cpu_ns(router.pid)
            rates.append(load(router.http_port, arguments.requests, arguments.clients))
            costs.append((cpu_ns(router.pid) - before) / 1e3 / arguments.requests)
        print(f"p50 at c=1: direct {p50[0]:.0f} us, routed {p50[1]:.0f} us", end="")
        print(f", difference {p50[1] - p50[0]:.0f} us (goal <= {LATENCY_GOAL_US:.0f})")
        print(f"minimum at c=1: direct {fastest[0]:.0f} us, routed {fastest[1]:.0f} us")
        print(
            f"router CPU per request at c={arguments.clients}: median "
            f"{statistics.median(costs):.1f} us, minimum {min(costs):.1f} us "
            f"(goal < {CPU_GOAL_US:.0f}); {max(rates):.0f} requests/s"
        )
    finally:
        for server in reversed(servers):
            server.stop()


if __name__ == "__main__":
    main()
