"""The inference core as a frontend process sees it: models that the server process serves, and
requests that travel there.

In:  `Models` messages; requests of the frontend's endpoints. Out: `Infer`, `AskModel` and `Abandon`
     messages; responses, at each request's stream.
Rule: a frontend validates requests, and the server decides everything else. A request that was
      validated against another copy than the one that serves is validated again there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from itertools import count

from naiad.core.identity import Identity
from naiad.core.job import Job
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.statistics import ModelStatistics
from naiad.core.tensor import REFERENCE
from naiad.errors import Code, NaiadError, internal, unavailable
from naiad.frontend_process.messages import (
    GRPC,
    Abandon,
    AskModel,
    BundleResponse,
    Infer,
    Models,
    RemoteBundle,
    RemoteModel,
    RemoteRequest,
    RemoteResponse,
    RequestDetails,
    Respond,
    SequenceLost,
    StreamFlow,
    ToFrontend,
)
from naiad.frontend_process.outbox import Outbox
from naiad.frontend_process.remote_guard import RemoteAdmission
from naiad.frontends.core import UndecidedError
from naiad.instances.channel import Channel
from naiad.ipc.work import WorkError
from naiad.keys.account import Admission
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.model import Model
from naiad.repository.repository import LATEST, RETRY_AFTER_S
from naiad.shm.arena import INLINE_MAX_BYTES, Arena
from naiad.trace.tracing import Tracing


class RemoteScheduler:
    """The scheduler of one copy of a model: it is in the server process."""

    def __init__(self, requests: RemoteRequests, copy: int, *, is_decoupled: bool) -> None:
        self._requests = requests
        self._copy = copy
        self._is_decoupled = is_decoupled

    def enqueue(self, job: Job) -> ResponseStream:
        stream = self._requests.send(job, self._copy)
        if self._is_decoupled:
            self._requests.follow_flow(stream)
        return stream

    def inflight(self) -> int:
        return 0

    async def stop(self) -> None:
        """The server process does that."""

    @property
    def resizable(self) -> None:
        return None

    @property
    def sequences(self) -> None:
        return None


class RemoteRequests:
    """The requests that one frontend has sent and whose final response has not come. Requests of
    one turn of the event loop are one message."""

    def __init__(self, loop: asyncio.AbstractEventLoop, channel: Channel[ToFrontend]) -> None:
        self._channel = channel
        self._handles = count(1)
        self._streams: dict[int, tuple[ResponseStream, str]] = {}
        """Handle -> the stream, and the id of its request."""
        self._held: dict[int, list[tuple[ResponseStream, InferResponse | None, bool]]] = {}
        """Handle -> responses that were on their way when the client stopped to keep up."""
        self._unsent = Outbox(loop, self._send_all, channel.has_unread)
        self.is_grpc = False
        """Where the request that is being sent comes from."""
        self.caller_of: Callable[[Identity], int] | None = None
        """The number by which the server process knows an identity. None where nobody needs an API
        key."""

    def __len__(self) -> int:
        return len(self._streams)

    def send(self, job: Job, copy: int) -> ResponseStream:
        """Raises NaiadError when there is no shared memory left."""
        request, stream = job.request, job.stream
        inputs, is_inline = request.inputs, True
        for tensor in inputs:
            if len(tensor.data) > INLINE_MAX_BYTES:
                inputs, is_inline = list(inputs), False
                self._channel.link.place(inputs)
                break
        handle = next(self._handles)
        self._streams[handle] = stream, request.id
        details = None if copy and _is_plain(request) else _details(request)
        if details is not None and isinstance(request.admission, RemoteAdmission):
            details.entrance = request.admission.join(handle)
        self._unsent.add(
            RemoteRequest(
                handle,
                copy,
                job.batch_size,
                job.start_ns,
                self.is_grpc,
                is_inline,
                request.id,
                inputs,
                details,
            )
        )
        stream.on_cancel(self._cancel, handle)
        return stream

    def ask_model(
        self,
        name: str,
        version: str,
        admission: Admission | None,
        then: Callable[[NaiadError], None],
    ) -> None:
        """Asks the server process what is wrong with a request for an unknown model."""
        handle = next(self._handles)
        stream = ResponseStream()

        def decide(response: InferResponse | None, is_final: bool) -> None:
            assert response is not None
            assert response.error is not None
            then(response.error)

        stream.deliver_to(decide)
        self._streams[handle] = stream, ""
        entrance = admission.join(handle) if isinstance(admission, RemoteAdmission) else None
        self._unsent.flush()
        self._channel.send(AskModel(handle, name, version, entrance))

    def break_sequence(self, request: InferRequest) -> None:
        """After the requests before it, so that none of them begins the sequence again."""
        self._unsent.flush()
        identity = request.identity
        caller = 0 if identity is None or self.caller_of is None else self.caller_of(identity)
        self._channel.send(
            SequenceLost(request.model_name, request.model_version, request.sequence_id, caller)
        )

    def flush(self) -> None:
        """Sends everything now."""
        self._unsent.flush()

    def follow_flow(self, stream: ResponseStream) -> None:
        """The server process holds the responses of the last request back while its client does not
        keep up."""
        stream.on_flow(partial(self._set_flow, next(reversed(self._streams))))

    def _set_flow(self, handle: int, is_paused: bool) -> None:
        if handle in self._streams:
            self._unsent.flush()
            self._channel.send(StreamFlow(handle, is_paused))
        if is_paused:
            self._held.setdefault(handle, [])
            return
        held = self._held.pop(handle, [])
        for index, (stream, response, is_final) in enumerate(held):
            if handle in self._held:  # the client has fallen behind again
                self._held[handle] += held[index:]
                return
            stream.put(response, is_final)

    def _send_all(self, requests: list[RemoteRequest]) -> None:
        for run in _runs(requests):
            try:
                self._channel.send(to_message(run))
            except (TypeError, ValueError, OverflowError):
                self._send_one_by_one(run)

    def _send_one_by_one(self, requests: list[RemoteRequest]) -> None:
        """A value of one of them cannot be part of a message. Decoders refuse those, so this is a
        defect of a decoder, and only that request fails."""
        for request in requests:
            try:
                self._channel.send(Infer([request]))
            except (TypeError, ValueError, OverflowError) as error:
                stream, _ = self._streams.pop(request.handle)
                self._channel.link.unplace(request.inputs)
                stream.fail(internal(f"the request could not be sent to the scheduler: {error}"))

    def _cancel(self, handle: int) -> None:
        self._held.pop(handle, None)
        if handle not in self._streams:
            return
        self._unsent.flush()
        self._channel.send(Abandon([handle]))

    def on_responses(self, message: Respond) -> None:
        """Raises BrokenLinkError."""
        for item in message.responses:
            self._deliver(item)
        for bundle in message.bundles:
            self._deliver_bundle(bundle)
        self._unsent.resume()

    def _deliver_bundle(self, bundle: BundleResponse) -> None:
        name, version, pop = bundle.model_name, bundle.model_version, self._streams.pop
        for handle, outputs in zip(bundle.handles, bundle.outputs, strict=True):
            for tensor in outputs:
                if tensor.data.__class__ is REFERENCE:
                    self._deliver(RemoteResponse(handle, True, True, name, version, outputs))
                    break
            else:
                stream, id = pop(handle)
                stream.put(InferResponse(name, version, id, outputs), True)

    def _deliver(self, item: RemoteResponse) -> None:
        if item.is_final:
            stream, id = self._streams.pop(item.handle)
        else:
            stream, id = self._streams[item.handle]
        for tensor in item.outputs:
            if tensor.data.__class__ is REFERENCE:
                self._resolve(item)
                break
        error = item.error
        response = (
            InferResponse(
                item.model_name,
                item.model_version,
                id,
                item.outputs,
                item.parameters,
                None if error is None else _error(error),
            )
            if item.has_response
            else None
        )
        if self._held and item.handle in self._held:
            self._held[item.handle].append((stream, response, item.is_final))
        else:
            stream.put(response, item.is_final)

    def _resolve(self, item: RemoteResponse) -> None:
        try:
            if item.is_inline:
                raise internal("the worker of the model has sent a wrong reference")
            self._channel.link.resolve(item.outputs)
        except NaiadError as error:
            item.outputs, item.error = [], WorkError.of(error)


def _runs(requests: list[RemoteRequest]) -> list[list[RemoteRequest]]:
    """Divides the requests among messages, so that those for the same copy of a model keep their
    order: in a message, bundles come last. Nearly always there is one message."""
    runs: list[list[RemoteRequest]] = [[]]
    bundled: set[int] = set()
    for request in requests:
        if _may_bundle(request):
            bundled.add(request.copy)
        elif bundled and (request.copy in bundled or not request.copy):
            runs.append([])
            bundled.clear()
        runs[-1].append(request)
    return runs


def to_message(requests: list[RemoteRequest]) -> Infer:
    """Makes bundles of the requests that may be part of one."""
    singles: list[RemoteRequest] = []
    bundles: list[RemoteBundle] = []
    current: dict[int, RemoteBundle] = {}
    """The copy -> its last bundle."""
    for request in requests:
        if not _may_bundle(request):
            singles.append(request)
            continue
        bundle = current.get(request.copy)
        if (
            bundle is None
            or bundle.batch_size != request.batch_size
            or bundle.is_grpc != request.is_grpc
            or bundle.details != request.details
        ):
            bundle = current[request.copy] = RemoteBundle(
                [], request.copy, request.batch_size, request.is_grpc, [], [], [], request.details
            )
            bundles.append(bundle)
        bundle.handles.append(request.handle)
        bundle.start_ns.append(request.start_ns)
        bundle.ids.append(request.id)
        bundle.inputs.append(request.inputs)
    for bundle in bundles:
        if not any(bundle.ids):
            bundle.ids = []
    return Infer(singles, bundles)


def _may_bundle(request: RemoteRequest) -> bool:
    """The request has nothing of its own but an id and data."""
    if not request.copy or not request.is_inline:
        return False
    details = request.details
    return details is None or details == RequestDetails(
        details.model_name, details.model_version, details.requested_outputs
    )


def _error(error: WorkError) -> NaiadError:
    made = NaiadError(Code[error.code], error.message, error.retry_after_s)
    made.is_leaving = error.is_leaving
    made.is_refusal = error.is_refusal
    return made


def _is_plain(request: InferRequest) -> bool:
    """The request has nothing but an id and inputs."""
    return not (
        request.model_version
        or request.requested_outputs
        or request.parameters
        or request.sequence_id
        or request.sequence_start
        or request.sequence_end
        or request.priority
        or request.timeout_us
        or request.deadline_ns
        or request.regions is not None
        or request.admission is not None
    )


def _details(request: InferRequest) -> RequestDetails:
    return RequestDetails(
        request.model_name,
        request.model_version,
        request.requested_outputs,
        request.parameters,
        request.sequence_id,
        request.sequence_start,
        request.sequence_end,
        request.priority,
        request.timeout_us,
        request.deadline_ns,
        request.regions,
    )


class ModelTable:
    """The models that the server process lets frontends serve."""

    def __init__(self, requests: RemoteRequests, arena: Arena) -> None:
        self._requests = requests
        self._arena = arena
        self._copies: dict[int, Model] = {}
        self._serving: dict[tuple[str, str], Model] = {}
        """By name and version, as clients write them."""
        self._known: dict[tuple[str, str], Model] = {}
        """Also models that have left: a request that was on its way here when its model left is
        sent to the server, which knows what to respond."""
        self.is_traced = False
        """Traces are sampled: only streams that are open are served here."""

    def update(self, message: Models) -> None:
        before, self._copies = self._copies, {}
        self._serving = {}
        for entry in message.models:
            model = before.pop(entry.copy, None)
            if model is None:
                model = self._build(entry)
            else:
                model.spec = entry.spec
            self._copies[entry.copy] = model
            self._serving[entry.key, str(entry.version)] = model
            if entry.is_latest:
                self._serving[entry.key, LATEST] = model
        if len(self._known) > 4 * len(self._serving) + 1024:
            self._known.clear()
        self._known.update(self._serving)
        for model in before.values():
            _end_plans(model)
        if message.is_traced and not self.is_traced:
            for model in self._copies.values():
                _end_plans(model)
        self.is_traced = message.is_traced

    def _build(self, entry: RemoteModel) -> Model:
        spec = entry.spec
        config = ModelConfig(name=spec.name)
        if entry.config:
            config.ParseFromString(entry.config)
        return Model(
            spec,
            config,
            ModelStatistics(spec.name, spec.version),
            [],
            RemoteScheduler(self._requests, entry.copy, is_decoupled=spec.is_decoupled),
            self._arena,
        )

    def is_served(self, name: str, version: str) -> bool:
        return (name, version) in self._serving and not self.is_traced

    def serving(self, name: str, version: str) -> Model | None:
        """The model that serves now, also while traces are sampled."""
        return self._serving.get((name, version))

    def model(self, name: str, version: str) -> Model:
        """Raises NaiadError for a model that has never been here."""
        model = self._serving.get((name, version)) or self._known.get((name, version))
        if model is None:
            raise unavailable(not_ready(name))
        return model


def _end_plans(model: Model) -> None:
    """The fast paths forget the model, or begin again."""
    callbacks, model.on_stopped = model.on_stopped, []
    for callback in callbacks:
        callback()


class RemoteCore:
    """What the endpoints of a frontend need (naiad.frontends.core.Inference). Each endpoint has its
    own."""

    def __init__(
        self, endpoint: str, models: ModelTable, requests: RemoteRequests, arena: Arena
    ) -> None:
        self.tracing = Tracing()
        """Never on: the server serves connections itself while it traces."""
        self._models = models
        self._is_grpc = endpoint == GRPC
        self._requests = requests
        self._arena = arena

    def model(self, name: str, version: str = LATEST) -> Model:
        """Raises NaiadError for a model that has never been here."""
        return self._models.model(name, version)

    def is_leaving(self, model_name: str) -> bool:
        """Errors of the server process say so themselves."""
        return not self._models.is_served(model_name, LATEST)

    def infer(self, request: InferRequest, model: Model | None = None) -> ResponseStream:
        """Raises NaiadError."""
        start_ns = time.monotonic_ns()
        self._requests.is_grpc = self._is_grpc
        if model is None:
            model = self.model(request.model_name, request.model_version)
        if request.regions is not None:
            # The server reads the tensors and validates the request afterwards.
            stream = self._requests.send(Job(request, ResponseStream(), start_ns), 0)
            if model.spec.is_decoupled:
                self._requests.follow_flow(stream)
            return stream
        try:
            model.check(request)
            return model.scheduler.enqueue(
                Job(request, ResponseStream(), start_ns, request.batch_size)
            )
        except NaiadError:
            self.break_sequence(request)
            raise

    def break_sequence(self, request: InferRequest) -> None:
        if request.sequence_id:
            self._requests.break_sequence(request)

    def infer_validated(self, request: InferRequest, model: Model) -> ResponseStream:
        assert request.signature is not None
        self._requests.is_grpc = self._is_grpc
        return model.scheduler.enqueue(
            Job(request, ResponseStream(), time.monotonic_ns(), request.signature.batch_size)
        )

    def input_buffer(self, model_name: str, num_bytes: int) -> memoryview | None:
        if num_bytes <= INLINE_MAX_BYTES:
            return None
        try:
            return self._arena.allocate(num_bytes)
        except OSError:
            return None  # as Repository.input_buffer


class ServingCore(RemoteCore):
    """Finds only models that serve now. Streams live longer than the models that they name, and a
    request of OpenAI's routes looks at several models."""

    def model(self, name: str, version: str = LATEST) -> Model:
        """Raises AbsentModelError."""
        model = self._models.serving(name, version)
        if model is None:
            raise AbsentModelError(self._requests, name, version)
        return model


class AbsentModelError(UndecidedError):
    """The frontend does not know the model. Which of Triton's errors the client gets depends on
    state of the server process."""

    def __init__(self, requests: RemoteRequests, name: str, version: str) -> None:
        super().__init__(Code.UNAVAILABLE, not_ready(name), RETRY_AFTER_S)
        self._requests = requests
        self._name = name
        self._version = version

    def decide(self, admission: Admission | None, then: Callable[[NaiadError], None]) -> None:
        self._requests.ask_model(self._name, self._version, admission, then)


def not_ready(name: str) -> str:
    return f"Request for unknown model: '{name}' is not at ready state"
