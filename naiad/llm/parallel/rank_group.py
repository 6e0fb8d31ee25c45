"""Rank 0's side of a tensor-parallel engine: starts the processes of the other ranks, opens them,
watches them and ends them.

In:  a checkpoint and EngineSettings with a tensor_parallel_size above 1. Out: `Peers`, for the
     engine of rank 0.
Rules: the other ranks are children of this process and end with it: their sockets close, and the
       kernel kills them when their parent dies. A rank that dies makes the engine useless: the next
       step raises RankLostError, and `on_lost` is called at once.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import torch

from naiad.errors import NaiadError, internal, invalid_arg, unavailable
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.parallel import message
from naiad.llm.parallel.collectives import Collectives
from naiad.llm.parallel.fault import RankLostError
from naiad.llm.parallel.leading_runner import LeadingRunner
from naiad.llm.parallel.peers import LeadingSampler
from naiad.llm.parallel.shard import Shard
from naiad.llm.step.kv_cache import KvCache
from naiad.llm.step.runner import Model, Runner, Sampler
from naiad.llm.step.slot_table import SlotTable
from naiad.llm.step.step_stager import StepStager

Kind = TypeVar("Kind", bound=message.Message)

NEWS_S = 0.5
"""How long the end of a rank may take to become known after its connections broke."""
OPEN_LIMIT_S = 1800.0
"""How long a rank may take to start and to load its part."""


_FOLDERS = "naiad-ranks-"
"""The process id of rank 0 follows: the file by which the ranks find each other is in it."""


class RankGroup:
    """`Peers` of rank 0."""

    def __init__(
        self, path: Path, settings: EngineSettings, device: torch.device, cache: Path | None
    ) -> None:
        """Starts the processes. Raises NaiadError."""
        size = settings.tensor_parallel_size
        self.shard = Shard(0, size)
        self.device = device
        self.failure = ""
        self._is_lost = threading.Event()
        self.on_lost: Callable[[str], None] | None = None
        """Called from another thread when a rank has died."""
        self._timeout_s = settings.collective_timeout_s
        self._is_closing = False
        _remove_leftovers()
        self._folder = tempfile.TemporaryDirectory(prefix=f"{_FOLDERS}{os.getpid()}-")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._channels: list[socket.socket] = []
        devices = rank_devices(device, size)
        num_threads = max(1, torch.get_num_threads() // size)
        store = os.path.join(self._folder.name, "store")
        try:
            for _ in range(1, size):
                self._start()
            for rank, channel in enumerate(self._channels, 1):
                start = message.Start(
                    rank, size, str(path), settings, devices[rank], store, num_threads,
                    None if cache is None else str(cache),
                )  # fmt: skip
                message.send(channel, start)
            self._expect(message.Ready)
            self._tell(message.Begin())
            torch.set_num_threads(num_threads)
            self.collectives = Collectives(self.shard, store, device, self._timeout_s)
        except BaseException as error:
            reason = self._told_reason() if isinstance(error, RuntimeError) else ""
            self.close()
            if reason:
                raise invalid_arg(reason) from None
            if isinstance(error, OSError | RuntimeError) and not isinstance(error, NaiadError):
                raise unavailable(f"the ranks cannot be started: {error}") from error
            raise

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def agree(self, num_blocks: int) -> int:
        counts = [num_blocks, *(found.num_blocks for found in self._expect(message.Counted))]
        self._tell(message.Agreed(min(counts)))
        for process in self._processes:
            threading.Thread(target=self._watch, args=(process,), daemon=True).start()
        return min(counts)

    def make_runner(
        self, model: Model, cache: KvCache, table: SlotTable, sampler: Sampler, stager: StepStager
    ) -> Runner:
        runner = LeadingRunner(model, cache, table, sampler, stager)
        runner.tell, runner.explain, runner.check = self._tell, self._explain, self._check
        runner.timeout_s = self._timeout_s
        return runner

    def make_sampler(self, sampler: Sampler, table: SlotTable) -> Sampler:
        return LeadingSampler(sampler, self.collectives)

    def close(self) -> None:
        self._is_closing = True
        for channel in self._channels:
            channel.close()
        for process in self._processes:
            process.kill()
            process.wait()
        self._folder.cleanup()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._processes.append(start_process(theirs))
        ours.settimeout(OPEN_LIMIT_S)
        self._channels.append(ours)

    def _tell(self, told: message.Message) -> None:
        self._check()
        data = message.encode(told)
        try:
            for channel in self._channels:
                channel.sendall(data)
        except OSError as error:
            raise self._explain(error) from error

    def _expect(self, kind: type[Kind]) -> list[Kind]:
        """Waits for a message from each rank. Raises the error of a rank that failed."""
        found: list[Kind] = []
        for rank, channel in enumerate(self._channels, 1):
            try:
                got = message.receive(channel)
            except TimeoutError:
                raise unavailable(
                    f"rank {rank} of {self.shard.size} was not ready within {OPEN_LIMIT_S:g} s"
                ) from None
            if isinstance(got, message.Failed):
                raise invalid_arg(f"rank {rank} of {self.shard.size}: {got.reason}")
            if not isinstance(got, kind):
                raise internal(f"rank {rank} of {self.shard.size} {self._end_of(rank)}")
            found.append(got)
        return found

    def _told_reason(self) -> str:
        """Returns what a rank said before its connections broke; empty if none said anything."""
        for rank, channel in enumerate(self._channels, 1):
            channel.settimeout(NEWS_S)
            try:
                got = message.receive(channel)
            except OSError:
                continue
            if isinstance(got, message.Failed):
                return f"rank {rank} of {self.shard.size}: {got.reason}"
        return ""

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        if self._is_closing or self.failure:
            return
        rank = self._processes.index(process) + 1
        self.failure = f"rank {rank} of {self.shard.size} {self._end_of(rank)}"
        self._is_lost.set()
        # The worker will end without `close`.
        self._folder.cleanup()
        if self.on_lost is not None:
            self.on_lost(self.failure)

    def _end_of(self, rank: int) -> str:
        try:
            code = self._processes[rank - 1].wait(1.0)
        except subprocess.TimeoutExpired:
            return "does not respond"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with code {code}"

    def _check(self) -> None:
        if self.failure:
            raise RankLostError(self.failure)

    def _explain(self, error: BaseException) -> RankLostError:
        """A rank that died breaks the connection first, and its end is known a moment later."""
        if isinstance(error, RankLostError):
            return error
        self._is_lost.wait(NEWS_S)
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return RankLostError(
            self.failure or f"the {self.shard.size} ranks cannot go on together: {reason}"
        )


def _remove_leftovers() -> None:
    """The folders of workers that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDERS}*-*"):
        pid = folder.name.removeprefix(_FOLDERS).partition("-")[0]
        if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            shutil.rmtree(folder, ignore_errors=True)


def start_process(channel: socket.socket) -> subprocess.Popen[bytes]:
    environment = dict(os.environ)
    # The worker's own path: it may have been started in an environment of its own.
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "naiad.llm.parallel.rank_process"],
        stdin=channel.fileno(),
        env=environment,
    )


def rank_devices(device: torch.device, size: int) -> list[str]:
    """Returns the device of each rank: the GPUs from rank 0's on. Raises NaiadError."""
    if device.type == "cpu":
        return ["cpu"] * size
    first, count = device.index or 0, torch.cuda.device_count()
    if first + size > count:
        raise invalid_arg(
            f"tensor_parallel_size is {size}, but torch sees {count} GPUs"
            + (f", of which the first {first} are not this instance's" if first else "")
        )
    return [f"cuda:{first + rank}" for rank in range(size)]


def rank_settings(settings: EngineSettings, device: str) -> EngineSettings:
    """Returns the settings of a rank other than 0. Only rank 0 publishes what the cache holds."""
    return msgspec.structs.replace(
        settings, device=device, kv_events_endpoint="", kv_events_replay_endpoint=""
    )
