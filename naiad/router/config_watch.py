"""Keeps the router equal to its config file while it runs.

In:  the file, which programs and people change at any time. Out: replicas and routing follow within
     a second.
Rule: a file that cannot be used changes nothing. The log says why, once for each version of the
      file, and a metric counts it.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TypeAlias

import msgspec

from naiad import log
from naiad.errors import NaiadError
from naiad.router.config import RouterConfig, read_config
from naiad.router.core import RouterCore

POLL_INTERVAL_S = 0.25
_Stamp: TypeAlias = tuple[int, int, int]


class ConfigWatch:
    def __init__(self, path: Path, core: RouterCore, default_policy: str) -> None:
        """`default_policy` is that of the command line, which counts before the file's; empty if
        there is none."""
        self._path = path
        self._core = core
        self._default_policy = default_policy
        self._stamp = read_stamp(path)

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            stamp = read_stamp(self._path)
            if stamp != self._stamp:
                self._stamp = stamp
                self.reread()

    def reread(self) -> None:
        try:
            config = with_policy(read_config(self._path), self._default_policy)
            self._core.configure(config)
        except NaiadError as error:
            self._core.counters["config_failures"] += 1
            log.error(f"the configuration stays as it was: {error.message}")
            return
        self._core.fleet.follow(config.replica, "file")
        log.info(f"read '{self._path}': {len(config.replica)} replicas")


def with_policy(config: RouterConfig, policy: str) -> RouterConfig:
    return msgspec.structs.replace(config, policy=policy) if policy else config


def read_stamp(path: Path) -> _Stamp | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
