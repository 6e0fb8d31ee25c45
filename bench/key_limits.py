"""64 clients at once against each limit of a key, on a real server and a real clock.

In:  which limits, and the number of minutes for limits per minute. Out: for each limit the work
     that was admitted and what the limit allows. The exit code is 1 if they differ by more than 2%.
Use: `python -m bench.key_limits [--limits rpm,parallel,tpm,day] [--minutes 1]`. tpm and day need a
     language model: `naiad pull smollm2`, and naiad[openvino-llm].
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import msgspec

from tests.server.harness import Server, naiad, naiad_command, naiad_environment

NUM_CLIENTS = 64
RPM = 300
PARALLEL = 8
PARALLEL_S = 20.0
SLEEP_S = 0.25
TPM = 800
PER_DAY = 2000
SLEEPER = f"""
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep({SLEEP_S})
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(request, "X").as_numpy())]
            )
            for request in requests
        ]
"""
CONFIG = f"""
backend: "python"
max_batch_size: 0
input [ {{ name: "X" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: {2 * PARALLEL} }} ]
"""


class Call(msgspec.Struct, frozen=True):
    method: str
    path: str
    body: str = ""


class Result(msgspec.Struct, frozen=True):
    limit: str
    admitted: float
    allowed: float
    num_refused: int

    @property
    def is_good(self) -> bool:
        return abs(self.admitted - self.allowed) <= 0.02 * self.allowed


class Clients:
    """Sends requests with one key until the time is over, and keeps the bodies of responses."""

    def __init__(self, server: Server, key: str, call: Call, end_s: float, wait_s: float) -> None:
        """`wait_s` is the mean time until a client that was refused tries again."""
        self._port = server.port("http")
        self._headers = {"x-api-key": key, "content-type": "application/json"}
        self._call = call
        self._end_s = end_s
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self.responses: list[bytes] = []
        self.num_refused = 0

    def run(self) -> None:
        threads = [threading.Thread(target=self._send) for _ in range(NUM_CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _send(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=300)
        call = self._call
        while time.monotonic() < self._end_s:
            connection.request(call.method, call.path, call.body or None, self._headers)
            response = connection.getresponse()
            body = response.read()
            if response.status == 200:
                with self._lock:
                    self.responses.append(body)
                continue
            if response.status != 429:
                raise SystemExit(f"{response.status}: {body.decode()}")
            with self._lock:
                self.num_refused += 1
            time.sleep(random.uniform(0, 2 * self._wait_s))
        connection.close()


def _create(path: Path, name: str, *options: str) -> str:
    command = naiad_command("key", "create", name, *options, "--api-key-file", str(path))
    done = subprocess.run(
        command, env=naiad_environment(), capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def _wait_known(server: Server, key: str) -> None:
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", server.port("http"))
        connection.request("GET", "/v2/models/sleeper", headers={"x-api-key": key})
        if connection.getresponse().status == 200:
            return
        time.sleep(0.1)


def _rpm(server: Server, path: Path, minutes: int) -> Result:
    key = _create(path, "rpm", "--rpm", str(RPM))
    time.sleep(1.5)  # a look at the key would count as a request
    end_s = time.monotonic() + 60 * minutes - 2
    clients = Clients(server, key, Call("GET", "/v2"), end_s, 0.2)
    clients.run()
    return Result("rpm", len(clients.responses), RPM * minutes, clients.num_refused)


def _parallel(server: Server, path: Path, audit: Path) -> Result:
    """The audit log tells how long the server held each request, and never more at once than
    allowed."""
    key = _create(path, "parallel", "--max-parallel", str(PARALLEL))
    _wait_known(server, key)
    tensor = {"name": "X", "shape": [1], "datatype": "FP32", "data": [1]}
    call = Call("POST", "/v2/models/sleeper/infer", json.dumps({"inputs": [tensor]}))
    clients = Clients(server, key, call, time.monotonic() + PARALLEL_S, 0.05)
    clients.run()
    time.sleep(1)
    held: list[tuple[float, float]] = []
    for line in map(json.loads, audit.read_text().splitlines()):
        if line["key"] == key[9:17] and line["status"] == "200" and line["model"] == "sleeper":
            end_s = datetime.fromisoformat(line["time"]).timestamp()
            held.append((end_s - line["ms"] / 1000, end_s))
    first_s = min(start_s for start_s, _ in held)
    last_s = first_s + PARALLEL_S - 1  # at the end clients leave one by one
    busy_s = sum(min(end_s, last_s) - start_s for start_s, end_s in held if start_s < last_s)
    # The times in the log are rounded to milliseconds.
    events = sorted([(start + 0.002, 1) for start, _ in held] + [(end, -1) for _, end in held])
    most = max(itertools.accumulate(change for _, change in events))
    if most > PARALLEL:
        raise SystemExit(f"{most} requests at once, {PARALLEL} allowed")
    allowed_s = PARALLEL * (last_s - first_s)
    return Result("parallel (s)", round(busy_s, 1), round(allowed_s, 1), clients.num_refused)


def _tokens(
    server: Server, path: Path, flag: str, limit: int, model: str, minutes: int, seconds: float
) -> Result:
    key = _create(path, flag.strip("-"), flag, str(limit))
    time.sleep(1.5)
    body = json.dumps({"model": model, "prompt": "The sea", "max_tokens": 4, "ignore_eos": True})
    call = Call("POST", "/v1/completions", body)
    clients = Clients(server, key, call, time.monotonic() + seconds, 0.2)
    clients.run()
    used = sum(json.loads(text)["usage"]["total_tokens"] for text in clients.responses)
    return Result(flag.strip("-"), used, limit * minutes, clients.num_refused)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limits", default="rpm,parallel")
    parser.add_argument("--minutes", type=int, default=1)
    parser.add_argument("--model", default="smollm2")
    options = parser.parse_args()
    names, minutes = options.limits.split(","), options.minutes
    with tempfile.TemporaryDirectory() as folder:
        path, audit = Path(folder) / "keys.json", Path(folder) / "audit.jsonl"
        sleeper = Path(folder) / "repository" / "sleeper"
        (sleeper / "1").mkdir(parents=True)
        (sleeper / "1" / "model.py").write_text(SLEEPER)
        (sleeper / "config.pbtxt").write_text(CONFIG)
        _create(path, "first")
        flags = ["--api-key-file", str(path), "--audit-log", str(audit)]
        if {"tpm", "day"} & set(names):
            flags += ["--model", options.model]
        runs: dict[str, Callable[[Server], Result]] = {
            "rpm": lambda server: _rpm(server, path, minutes),
            "parallel": lambda server: _parallel(server, path, audit),
            "tpm": lambda server: _tokens(
                server, path, "--tpm", TPM, options.model, minutes, 60 * minutes - 5
            ),
            "day": lambda server: _tokens(
                server, path, "--tokens-per-day", PER_DAY, options.model, 1, 60
            ),
        }
        with naiad([str(sleeper.parent)], flags) as server:
            results = [runs[name](server) for name in names]
    for result in results:
        mark = "ok" if result.is_good else "OFF BY MORE THAN 2%"
        print(
            f"{result.limit}: {result.admitted} admitted, {result.allowed} allowed, "
            f"{result.num_refused} refused: {mark}"
        )
    sys.exit(0 if all(result.is_good for result in results) else 1)


if __name__ == "__main__":
    main()
