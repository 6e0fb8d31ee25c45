"""Kills replicas behind a router, under load. No request that may be sent again is lost.

    python -m tests.attacks.router_kills --requests 10000 --kills 20 [--seed 7]

Two servers and a router with its defaults. Clients over HTTP and gRPC check every response. One
server at a time is killed with SIGKILL, with all its processes, and started again; the next kill
comes when both are ready. The rule: every request gets the right response.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from tests.server.router_fleet import Fleet, fleet, infer_body, read_outputs, write_repository

REQUEST_LIMIT_S = 60.0
NUM_HTTP_CLIENTS = 6
NUM_GRPC_CLIENTS = 2


class Outcome(msgspec.Struct):
    num_requests: int
    num_kills: int
    failures: list[str]
    served: dict[str, int]
    counters: dict[str, float]


class Load:
    """Clients that send requests until `stop`, at least `num_requests` of them."""

    def __init__(self, router_http: int, router_grpc: int, num_requests: int) -> None:
        self.num_sent = 0
        self.failures: list[str] = []
        self.served: Counter[str] = Counter()
        self._http_port, self._grpc_port = router_http, router_grpc
        self._num_requests = num_requests
        self._lock = threading.Lock()
        self._is_stopping = False
        kinds = [self._send_http] * NUM_HTTP_CLIENTS + [self._send_grpc] * NUM_GRPC_CLIENTS
        self._threads = [threading.Thread(target=kind, daemon=True) for kind in kinds]
        for thread in self._threads:
            thread.start()

    def _next(self) -> int | None:
        with self._lock:
            if self._is_stopping and self.num_sent >= self._num_requests:
                return None
            self.num_sent += 1
            return self.num_sent

    def _note(self, value: int, found: tuple[int, str] | str) -> None:
        with self._lock:
            if isinstance(found, str):
                self.failures.append(f"request {value}: {found}")
            elif found[0] != value + 1:
                self.failures.append(f"request {value}: the response is {found[0]}")
            else:
                self.served[found[1]] += 1

    def _send_http(self) -> None:
        connection = http.client.HTTPConnection(
            "127.0.0.1", self._http_port, timeout=REQUEST_LIMIT_S
        )
        while (value := self._next()) is not None:
            try:
                connection.request(
                    "POST", "/v2/models/plus_one/infer", json.dumps(infer_body(value))
                )
                response = connection.getresponse()
                body = response.read()
                self._note(
                    value,
                    read_outputs(body)
                    if response.status == 200
                    else f"status {response.status}: {body.decode()[:200]}",
                )
            except (OSError, http.client.HTTPException) as error:
                self._note(value, f"{type(error).__name__}: {error}")
                connection.close()
        connection.close()

    def _send_grpc(self) -> None:
        client = grpc_client.InferenceServerClient(f"127.0.0.1:{self._grpc_port}")
        while (value := self._next()) is not None:
            tensor = grpc_client.InferInput("X", [1], "INT32")
            tensor.set_data_from_numpy(np.array([value], np.int32))
            try:
                result = client.infer("plus_one", [tensor], client_timeout=REQUEST_LIMIT_S)
                who = result.as_numpy("WHO")[0].decode()
                self._note(value, (int(result.as_numpy("Y")[0]), who))
            except InferenceServerException as error:
                self._note(value, f"gRPC {error}")
        client.close()

    def stop(self) -> None:
        self._is_stopping = True
        for thread in self._threads:
            thread.join(REQUEST_LIMIT_S * 2)
            if thread.is_alive():
                self.failures.append("a client has got no response")


def attack(one: Fleet, num_requests: int, num_kills: int, seed: int) -> Outcome:
    chance = random.Random(seed)
    router = one.router
    load = Load(router.http_port, router.grpc_port, num_requests)
    for number in range(num_kills):
        time.sleep(chance.uniform(0.05, 0.3))
        name = chance.choice(("a", "b"))
        one.kill(name)
        # The router may not know yet that it is gone, so its word alone is not enough.
        one.start(name).wait_started()
        one.wait_ready("a", "b")
        if num_kills > 5:
            print(f"kill {number + 1}: {load.num_sent} requests, {len(load.failures)} failures")
            sys.stdout.flush()
    load.stop()
    page = router.get("/metrics", "metrics")[1].decode()
    counters = {
        line.split()[0]: float(line.split()[1])
        for line in page.splitlines()
        if line.startswith(("naiad_router_retries_total", "naiad_router_failures_total"))
    }
    return Outcome(load.num_sent, num_kills, load.failures, dict(load.served), counters)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        repository = write_repository(Path(folder) / "repository")
        with fleet(repository, "a", "b") as one:
            outcome = attack(one, arguments.requests, arguments.kills, arguments.seed)
    print(
        f"{outcome.num_requests} requests, {outcome.num_kills} kills, "
        f"{len(outcome.failures)} failures; served {outcome.served}; {outcome.counters}"
    )
    for failure in outcome.failures[:20]:
        print(failure)
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
