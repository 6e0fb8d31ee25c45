"""Every message between the server process and a frontend process.

Framing, descriptors and shared memory are those of worker channels (naiad.ipc.framing). Requests
and responses travel in lists: one message per turn of the sender's event loop.
"""

from __future__ import annotations

from typing import TypeAlias, final

import msgspec

from naiad.core.identity import KeyLimits
from naiad.core.model_spec import ModelSpec
from naiad.core.region_slice import RegionUse
from naiad.core.request import ParameterValue
from naiad.core.tensor import Tensor
from naiad.ipc.messages import Exited, Forked, Message, Released, Slots, Unmapped
from naiad.ipc.work import WorkError

HTTP = "http"
GRPC = "grpc"

# Frontend to server.


class JobEntrance(msgspec.Struct, array_like=True):
    """What the guard of a frontend says about a request that it has let in."""

    caller: int
    """The identity, as `Caller` has introduced it."""
    number: int = 0
    """Identifies the admission until `Ended`; 0 if it ends with its job."""
    num_tokens: int = 0
    """What the request may use of its key's tokens."""
    head_model: str = ""
    """The model that the head of the request names."""
    model_name: str = ""
    """The model that the request is for, if its head does not name it."""
    address: str = ""
    counts_tokens: bool = False
    request_id: str = ""


class RequestDetails(msgspec.Struct, array_like=True):
    """What only some requests have."""

    model_name: str
    model_version: str = ""
    requested_outputs: list[str] = []
    parameters: dict[str, ParameterValue] = {}
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    priority: int = 0
    timeout_us: int = 0
    deadline_ns: int = 0
    regions: RegionUse | None = None
    entrance: JobEntrance | None = None
    """None where nobody needs an API key."""


class RemoteRequest(msgspec.Struct, array_like=True):
    """An InferRequest that a frontend has decoded."""

    handle: int
    """Identifies the request on its channel until its final response."""
    copy: int
    """The number of the model's copy that accepted the request; 0 if the server must validate
    it."""
    batch_size: int
    start_ns: int
    is_grpc: bool
    is_inline: bool
    """No tensor is in shared memory."""
    id: str
    inputs: list[Tensor]
    details: RequestDetails | None = None
    """None: the request is for the latest version of the copy's model, and has none of these."""


class ReceivedRequest(msgspec.Struct, array_like=True):
    """A RemoteRequest as the server receives it: it looks at the tensors only where it must."""

    handle: int
    copy: int
    batch_size: int
    start_ns: int
    is_grpc: bool
    is_inline: bool
    id: str
    inputs: msgspec.Raw
    details: RequestDetails | None = None


class RemoteBundle(msgspec.Struct, array_like=True):
    """Requests without shared memory that differ in id and data only, in the order of their
    arrival."""

    handles: list[int]
    copy: int
    """As in `RemoteRequest`, and never 0."""
    batch_size: int
    """The batch size of each request."""
    is_grpc: bool
    start_ns: list[int]
    ids: list[str]
    """Empty if none of the requests has an id."""
    inputs: list[list[Tensor]]
    details: RequestDetails | None = None
    """Only a model, a version and outputs, if any."""


class ReceivedBundle(msgspec.Struct, array_like=True):
    """A RemoteBundle as the server receives it."""

    handles: list[int]
    copy: int
    batch_size: int
    is_grpc: bool
    start_ns: list[int]
    ids: list[str]
    inputs: list[msgspec.Raw]
    details: RequestDetails | None = None

    def requests(self) -> list[ReceivedRequest]:
        """The same requests, one by one."""
        return [
            ReceivedRequest(
                handle,
                self.copy,
                self.batch_size,
                start_ns,
                self.is_grpc,
                True,
                self.ids[index] if self.ids else "",
                inputs,
                self.details,
            )
            for index, (handle, start_ns, inputs) in enumerate(
                zip(self.handles, self.start_ns, self.inputs, strict=True)
            )
        ]


class Infer(Message, tag=100):
    requests: list[RemoteRequest]
    bundles: list[RemoteBundle] = []
    """They came after `requests`, as far as they are for the same copies."""


class ReceivedInfer(Message, tag=100):
    """`Infer`, as the server receives it."""

    requests: list[ReceivedRequest]
    bundles: list[ReceivedBundle] = []


class AskModel(Message, tag=151):
    """A request of a stream names a model that the frontend does not know. The response is the
    error for the client."""

    handle: int
    model_name: str
    model_version: str
    entrance: JobEntrance | None = None
    """None where nobody needs an API key."""


class Peer(msgspec.Struct, array_like=True, frozen=True):
    """The client at the other end of a connection that a frontend has."""

    address: str = ""
    certificate: bytes = b""
    """What the ssl module shows of the client's certificate, as JSON; empty without one."""
    port: int = 0
    server: tuple[str, int] | None = None
    """The server's end of the connection."""


