"""Places tensors in shared memory, for --shared-memory.

Inputs are in one registered region and outputs are written to another. Requests carry only names
and offsets.

In:  requests with bytes. Out: requests with spans, and the regions to register.
Rule: `close` unregisters and removes the regions, even after a failure.
"""

from __future__ import annotations

import base64
import contextlib
import os
from multiprocessing.shared_memory import SharedMemory
from typing import Any, Protocol

import msgspec

from naiad.core.datatype import DATATYPES
from naiad.perf.channels.control import ControlError, ServerControl
from naiad.perf.channels.infer_request import ClientRequest, InputTensor, MemorySpan, OutputTensor
from naiad.perf.data.cuda_memory import ClientCudaMemory
from naiad.perf.data.model_facts import ModelFacts
from naiad.settings.option import OptionError

_ALIGNMENT = 64


class _Region(Protocol):
    name: str

    def write(self, offset: int, data: bytes) -> None: ...

    def document(self) -> dict[str, Any]:
        """Returns the body of the request that registers the region."""

    def close(self) -> None: ...


class ClientSystemRegion:
    def __init__(self, name: str, byte_size: int) -> None:
        self.name = name
        self._byte_size = byte_size
        try:
            self._memory = SharedMemory(
                f"naiad_perf_{os.getpid()}_{name}", create=True, size=byte_size
            )
        except OSError as error:
            raise OptionError(
                f"--shared-memory system: failed to allocate {byte_size} bytes: {error.strerror}"
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


class ClientCudaRegion:
    def __init__(self, name: str, byte_size: int) -> None:
        self.name = name
        self._byte_size = byte_size
        self._memory = ClientCudaMemory(byte_size)

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
            ClientSystemRegion(name, byte_size)
            if self._kind == "system"
            else ClientCudaRegion(name, byte_size)
        )
        self._regions.append(region)
        return region

    def place(
        self, requests: list[ClientRequest], facts: ModelFacts, batch_size: int, output_bytes: int
    ) -> list[ClientRequest]:
        inputs = [tensor for request in requests for tensor in request.inputs]
        region = self._add("inputs", max(1, sum(_aligned(len(tensor.raw)) for tensor in inputs)))
        outputs = self._outputs(facts, batch_size, output_bytes)
        offset = 0
        placed: list[ClientRequest] = []
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
        """Places the outputs of all requests at the same offsets, because they are never read."""
        sizes = [
            _output_bytes(output.datatype, output.shape, output_bytes) * batch_size
            for output in facts.outputs
        ]
        region = self._add("outputs", max(1, sum(map(_aligned, sizes))))
        outputs: list[OutputTensor] = []
        offset = 0
        for output, size in zip(facts.outputs, sizes, strict=True):
            outputs.append(OutputTensor(output.name, MemorySpan(region.name, size, offset)))
            offset += _aligned(size)
        return tuple(outputs)

    async def register(self, control: ServerControl) -> None:
        """Registers the regions. Raises ControlError."""
        for kind in ("system", "cuda"):
            # Regions of a run that was killed may still be registered. perf_analyzer also
            # unregisters both kinds.
            await control.unregister_memory(kind)
        for region in self._regions:
            await control.register_memory(self._kind, region.name, region.document())

    async def close(self, control: ServerControl) -> None:
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
