"""One step's integers on their way to the device: written by numpy into one pinned buffer, sent in
one copy.

In:  sections, each as long as asked. Out: for each section a view of the device buffer at the same
     place. The host side is a ring: a buffer is written again only after the steps that read it
     were waited for.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

NUM_HOST_BUFFERS = 3
ALIGNMENT = 16
"""In words: each section starts on a 64-byte boundary."""


class PackedStaging:
    def __init__(self, num_words: int, device: torch.device) -> None:
        self._torch_device = device
        self._is_cpu = device.type == "cpu"
        self._turn = 0
        self._used = 0
        self._allocate(num_words)

    def begin(self, num_words: int = 0) -> None:
        """`num_words` may be more than ever before: the buffers grow. Views of a grown buffer's
        predecessor stay valid."""
        if num_words > self._device.shape[0]:
            self._allocate(2 * num_words)
        self._turn = (self._turn + 1) % len(self._host)
        self._used = 0

    def section(self, count: int) -> tuple[NDArray[np.int32], Tensor]:
        start = self._used
        self._used = start + words_for(count)
        if self._used > self._device.shape[0]:
            raise ValueError(
                f"staging holds {self._device.shape[0]} words, {self._used} were asked for"
            )
        return self._views[self._turn][start : start + count], self._device[start : start + count]

    def send(self) -> None:
        if not self._is_cpu and self._used:
            self._device[: self._used].copy_(
                self._host[self._turn][: self._used], non_blocking=True
            )

    def _allocate(self, num_words: int) -> None:
        num_host = 1 if self._is_cpu else NUM_HOST_BUFFERS
        self._host = [
            torch.zeros(num_words, dtype=torch.int32, pin_memory=not self._is_cpu)
            for _ in range(num_host)
        ]
        self._views: list[NDArray[np.int32]] = [buffer.numpy() for buffer in self._host]
        self._device = (
            self._host[0]
            if self._is_cpu
            else torch.zeros(num_words, dtype=torch.int32, device=self._torch_device)
        )


def words_for(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT
