"""Sums, gathers and broadcasts over the ranks of an engine: gloo between CPUs, NCCL between GPUs.

Rule: the groups are objects of their own, not torch's default group, so nothing else in the process
      notices them. They listen on the loopback interface only.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from naiad.llm.parallel.shard import Shard

LOOPBACK = "127.0.0.1"


class Collectives:
    def __init__(
        self, shard: Shard, store_path: str, device: torch.device, timeout_s: float
    ) -> None:
        """Waits for all ranks."""
        self.shard = shard
        self._group = _open_group(shard, store_path, device, timedelta(seconds=timeout_s))

    def add(self, x: Tensor) -> Tensor:
        """Replaces `x` by the sum of all ranks' `x`."""
        self._group.allreduce([x]).wait()
        return x

    def gather_columns(self, x: Tensor) -> Tensor:
        """Returns the matrices [rows, columns] of all ranks next to each other."""
        rows, columns = x.shape
        out = torch.empty((self.shard.size, rows, columns), dtype=x.dtype, device=x.device)
        self._group._allgather_base(out.view(-1, columns), x.contiguous()).wait()
        return out.transpose(0, 1).reshape(rows, self.shard.size * columns)

    def broadcast(self, x: Tensor) -> None:
        """Replaces `x` by that of rank 0."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self._group.broadcast([x], options).wait()


def _open_group(shard: Shard, store_path: str, device: torch.device, timeout: timedelta) -> Any:
    store = dist.FileStore(store_path, shard.size)
    if device.type == "cuda":
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupNCCL(store, shard.rank, shard.size, options)
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timeout
    options._devices = [gloo.create_device(hostname=LOOPBACK)]
    return gloo(store, shard.rank, shard.size, options)
