"""Where a large infer request is received: memory that the model's workers share, so that its
tensors need not be copied there.

The buffer is placed so that the first raw tensor of the message is aligned: numpy and the backends
read it in place.
"""

from __future__ import annotations

import numpy as np

from naiad.frontends.core import Inference
from naiad.protocol.v2.grpc_codec import model_of

_ALIGNMENT = 64


class RequestMemory:
    def __init__(self, core: Inference) -> None:
        self._core = core

    def allocate(self, first_bytes: bytes, num_bytes: int) -> memoryview:
        name, raw_at = model_of(first_bytes)
        memory = self._core.input_buffer(name, num_bytes + _ALIGNMENT) if name else None
        if memory is None:
            memory = np.empty(num_bytes + _ALIGNMENT, np.uint8).data
        address: int = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
        start = -(address + max(raw_at, 0)) % _ALIGNMENT
        return memory[start : start + num_bytes]
