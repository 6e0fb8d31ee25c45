"""The inference core: what every endpoint, ensemble and BLS call goes through.

In:  InferRequest from a frontend. Out: the ResponseStream of the model's scheduler.
Rule: no wire format above this line, no scheduling decision here; lookups, validation, hand-over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from naiad.core.model_spec import ModelIndex, ModelSpec, ServerMetadata
from naiad.core.request import InferRequest
from naiad.core.response import ResponseStream
from naiad.core.statistics import ModelStatistics
from naiad.errors import NaiadError, unavailable
from naiad.shm.region_inference import infer_with_regions
from naiad.shm.region_table import RegionTable
from naiad.trace.traced_stream import enqueue_traced
from naiad.trace.tracing import Tracing

if TYPE_CHECKING:
    from naiad.pb.model_config_pb2 import ModelConfig
    from naiad.repository.model import Model
    from naiad.repository.repository import Repository
    from naiad.scheduling.cache.cache import ResponseCache


RETRY_AFTER_S = 1


class InferenceCore:
    def __init__(
        self,
        repository: Repository,
        metadata: ServerMetadata,
        *,
        strict_readiness: bool = True,
        regions: RegionTable | None = None,
        tracing: Tracing | None = None,
        cache: ResponseCache | None = None,
    ) -> None:
        self.repository = repository
        self.cache = cache
        """Of responses, where the server has one."""
        self.metadata = metadata
        self.strict_readiness = strict_readiness
        self.regions = regions or RegionTable()
        self.tracing = tracing or Tracing()
        self.is_started = False
        """All that is to be loaded at start has been tried."""
        self.is_draining = False
        self.is_exiting = False

    # Health.

    def is_live(self) -> bool:
        return True

    def is_ready(self) -> bool:
        """False from the first SIGTERM on; with strict readiness also while any model that should
        serve does not."""
        if self.is_draining or not self.is_started:
            return False
        return self.repository.is_ready() if self.strict_readiness else True

    def is_model_ready(self, name: str, version: str = "") -> bool:
        """False for an unknown model: Triton's ready probes never fail. Raises for a version that
        is no number."""
        return self.repository.is_model_ready(name, version)

    def ask_model_ready(self, name: str, version: str, answer: Callable[[bool], None]) -> None:
        """The same, when a model with an `is_ready` of its own may be asked first; `answer` may be
        called before this returns."""
        try:
            model = self.model(name, version)
        except NaiadError:
            model = None
        if model is None or model.parts:
            answer(self.is_model_ready(name, version))
        else:
            model.ask_ready(answer)

    # What there is.

    def model(self, name: str, version: str = "") -> Model:
        """The version that would serve a request now; raises Triton's `Request for unknown model`
        errors."""
        return self.repository.ready_model(name, version)

    def loaded_models(self) -> Iterable[Model]:
        """Every loaded version of every model, whether it serves or not."""
        return self.repository.models()

    def model_metadata(self, name: str, version: str = "") -> ModelSpec:
        """Of a version that was asked for by number, only that one is listed."""
        spec = self.model(name, version).spec
        return msgspec.structs.replace(spec, versions=[spec.version]) if version else spec

    def model_config(self, name: str, version: str = "") -> ModelConfig:
        return self.model(name, version).config

    def model_config_json(self, name: str, version: str = "") -> bytes:
        return self.model(name, version).config_json

    def statistics(self, name: str = "", version: str = "") -> list[ModelStatistics]:
        return self.repository.statistics(name, version)

    # Inference.

    def infer(self, request: InferRequest, model: Model | None = None) -> ResponseStream:
        """`model` is what the request names, where the caller has just looked it up."""
        # a sequence that has begun may go on to its end
        if self.is_exiting and (request.sequence_start or not request.sequence_id):
            raise unavailable("Server exiting", RETRY_AFTER_S)
        if request.regions is not None:
            return infer_with_regions(
                request, self.regions, self.infer, partial(self.input_buffer, request.model_name)
            )
        request.start_ns = time.monotonic_ns()
        if model is None:
            model = self.repository.ready_model(request.model_name, request.model_version)
        model.check(request)
        if request.trace is not None:
            return enqueue_traced(request, model.name, model.version, model.scheduler.enqueue)
        return model.scheduler.enqueue(request)

    def infer_again(self, request: InferRequest, model: Model) -> ResponseStream:
        """Of a form that has been accepted by the same model before, with as much data, neither
        traced nor in shared memory."""
        if self.is_exiting:
            raise unavailable("Server exiting", RETRY_AFTER_S)
        request.start_ns = time.monotonic_ns()
        return model.scheduler.enqueue(request)

    def call(self, request: InferRequest) -> ResponseStream:
        """On behalf of another request: a step of an ensemble, a call of a model. Goes on while the
        server drains."""
        request.start_ns = time.monotonic_ns()
        request.is_inner = True
        model = self.repository.ready_model(request.model_name, request.model_version)
        model.check(request)
        if request.caller is not None:
            request.caller.enter(request, model.name, model.instances)
        if request.trace is not None:
            return enqueue_traced(request, model.name, model.version, model.scheduler.enqueue)
        return model.scheduler.enqueue(request)

    def input_buffer(self, model_name: str, num_bytes: int) -> memoryview | None:
        """Memory shared with the model's workers, for a large body that is still to be received;
        None where it would not pay.

        Tensors whose `data` is a view of it reach the worker without a copy. It is freed when the
        last view is gone.
        """
        return self.repository.input_buffer(model_name, num_bytes)

    # The repository.

    def repository_index(self, *, ready_only: bool) -> list[ModelIndex]:
        return self.repository.index(ready_only=ready_only)

    async def load_model(
        self, name: str, parameters: dict[str, str | bytes], caller: str = ""
    ) -> None:
        """`parameters`: `config` as a JSON string, `file:<path>` as the file's bytes (already
                      base64-decoded).

        `caller` is the instance whose model asks for it, if one does.
        """
        await self.repository.load(name, parameters, caller)

    async def unload_model(self, name: str, *, unload_dependents: bool, caller: str = "") -> None:
        await self.repository.unload(name, unload_dependents=unload_dependents, caller=caller)
