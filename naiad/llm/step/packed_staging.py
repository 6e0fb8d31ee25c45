"""Sends one step's integers to the device: numpy writes them into one buffer, which is pinned where
that helps, and one copy transfers them.

In:  sections of requested lengths. Out: for each section, a view of the device buffer at the same
     offset. The host buffers are a ring: a buffer is written again only after the steps that read
     it have ended.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from naiad.llm.accelerator import accelerator_of

NUM_HOST_BUFFERS = 3
ALIGNMENT = 16
"""In words of 4 bytes: each section starts on a 64-byte boundary."""


class PackedStaging:
    def __init__(self, num_words: int, device: torch.device) -> None:
        self._torch_device = device
        accelerator = accelerator_of(device)
        self._is_cpu = accelerator.is_host
        self._is_pinned = accelerator.has_kernels
        self._turn = 0
        self._used = 0
        self._allocate(num_words)

    def begin(self, num_words: int = 0) -> None:
        """Enlarges the buffers if they hold fewer than `num_words`. Views of the previous buffers
        stay valid."""
        if num_words > self._device.shape[0]:
            self._allocate(2 * num_words)
        self._turn = (self._turn + 1) % len(self._host)
        self._used = 0

    def section(self, count: int) -> tuple[NDArray[np.int32], Tensor]:
        start = self._used
        self._used = start + words_for(count)
        if self._used > self._device.shape[0]:
            raise ValueError(
                f"the staging buffer has {self._device.shape[0]} words, {self._used} are needed"
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
            torch.zeros(num_words, dtype=torch.int32, pin_memory=self._is_pinned)
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
