"""64 clients at once against the limits of a key, on a real server and a real clock.

In:  the number of minutes. Out: the requests that were admitted and those that the limit allows.
     The exit code is 1 if they differ by more than 2%.
Use: `python -m bench.key_limits [--minutes 2]`.
"""

from __future__ import annotations

import argparse
import http.client
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.server.harness import Server, naiad, naiad_command, naiad_environment

NUM_CLIENTS = 64
RPM = 300
ROOT = Path(__file__).parents[1]


def _create(path: Path, name: str, *options: str) -> str:
    command = naiad_command("key", "create", name, *options, "--api-key-file", str(path))
    done = subprocess.run(
        command, env=naiad_environment(), capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


class Clients:
    """Sends requests with one key until the time is over, and counts what was admitted."""

    def __init__(self, server: Server, key: str, end_s: float) -> None:
        self._port = server.http_port
        self._headers = {"x-api-key": key}
        self._end_s = end_s
        self._lock = threading.Lock()
        self.admitted: list[float] = []
        self.num_refused = 0

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        while time.monotonic() < self._end_s:
            connection.request("GET", "/v2", headers=self._headers)
            response = connection.getresponse()
            response.read()
            with self._lock:
                if response.status == 200:
                    self.admitted.append(time.monotonic())
                else:
                    self.num_refused += 1
            if response.status != 200:
                time.sleep(0.05)
        connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path, repository = Path(folder) / "keys.json", Path(folder) / "repository"
        repository.mkdir()
        model = ROOT / "tests" / "repositories" / "main" / "add_sub"
        (repository / "add_sub").symlink_to(model)
        key = _create(path, "rpm", "--rpm", str(RPM))
        with naiad([str(repository)], ["--api-key-file", str(path)]) as server:
            clients = Clients(server, key, time.monotonic() + 60 * options.minutes - 2)
            threads = [threading.Thread(target=clients.run) for _ in range(NUM_CLIENTS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    allowed = RPM * options.minutes
    admitted = len(clients.admitted)
    print(f"{admitted} admitted, {allowed} allowed, {clients.num_refused} refused")
    sys.exit(0 if abs(admitted - allowed) <= 0.02 * allowed else 1)


if __name__ == "__main__":
    main()
