"""What `naiad router` costs: CPU per small request, and latency compared with a direct request.

    python -m bench.router_cost [--requests 4000] [--replicas 1] [--clients 16]

One run starts servers and a router. Direct and routed requests alternate on one client connection
each, so that what else the machine does meets both. CPU is what the router's process has used, in
nanoseconds of the scheduler, with `--clients` requests at a time. Goals: under 40 us of CPU per
request, and p50 at most 150 us above direct.
"""

from __future__ import annotations

import argparse
import select
import socket
import statistics
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    servers: list[Server] = []
    try:
        servers = [
            launch_naiad([str(REPOSITORY)]).wait_started() for _ in range(arguments.replicas)
        ]
        ports = free_ports()
        flags = [f"--replica=http://{s.http},grpc={s.grpc}" for s in servers]
        command = naiad_command("router", *port_flags(ports), *flags)
        router = Server(command, ports, naiad_environment())
        servers.append(router)
        router.wait_started()
        while router.get("/v2/models/add_sub/ready")[0] != 200:
            time.sleep(0.1)
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
