"""Clients that send requests to the cluster's routers, and what they saw."""

from __future__ import annotations

import http.client
import threading
import time

from tests.cluster.rig import Rig

RETRY_S = 0.02


class Load:
    """Clients that send requests until they are stopped. They send a request again if its
    connection was refused or broken, as a client with retries does, and count every status that is
    not 200."""

    def __init__(self, rig: Rig, model: str = "add_sub", num_clients: int = 4) -> None:
        self._rig = rig
        self._model = model
        self._is_stopping = threading.Event()
        self.num_served = 0
        self.num_broken = 0
        self.longest_s = 0.0
        """The longest time that a request needed, with all its attempts."""
        self.failures: list[int] = []
        self._threads = [threading.Thread(target=self._run) for _ in range(num_clients)]

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            start_s = time.monotonic()
            status = self._send()
            self.longest_s = max(self.longest_s, time.monotonic() - start_s)
            if status == 200:
                self.num_served += 1
            else:
                self.failures.append(status)

    def _send(self) -> int:
        while True:
            try:
                return self._rig.infer(self._model)
            except (OSError, http.client.HTTPException):
                self.num_broken += 1
                time.sleep(RETRY_S)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopping.set()
        for thread in self._threads:
            thread.join()
