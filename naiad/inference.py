"""The inference core: every endpoint, ensemble step and BLS call goes through it.

In:  InferRequest from a frontend. Out: the ResponseStream of the model's scheduler.
Rule: it looks models up, validates requests and enqueues them. It knows no wire format and makes
      no scheduling decision.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np

from naiad.core.ask_all import ask_all
from naiad.core.health import ServerHealth
from naiad.core.identity import Identity
from naiad.core.job import Job
from naiad.core.memory_budget import FULL_MESSAGE, SMALL_BYTES, MemoryBudget
from naiad.core.model_spec import ModelIndex, ModelSpec, ServerMetadata
from naiad.core.request import InferRequest
from naiad.core.response import ResponseStream
from naiad.core.statistics import ModelStatistics
from naiad.errors import NaiadError, unavailable, unsupported
from naiad.keys.forwarded import forwarded_refusal
from naiad.repository.config.config_json import config_to_json
from naiad.repository.config.override_check import OverrideRights
from naiad.repository.request_check import check_strings
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
ReserveTokens: TypeAlias = "Callable[[InferRequest, Identity, Model], None]"


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
        are_files_allowed: bool = True,
        are_files_local: bool = False,
        budget: MemoryBudget | None = None,
    ) -> None:
        """`are_files_allowed` is False if clients may not load models from files of their own, and
        `are_files_local` is True if only clients of this machine may."""
        self.repository = repository
        self._are_files_local = are_files_local
        self._are_files_allowed = are_files_allowed
        self.cache = cache
        """The response cache, or None if the server has none."""
        self.budget = budget or MemoryBudget()
        """What all endpoints together may hold for requests and responses."""
        self._region_account = self.budget.open_account()
        self.metadata = metadata
        self.strict_readiness = strict_readiness
        self.regions = regions or RegionTable()
        self.tracing = tracing or Tracing()
        self.reserve_tokens: ReserveTokens | None = None
        """Counts the tokens of a call or a step towards the limits of its key, and raises
        NaiadError beyond them. None where nobody has limits."""
        self.is_started = False
        """True once every model to be loaded at start has been loaded or has failed."""
        self.is_draining = False
        self.is_exiting = False
        self.on_models_changed: Callable[[], Awaitable[None]] | None = None
        """Awaited after a load or an unload, before its caller hears of it: every process that
        serves requests knows of the change then."""

    # Health.

    def is_live(self) -> bool:
        return True

    def is_ready(self) -> bool:
        """Returns False from the first SIGTERM on, and before the models of the start are loaded.

        With strict readiness it also returns False while any model fails to serve.
        """
        if self.is_draining or not self.is_started:
            return False
        return self.repository.is_ready() if self.strict_readiness else True

    def ask_ready(self, answer: Callable[[bool], None]) -> None:
        """Like `is_ready`, but with strict readiness it also runs the `is_ready` hooks of the
        models.

        `answer` receives the result, possibly before this method returns.
        """
        if not self.is_ready():
            answer(False)
        elif self.strict_readiness:
            ask_all([model.ask_ready for model in self.repository.models()], answer)
        else:
            answer(True)

    def health(self) -> ServerHealth:
        """What is behind `is_ready`: every loaded version, and what each instance does."""
        now_ns = time.monotonic_ns()
        models = sorted(self.repository.models(), key=lambda model: (model.name, model.version))
        details = [model.health(now_ns) for model in models]
        return ServerHealth(self.is_live(), self.is_ready(), details)

    def is_model_ready(self, name: str, version: str = "") -> bool:
        """Returns False for an unknown model: Triton's ready probes never fail for one.

        Raises NaiadError if the version is not a number.
        """
        return self.repository.is_model_ready(name, version)

    def is_leaving(self, model_name: str) -> bool:
        """True if the server stops, or if the model does not serve."""
        return self.is_exiting or not self.is_model_ready(model_name)

    def ask_model_ready(self, name: str, version: str, answer: Callable[[bool], None]) -> None:
        """Like `is_model_ready`, but also runs the model's own `is_ready` hook, if it has one.

        `answer` receives the result, possibly before this method returns.
        """
        try:
            model = self.model(name, version)
        except NaiadError:
            model = None
        if model is None or model.parts:
            answer(self.is_model_ready(name, version))
        else:
            model.ask_ready(answer)

    # Lookups.

    def model(self, name: str, version: str = "") -> Model:
        """Returns the version that would serve a request now.

        Raises NaiadError with Triton's `Request for unknown model` messages.
        """
        return self.repository.ready_model(name, version)

    def loaded_models(self) -> Iterable[Model]:
        """Every loaded version of every model, whether it serves or not."""
        return self.repository.models()

    def model_metadata(self, name: str, version: str = "") -> ModelSpec:
        """Lists all served versions, or only the requested one if the caller named a version."""
        spec = self.model(name, version).spec
        return msgspec.structs.replace(spec, versions=[spec.version]) if version else spec

    def model_config(self, name: str, version: str = "") -> ModelConfig:
        return self.model(name, version).shown_config

    def model_config_json(self, name: str, version: str = "") -> bytes:
        return config_to_json(self.model(name, version).shown_config)

    def statistics(self, name: str = "", version: str = "") -> list[ModelStatistics]:
        return self.repository.statistics(name, version)

    # Inference.

    def infer(self, request: InferRequest, model: Model | None = None) -> ResponseStream:
        """Validates and enqueues a request. Raises NaiadError if it is invalid.

        `model` is the model the request names, if the caller has just looked it up.
        """
        try:
            return self._infer(request, model)
        except NaiadError:
            self.break_sequence(request)
            raise

    def _infer(self, request: InferRequest, model: Model | None) -> ResponseStream:
        # A sequence that has started may continue to its end.
        if self.is_exiting and (request.sequence_start or not request.sequence_id):
            raise unavailable("Server exiting", RETRY_AFTER_S)
        if request.regions is not None:
            return infer_with_regions(
                request,
                self.regions,
                self.infer,
                partial(self._region_buffer, request.model_name),
                partial(check_strings, model_name=request.model_name),
                self.break_sequence,
            )
        start_ns = time.monotonic_ns()
        if model is None:
            model = self.repository.ready_model(request.model_name, request.model_version)
        model.check(request)
        job = Job(request, ResponseStream(), start_ns, request.batch_size)
        if request.trace is not None:
            return enqueue_traced(job, model.name, model.version, model.scheduler.enqueue)
        return model.scheduler.enqueue(job)

    def infer_validated(self, request: InferRequest, model: Model) -> ResponseStream:
        """Fast path: this model has already accepted a request with the same signature, whatever
        its data is. Skips validation; never used for traced or shared-memory requests."""
        if self.is_exiting:
            raise unavailable("Server exiting", RETRY_AFTER_S)
        assert request.signature is not None
        batch_size = request.signature.batch_size
        return model.scheduler.enqueue(
            Job(request, ResponseStream(), time.monotonic_ns(), batch_size)
        )

    def infer_checked(self, request: InferRequest, model: Model, start_ns: int) -> ResponseStream:
        """A frontend process has validated the request against this model, which serves now.

        `start_ns` is when the request arrived there. Never used for traced or shared-memory
        requests."""
        if self.is_exiting and (request.sequence_start or not request.sequence_id):
            raise unavailable("Server exiting", RETRY_AFTER_S)
        try:
            return model.scheduler.enqueue(
                Job(request, ResponseStream(), start_ns, request.batch_size)
            )
        except NaiadError:
            self.break_sequence(request)
            raise

    def break_sequence(self, request: InferRequest) -> None:
        """Ends the sequence of a request that was refused or lost, wherever that happened: with a
        gap it would be another sequence. Only what names the sequence is read of the request."""
        if not request.sequence_id:
            return
        try:
            model = self.repository.find_serving(request.model_name, request.model_version)
        except NaiadError:
            return  # the version is not a number
        if model is None:
            return
        if model.scheduler.sequences is not None:
            model.scheduler.sequences.break_sequence(request.sequence_key)
        for step in model.config.ensemble_scheduling.step:
            part = InferRequest(step.model_name, [], sequence_id=request.sequence_id)
            if step.model_version > 0:
                part.model_version = str(step.model_version)
            part.identity, part.is_call = request.identity, request.is_call
            self.break_sequence(part)

    def call(self, job: Job) -> ResponseStream:
        """Runs a job on behalf of another one: an ensemble step or a BLS call.

        Such jobs are accepted even while the server drains.
        """
        try:
            return self._call(job)
        except NaiadError:
            self.break_sequence(job.request)
            raise

    def _call(self, job: Job) -> ResponseStream:
        request = job.request
        job.start_ns = time.monotonic_ns()
        job.is_inner = True
        model = self.repository.ready_model(request.model_name, request.model_version)
        model.check(request)
        if request.identity is not None:
            self._admit_call(request, request.identity, model)
        job.batch_size = request.batch_size
        if job.caller is not None:
            job.caller.enter(job, model.name, model.instances)
        if request.trace is not None:
            return enqueue_traced(job, model.name, model.version, model.scheduler.enqueue)
        return model.scheduler.enqueue(job)

    def _admit_call(self, request: InferRequest, identity: Identity, model: Model) -> None:
        """A key that may use a model may use the models behind it. Raises NaiadError for a limit
        that the key has reached."""
        if model.spec.shows_api_key:
            request.parameters = identity.shown_to_model(request.parameters)
        if self.reserve_tokens is not None:
            self.reserve_tokens(request, identity, model)

    def input_buffer(self, model_name: str, num_bytes: int) -> memoryview | None:
        """Allocates memory shared with the model's workers, to receive a large body into.

        Returns None if a copy is cheaper. Tensors whose `data` is a view of the buffer reach the
        worker without a copy. The memory is freed when its last view is gone.
        """
        return self.repository.input_buffer(model_name, num_bytes)

    def _region_buffer(self, model_name: str, num_bytes: int) -> memoryview | None:
        """Memory for an input that is read from a client's shared memory: a small request may ask
        for a large copy, so it is counted. Raises NaiadError when the budget has no room."""
        if num_bytes <= SMALL_BYTES:
            return self.input_buffer(model_name, num_bytes)
        if not self._region_account.charge(num_bytes):
            raise unavailable(FULL_MESSAGE, RETRY_AFTER_S)
        memory = self.input_buffer(model_name, num_bytes)
        if memory is None:
            memory = np.empty(num_bytes, np.uint8).data
        self._region_account.hold(memory, num_bytes)
        return memory

    # The repository.

    def repository_index(self, *, ready_only: bool) -> list[ModelIndex]:
        return self.repository.index(ready_only=ready_only)

    async def load_model(
        self,
        name: str,
        parameters: dict[str, str | bytes],
        caller: str = "",
        identity: Identity | None = None,
        *,
        forwarding: str = "",
    ) -> None:
        """Loads or reloads a model.

        `parameters` may have `config`, a JSON string, and `file:<path>`, the bytes of a file
        (already base64-decoded). `caller` is the instance whose model asks for the load, if any;
        `identity` is the key of a client that does. `forwarding` is the field with which a proxy
        has shown itself (naiad.keys.forwarded).
        """
        # What a model loads is not checked: its code is trusted already.
        is_foreign = bool(forwarding) and self._are_files_local
        may_bring_code = bool(caller) or (self._are_files_allowed and not is_foreign)
        if not may_bring_code and any(key.startswith("file:") for key in parameters):
            if is_foreign and self._are_files_allowed:
                raise forwarded_refusal(forwarding)
            raise unsupported(
                "files in load requests are switched off; start the server with "
                "'--allow-file-override=true' to allow them"
            )
        may_name = None if identity is None or caller else identity.may_see
        rights = OverrideRights(may_bring_code, may_name)
        await self.repository.load(name, parameters, caller, rights)
        if self.on_models_changed is not None:
            await self.on_models_changed()

    async def unload_model(self, name: str, *, unload_dependents: bool, caller: str = "") -> None:
        await self.repository.unload(name, unload_dependents=unload_dependents, caller=caller)
        if self.on_models_changed is not None:
            await self.on_models_changed()
