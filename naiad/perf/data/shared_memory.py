"""--shared-memory: inputs lie in registered regions, outputs are written to one; requests carry
only names and offsets.

In:  the requests as they would be sent. Out: the same with spans instead of bytes, and the regions
     that must be registered.
Rule: regions live as long as this object; `close` unregisters and removes them, also after a
      failure.
"""

from __future__ import annotations

import base64
import contextlib
import os
from multiprocessing.shared_memory import SharedMemory
from typing import Any, Protocol

import msgspec

from naiad.core.datatype import DATATYPES
from naiad.perf.channels.control import Control, ControlError
from naiad.perf.channels.infer_request import InferRequest, InputTensor, MemorySpan, OutputTensor
from naiad.perf.data.cuda_memory import CudaMemory
from naiad.perf.data.model_facts import ModelFacts
from naiad.settings.option import OptionError

_ALIGNMENT = 64


class _Region(Protocol):
    name: str

    def write(self, offset: int, data: bytes) -> None: ...

    def document(self) -> dict[str, Any]:
        """What registering it takes."""

    def close(self) -> None: ...


class SystemRegion:
    def __init__(self, name: str, byte_size: int) -> None:
        self.name = name
        self._byte_size = byte_size
        try:
            self._memory = SharedMemory(
                f"naiad_perf_{os.getpid()}_{name}", create=True, size=byte_size
            )
        except OSError as error:
            raise OptionError(
                f"--shared-memory system: {byte_size} bytes cannot be had: {error.strerror}"
            ) from None

    def write(self, offset: int, data: bytes) -> None:
        assert self._memory.buf is not None
        self._memory.buf[offset : offset + len(data)] = data

    def document(self) -> dict[str, Any]:
        return {"key": f"/{self._memory.name}", "offset": 0, "byte_size": self._byte_size}

    def close(self) -> None:
        self._memory.close()
        with contextlib.suppress(FileNotFoundError):
            self._memory.unlink()


class CudaRegion:
    def __init__(self, name: str, byte_size: int) -> None:
        self.name = name
        self._byte_size = byte_size
        self._memory = CudaMemory(byte_size)

    def write(self, offset: int, data: bytes) -> None:
        self._memory.write(offset, data)

    def document(self) -> dict[str, Any]:
        handle = base64.b64encode(self._memory.handle()).decode()
        return {
            "raw_handle": {"b64": handle},
            "device_id": self._memory.device,
            "byte_size": self._byte_size,
        }

    def close(self) -> None:
        self._memory.close()


class SharedRegions:
    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._regions: list[_Region] = []

    def _add(self, name: str, byte_size: int) -> _Region:
        region: _Region = (
            SystemRegion(name, byte_size) if self._kind == "system" else CudaRegion(name, byte_size)
        )
        self._regions.append(region)
        return region

    def place(
        self, requests: list[InferRequest], facts: ModelFacts, batch_size: int, output_bytes: int
    ) -> list[InferRequest]:
        inputs = [tensor for request in requests for tensor in request.inputs]
        region = self._add("inputs", max(1, sum(_aligned(len(tensor.raw)) for tensor in inputs)))
        outputs = self._outputs(facts, batch_size, output_bytes)
        offset = 0
        placed: list[InferRequest] = []
        for request in requests:
            tensors: list[InputTensor] = []
            for tensor in request.inputs:
                region.write(offset, tensor.raw)
                tensors.append(
                    msgspec.structs.replace(
                        tensor, span=MemorySpan(region.name, len(tensor.raw), offset)
                    )
                )
                offset += _aligned(len(tensor.raw))
            placed.append(msgspec.structs.replace(request, inputs=tuple(tensors), outputs=outputs))
        return placed

    def _outputs(
        self, facts: ModelFacts, batch_size: int, output_bytes: int
    ) -> tuple[OutputTensor, ...]:
        """One region for all requests: nobody reads the answers."""
        sizes = [
            _output_bytes(output.datatype, output.shape, output_bytes) * batch_size
            for output in facts.outputs
        ]
        region = self._add("outputs", max(1, sum(map(_aligned, sizes))))
        found: list[OutputTensor] = []
        offset = 0
        for output, size in zip(facts.outputs, sizes, strict=True):
            found.append(OutputTensor(output.name, MemorySpan(region.name, size, offset)))
            offset += _aligned(size)
        return tuple(found)

    async def register(self, control: Control) -> None:
        """Raises ControlError."""
        for kind in ("system", "cuda"):
            # perf_analyzer clears both at the start too: a run that was killed must not be in the
            # way of the next.
            await control.unregister_memory(kind)
        for region in self._regions:
            await control.register_memory(self._kind, region.name, region.document())

    async def close(self, control: Control) -> None:
        with contextlib.suppress(ControlError):
            await control.unregister_memory(self._kind)
        for region in self._regions:
            region.close()
        self._regions = []


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def _output_bytes(datatype: str, shape: tuple[int, ...], unknown: int) -> int:
    if datatype == "BYTES" or -1 in shape:
        return unknown
    size = DATATYPES[datatype].byte_size
    for dimension in shape:
        size *= dimension
    return size