class Abandon(Message, tag=101):
    """The clients of these requests are gone."""

    handles: list[int]


class SequenceLost(Message, tag=155):
    """A request of this sequence was refused or lost in the frontend."""

    model_name: str
    model_version: str
    sequence_id: int | str
    caller: int = 0
    """0 where nobody needs an API key."""


class Leave(Message, tag=102):
    """An HTTP connection goes to the server process, with its descriptor. `data` was received and
    not handled."""

    data: bytes
    num_moves: int
    peer: Peer | None = None
    """The client, where the descriptor does not show it."""


class BadOutputs(Message, tag=152):
    """A worker of this model has sent outputs that are not tensors."""

    model_name: str
    model_version: str


class StreamFlow(Message, tag=150):
    """The client of a request does not keep up with its responses, or does again."""

    handle: int
    is_paused: bool


class OpenCall(Message, tag=103):
    """A gRPC call that the server process handles."""

    call: int
    connection: int
    """Identifies the client's connection while it has such calls."""
    path: str
    metadata: dict[str, str]
    deadline_ns: int = 0
    receive_start_ns: int = 0
    peer: Peer | None = None
    """None where nobody needs an API key."""


class CallMessage(Message, tag=104):
    """A request message of a call, as a single tensor, so that a large one travels in shared
    memory."""

    call: int
    content: list[Tensor]


class CallHalfClosed(Message, tag=105):
    call: int


class CallCancelled(Message, tag=106):
    call: int


class CallStopped(Message, tag=107):
    """The frontend stops: the call must end as soon as it has nothing in flight."""

    call: int


class CallCongested(Message, tag=108):
    call: int
    is_congested: bool


class Connections(Message, tag=109):
    """How many connections each endpoint of the frontend has, and how many it was sent by then."""

    num_open: dict[str, int]
    num_accepted: dict[str, int]


class Counted(Message, tag=110):
    """What the metrics page shows of a frontend."""

    faults: dict[str, dict[str, int]]
    """Faults of clients since the start of the frontend, by endpoint and cause."""
    max_lag_s: float
    """As naiad.metrics.loop_lag.LoopTimes."""
    max_busy_s: float
    num_lines_lost: int
    """Lines of the log that could not be written."""


class Alive(Message, tag=111):
    """The reply to `AskAlive`, and the first message of a frontend."""

    number: int
    busy: float = 0.0
    """The part of the time since the last reply in which the frontend had work."""


class StopAnnounced(Message, tag=153):
    pass


class Current(Message, tag=112):
    """The reply to `Models`: the frontend acts on this state from now on."""

    generation: int


class KeysCurrent(Message, tag=113):
    """The reply to `KeyState`: the frontend acts on these keys from now on."""

    generation: int


class CallerData(msgspec.Struct, array_like=True):
    """The identity behind a signed token."""

    name: str
    scopes: list[str]
    models: tuple[str, ...]
    limits: KeyLimits
    priority: int
    metadata: dict[str, str]


class Caller(Message, tag=114):
    """Introduces the sender of requests."""

    number: int
    key_id: str
    data: CallerData | None = None
    """None for a key that the server process knows."""


class Enter(Message, tag=115):
    """A request that the frontend has let in, and that does not become a job."""

    entrance: JobEntrance
    api: str
    status: int | None = None
    """Set if the request has ended. None: its response waits for `Entered`."""


class Ended(Message, tag=116):
    """The request of an admission has its response, or its client is gone."""

    number: int
    status: int
    num_prompt_tokens: int
    num_output_tokens: int


class RefusalCounted(Message, tag=117):
    """The guard of the frontend has refused a request. `caller` is 0 if it has no valid key."""

    caller: int
    code: str


class RefusalAudited(Message, tag=118):
    """The same refusal, for the audit log."""

    key_id: str
    api: str
    model_name: str
    address: str
    code: str
    request_id: str = ""


class UnknownTokenKey(Message, tag=119):
    """A token names a key that the key set does not have."""


# Server to frontend.


class RemoteModel(msgspec.Struct, array_like=True):
    """A version of a model that frontends may serve."""

    key: str
    """The name in requests."""
    version: int
    is_latest: bool
    copy: int
    spec: ModelSpec
    config: bytes = b""
    """What OpenAI's routes read of the ModelConfig, encoded; often empty."""


class Models(Message, tag=120):
    """All models that the frontend may serve from now on."""

    generation: int
    models: list[RemoteModel]
    is_traced: bool = False
    """Traces are sampled: the frontend serves nothing but the streams that are open."""


class KeyState(Message, tag=132):
    """All API keys from now on. Large files travel in shared memory, as the content of a call."""

    generation: int
    document: list[Tensor]
    key_set: list[Tensor]
    """The keys of the identity provider; empty where there is none."""


