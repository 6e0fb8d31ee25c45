"""The process of a rank other than 0: opens its part of the model and runs the steps that rank 0
sends.

In:  messages on the socket that is its standard input. Out: the collectives of each step, and
     Failed with a reason if the part cannot be opened.
Rule: it ends when the socket closes, and the kernel kills it when its parent dies.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from pathlib import Path

import torch

from naiad.errors import NaiadError
from naiad.llm.parallel import message
from naiad.llm.parallel.collectives import Collectives
from naiad.llm.parallel.following_runner import FollowingRunner
from naiad.llm.parallel.peers import FollowingSampler
from naiad.llm.parallel.rank_group import rank_settings
from naiad.llm.parallel.shard import Shard
from naiad.llm.start.load import load_rank
from naiad.llm.step.kv_cache import KvCache
from naiad.llm.step.runner import Model, Runner, Sampler
from naiad.llm.step.slot_table import SlotTable
from naiad.llm.step.step_stager import StepStager

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PROCESS_NAME = b"llm-rank"


class Follower:
    """`Peers` of all ranks but 0."""

    def __init__(self, start: message.Start, channel: socket.socket) -> None:
        self.shard = Shard(start.rank, start.size)
        self.device = torch.device(start.device)
        self._channel = channel
        self.collectives = Collectives(
            self.shard, start.store, self.device, start.settings.collective_timeout_s
        )

    def agree(self, num_blocks: int) -> int:
        message.send(self._channel, message.Counted(num_blocks))
        agreed = message.receive(self._channel)
        if not isinstance(agreed, message.Agreed):
            raise ConnectionError("rank 0 is gone")
        return agreed.num_blocks

    def make_runner(
        self, model: Model, cache: KvCache, table: SlotTable, sampler: Sampler, stager: StepStager
    ) -> Runner:
        return FollowingRunner(model, cache, table, sampler, stager)

    def make_sampler(self, sampler: Sampler, table: SlotTable) -> Sampler:
        return FollowingSampler(table.next_tokens, self.collectives)


def run(channel: socket.socket) -> None:
    start = message.receive(channel)
    if not isinstance(start, message.Start):
        return
    torch.set_num_threads(start.num_threads)
    if start.device != "cpu":
        torch.cuda.set_device(start.device)
    message.send(channel, message.Ready())
    if not isinstance(message.receive(channel), message.Begin):
        return
    follower = Follower(start, channel)
    try:
        engine = load_rank(
            Path(start.checkpoint),
            rank_settings(start.settings, start.device),
            follower,
            None if start.cache is None else Path(start.cache),
        )
    except (NaiadError, RuntimeError, MemoryError) as error:  # RuntimeError: torch's own
        message.send(channel, message.Failed(str(error)))
        return
    runner = engine.runner
    assert isinstance(runner, FollowingRunner)
    while isinstance(step := message.receive(channel), message.Step):
        runner.follow(step)


def main() -> None:
    library = ctypes.CDLL(None)
    if library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError("prctl failed")
    library.prctl(PR_SET_NAME, PROCESS_NAME)
    # Ctrl-C reaches every process of a terminal; rank 0 decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=os.dup(0))
    try:
        run(channel)
    except Exception as error:
        # Rank 0 is gone or hangs: it or the server says so.
        print(f"a tensor-parallel rank ends: {type(error).__name__}: {error}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)
    # Libraries' threads may wait for ranks that are gone.
    os._exit(0)


if __name__ == "__main__":
    main()
