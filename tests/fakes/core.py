"""The inference core over models that compute in place: everything is real but the repository and
the models' schedulers.

No request leaves the event loop. The requests of the models `held`, `held_stream` and `tap` wait in
`FakeCore.held` until the test responds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import numpy as np

from naiad.core.model_spec import ModelIndex, ModelSpec, ServerMetadata
from naiad.core.request import InferRequest
from naiad.core.response import ResponseStream
from naiad.core.statistics import ModelStatistics
from naiad.core.tensor import Tensor
from naiad.errors import Code, NaiadError, internal, invalid_arg, not_found
from naiad.inference import InferenceCore
from naiad.repository.config.override_check import FULL_RIGHTS, OverrideRights
from naiad.repository.model import Model
from naiad.repository.repository import Repository
from tests.fakes.model import HELD_SPECS, SPECS, FakeModel, respond


class FakeCore(InferenceCore):
    def __init__(self) -> None:
        metadata = ServerMetadata("triton", "2.73.0", ["classification", "sequence", "statistics"])
        super().__init__(FakeRepository(self), metadata)
        self.is_started = True
        self.ready = True
        held = {spec.name for spec in HELD_SPECS}
        self.models = {
            spec.name: FakeModel(spec, self.hold if spec.name in held else None) for spec in SPECS
        }
        """What is served; a test may add, replace and remove models."""
        self.held: list[Held] = []
        self.on_held = asyncio.Event()
        self.on_cancelled = asyncio.Event()
        self.loaded: list[tuple[str, dict[str, str | bytes]]] = []
        self.unloaded: list[tuple[str, bool]] = []
        self.keeps_requests = True
        self.requests: list[InferRequest] = []
        self.num_validated = 0
        """Requests that needed no check."""
        self.refusal: NaiadError | None = None
        """The error with which every request is refused on the fast path."""
        self.models_with_buffers = {"identity"}
        self.buffers: list[memoryview] = []

    def hold(self, request: InferRequest, stream: ResponseStream, spec: ModelSpec) -> None:
        """The Compute of a model whose requests wait for the test."""
        self.held.append(Held(self, request, stream))
        self.on_held.set()

    async def next_held(self) -> Held:
        """The oldest request that waits, which does not wait in `held` any more."""
        while not self.held:
            self.on_held.clear()
            await self.on_held.wait()
        return self.held.pop(0)

    def infer(self, request: InferRequest, model: Model | None = None) -> ResponseStream:
        has_regions = request.regions is not None
        stream = super().infer(request, model)
        if self.keeps_requests and not has_regions:
            self.requests.append(request)
        return stream

    def infer_validated(self, request: InferRequest, model: Model) -> ResponseStream:
        assert model is self.models[request.model_name]
        self.num_validated += 1
        if self.refusal is not None:
            raise self.refusal
        self._assert_valid(request, model)
        stream = super().infer_validated(request, model)
        if self.keeps_requests:
            self.requests.append(request)
        return stream

    def _assert_valid(self, request: InferRequest, model: Model) -> None:
        """The check that the fast path leaves out would accept this request."""
        signature = request.signature
        assert signature is not None
        request.signature = None
        model.check(request)
        assert request.batch_size == signature.batch_size
        request.signature = signature


class FakeRepository(Repository):
    """One version of every model of the core; loads and unloads are noted."""

    def __init__(self, core: FakeCore) -> None:
        self._core = core

    def ready_model(self, name: str, version: str = "") -> Model:
        model = self._core.models.get(name)
        if model is not None and version in ("", "1"):
            return model
        number = f" version {version}" if version else ""
        raise not_found(f"Request for unknown model: '{name}'{number} is not found")

    def find_serving(self, name: str, version: str = "") -> Model | None:
        return self._core.models.get(name) if version in ("", "1") else None

    def input_buffer(self, name: str, num_bytes: int) -> memoryview | None:
        if name not in self._core.models_with_buffers:
            return None
        buffer = np.empty(num_bytes, np.uint8).data
        if self._core.keeps_requests:
            self._core.buffers.append(buffer)
        return buffer

    def models(self) -> Iterable[Model]:
        return self._core.models.values()

    def is_ready(self) -> bool:
        return self._core.ready

    def is_model_ready(self, name: str, version: str = "") -> bool:
        return name in self._core.models and version in ("", "1")

    def statistics(self, name: str = "", version: str = "") -> list[ModelStatistics]:
        if name and name not in self._core.models:
            raise invalid_arg(f"requested model '{name}' is not available")
        return [model.statistics for model in self.models() if name in ("", model.name)]

    def index(self, *, ready_only: bool) -> list[ModelIndex]:
        rows = [ModelIndex(name, "1", "READY") for name in self._core.models]
        unloaded = ModelIndex("old", "1", "UNAVAILABLE", "unloaded")
        return rows if ready_only else [*rows, unloaded, ModelIndex("sleeping")]

    async def load(
        self,
        name: str,
        parameters: dict[str, str | bytes],
        caller: str = "",
        rights: OverrideRights = FULL_RIGHTS,
    ) -> None:
        if name == "nope":
            raise internal("failed to load 'nope', failed to poll from model repository")
        self._core.loaded.append((name, parameters))

    async def unload(self, name: str, *, unload_dependents: bool, caller: str = "") -> None:
        self._core.unloaded.append((name, unload_dependents))


class Held:
    """A request that waits for the test to respond."""

    def __init__(self, core: FakeCore, request: InferRequest, stream: ResponseStream) -> None:
        self.request = request
        self.stream = stream
        self.is_cancelled = False
        self.is_paused = False
        self._core = core
        stream.on_cancel(self._cancel)
        stream.on_flow(self._set_paused)

    def answer(self, data: bytes = b"\0\0\0\0", *, is_final: bool = True) -> None:
        """Responds with one FP32 tensor."""
        name = self.request.inputs[0].name.replace("IN", "OUT")
        output = Tensor(name, "FP32", [len(data) // 4], data)
        respond(self.request, self.stream, [output], is_final=is_final)

    def _cancel(self) -> None:
        self.is_cancelled = True
        self.stream.fail(NaiadError(Code.CANCELLED, "cancelled"))
        self._core.on_cancelled.set()

    def _set_paused(self, is_paused: bool) -> None:
        self.is_paused = is_paused