class Entered(Message, tag=133):
    """The reply to `Enter`: the request has been let in, or the error refuses it."""

    number: int
    error: WorkError | None
    fields: list[tuple[str, int]]
    """What is left of the key's limits."""


class Rates(Message, tag=134):
    """(handle, what is left of the key's limits) of jobs whose first responses follow."""

    fields: list[tuple[int, list[tuple[str, int]]]]


class Accept(Message, tag=121):
    """A connection for the frontend, with its descriptor. `data` was received and not handled."""

    endpoint: str
    data: bytes = b""
    num_moves: int = 0


class RemoteResponse(msgspec.Struct, array_like=True):
    handle: int
    is_final: bool
    has_response: bool
    """False for a final flag that came without a response."""
    model_name: str = ""
    model_version: str = ""
    outputs: list[Tensor] = []
    parameters: dict[str, ParameterValue] = {}
    error: WorkError | None = None
    is_inline: bool = True
    """The server has put no tensor into shared memory. It may not have looked at the outputs, and a
    reference that a worker has put there must not be followed."""


@final
class BundleResponse(msgspec.Struct, array_like=True):
    """The final responses of requests that have all succeeded."""

    handles: list[int]
    model_name: str
    model_version: str
    outputs: list[list[Tensor]]
    """A reference into shared memory must not be followed: the server has not looked at it."""


class Respond(Message, tag=122):
    responses: list[RemoteResponse]
    bundles: list[BundleResponse] = []


class CallReply(Message, tag=123):
    """The single response of a unary call, and status OK."""

    call: int
    content: list[Tensor]
    fields: list[tuple[bytes, bytes]] = []
    """Further trailers."""


class CallSend(Message, tag=124):
    call: int
    content: list[Tensor]


class CallFinish(Message, tag=125):
    call: int
    status: int
    message: str
    fields: list[tuple[bytes, bytes]]


class CallPause(Message, tag=126):
    """The frontend must read no more messages of the call for now, or may again."""

    call: int
    is_paused: bool


class CallIdle(Message, tag=127):
    """None of the call's messages is in flight, or one is."""

    call: int
    is_idle: bool


class AskAlive(Message, tag=128):
    number: int


class AnnounceStop(Message, tag=136):
    """The frontend tells its gRPC clients to begin nothing new, and says so by `StopAnnounced` when
    they have read it, or after `limit_s`."""

    limit_s: float


class Stop(Message, tag=129):
    """The frontend finishes its requests within `grace_s` and exits."""

    grace_s: float


class Logging(Message, tag=131):
    """The log settings, as the logging extension shows them."""

    settings: dict[str, str | bool | int]


class GiveUp(Message, tag=135):
    """The frontend has more work than others: this part of the HTTP connections that it works for
    goes to the server process, each before its next request, and from there to others."""

    share: float


class ReadAgain(Message, tag=130):
    """SIGHUP: the frontend reads its certificates and opens its log file again."""


# Server to launcher; the launcher responds with Forked and Exited of naiad.ipc.messages.


class MethodKind(msgspec.Struct, array_like=True, frozen=True):
    """What a frontend needs to know about an RPC that it forwards."""

    path: str
    api: str
    is_stream: bool
    is_compressed: bool


class ForkFrontend(Message, tag=140):
    """Forks a frontend, whose channel is the descriptor that comes with this message."""

    number: int
    place: int
    """Its place in the shared page of the memory budget."""
    methods: list[MethodKind]


class KillFrontend(Message, tag=141):
    """Kills a frontend that the server has given up. Only the launcher knows whether its process id
    still belongs to it."""

    number: int


ToLauncher: TypeAlias = ForkFrontend | KillFrontend | Slots | Released
FromLauncher: TypeAlias = Forked | Exited | Slots | Released
FromFrontend: TypeAlias = (
    Slots
    | Released
    | Unmapped
    | ReceivedInfer
    | AskModel
    | Abandon
    | SequenceLost
    | Leave
    | BadOutputs
    | StreamFlow
    | OpenCall
    | CallMessage
    | CallHalfClosed
    | CallCancelled
    | CallStopped
    | CallCongested
    | Connections
    | Counted
    | Alive
    | StopAnnounced
    | Current
    | KeysCurrent
    | Caller
    | Enter
    | Ended
    | RefusalCounted
    | RefusalAudited
    | UnknownTokenKey
)
ToFrontend: TypeAlias = (
    Slots
    | Released
    | Unmapped
    | Models
    | Accept
    | Respond
    | CallReply
    | CallSend
    | CallFinish
    | CallPause
    | CallIdle
    | AskAlive
    | AnnounceStop
    | Stop
    | Logging
    | GiveUp
    | ReadAgain
    | KeyState
    | Entered
    | Rates
)


def content_of(data: bytes | bytearray | memoryview) -> list[Tensor]:
    """Wraps the bytes of a gRPC message for `Link.place`."""
    return [Tensor("", "", [], data)]
