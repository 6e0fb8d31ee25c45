"""Every message between the server and a worker, and between the server and a template process.

Each is a tagged msgpack array: a length of 4 bytes, then the struct. Descriptors are sent with
`Slots`, `Started`, `Loaded`, `Lend`, `Borrow` and `Fork`.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from naiad.ipc.work import (
    CallRequest,
    Confinement,
    ControlOperation,
    DirectCall,
    EncodedResponse,
    LoadArguments,
    WorkBundle,
    WorkError,
    WorkRequest,
    WorkResponse,
)
from naiad.metrics.operation import MetricOperation


class Message(msgspec.Struct, array_like=True, tag_field="t"):
    pass


# In both directions.


class Slots(Message, tag=1):
    """New shared memory of the sender, with one descriptor per slot, in this order; and slots that
    do not exist any more."""

    ids: list[int]
    sizes: list[int]
    dropped: list[int] = []


class Released(Message, tag=2):
    """Slots of the receiver that the sender does not use any more."""

    slots: list[int]


class Unmapped(Message, tag=3):
    """Slots of the receiver whose descriptors the sender had no room for. They must be announced
    again (only between the server and frontend processes)."""

    slots: list[int]


# Server to worker.


class Configure(Message, tag=10):
    """The backend completes the config from the model. The reply is `Configured` or `Failed`."""

    arguments: LoadArguments


class Load(Message, tag=11):
    """The reply is `Loaded` or `Failed`."""

    arguments: LoadArguments


class Execute(Message, tag=12):
    batch: int
    requests: list[WorkRequest]
    bundles: list[WorkBundle] = []
    """Further requests of the batch."""


class Cancel(Message, tag=13):
    handles: list[int]


class Flow(Message, tag=18):
    """The reader of the responses to a request cannot keep up, or can again. The worker sends no
    more meanwhile."""

    handle: int
    is_paused: bool


class CallEvent(Message, tag=14):
    """The next response to a BLS call."""

    call: int
    response: WorkResponse | None
    is_final: bool


class Reply(Message, tag=15):
    """The reply to a `Metric` or `Control` that asked for one."""

    question: int
    value: float = 0.0
    error: WorkError | None = None


class Ping(Message, tag=16):
    number: int


class Unload(Message, tag=17):
    """The worker finalizes the model and exits."""


class Lend(Message, tag=19):
    """Requests also come on the descriptor that is sent with this message, until its end. The
    worker reports that with `Returned`."""

    lease: int


class Borrow(Message, tag=20):
    """Calls with the same signature as this one may go to the descriptor that is sent with this
    message."""

    lease: int
    call: int
    instance_name: str


# Worker to server.


class Started(Message, tag=30):
    """The first message of a worker. Two descriptors are sent with it: the worker's own pidfd,
    which cannot refer to another process as the number could, and the pipe that it prints to."""

    pid: int


class Configured(Message, tag=31):
    config: bytes


class Loaded(Message, tag=32):
    is_async: bool
    """`execute` is a coroutine: further batches may be sent while earlier ones await."""
    has_ready_hook: bool
    """The model says itself whether it is ready. The descriptor of a socket for questions is sent
    with this message (naiad.ipc.readiness)."""
    facts: dict[str, str] = {}
    """What the model found out while it loaded: shown as parameters of its config."""


class Failed(Message, tag=33):
    error: WorkError
    details: str
    """The end of the traceback, for the log."""


class Executed(Message, tag=34):
    batch: int
    compute_input_end_ns: int
    compute_output_start_ns: int
    responses: list[WorkResponse | None]
    is_inline: bool = False
    """No tensor of the responses is in shared memory."""


class EncodedExecuted(Message, tag=34):
    """`Executed`, as a server with frontend processes receives it."""

    batch: int
    compute_input_end_ns: int
    compute_output_start_ns: int
    responses: list[EncodedResponse | None]
    is_inline: bool = False


class Response(Message, tag=35):
    handle: int
    response: WorkResponse | None
    is_final: bool


class ResponseGroup(Message, tag=43):
    """Responses to several requests: what one step of a language model made for each of them."""

    items: list[Response]
    is_inline: bool = False
    """No tensor of the responses is in shared memory."""


class EncodedItem(Message, tag=35):
    handle: int
    response: EncodedResponse | None
    is_final: bool


class EncodedGroup(Message, tag=43):
    """`ResponseGroup`, as a server with frontend processes receives it."""

    items: list[EncodedItem]
    is_inline: bool = False


class StartCall(Message, tag=36):
    call: CallRequest


class CallFlow(Message, tag=42):
    """The worker cannot keep up with the responses to a BLS call, or can again."""

    call: int
    is_paused: bool


class CancelCall(Message, tag=37):
    call: int


class Metric(Message, tag=38):
    question: int
    """0 when no reply is wanted."""
    operation: MetricOperation


class Control(Message, tag=39):
    question: int
    operation: ControlOperation


class LogLine(Message, tag=40):
    severity: str
    message: str
    file: str
    line: int


class Returned(Message, tag=44):
    """The worker has executed every request of this lease: the lease was recalled, or the borrower
    is gone."""

    lease: int


class DirectCalls(Message, tag=45):
    """The direct calls of the worker since its last report."""

    calls: list[DirectCall]


class Pong(Message, tag=41):
    number: int


ToWorker: TypeAlias = (
    Slots
    | Released
    | Configure
    | Load
    | Execute
    | Cancel
    | Flow
    | CallEvent
    | Reply
    | Ping
    | Unload
    | Lend
    | Borrow
)
ToServer: TypeAlias = (
    Slots
    | Released
    | Started
    | Configured
    | Loaded
    | Failed
    | Executed
    | Response
    | ResponseGroup
    | StartCall
    | CancelCall
    | CallFlow
    | Metric
    | Control
    | LogLine
    | Pong
    | Returned
    | DirectCalls
)


ToEncodingServer: TypeAlias = (
    Slots
    | Released
    | Started
    | Configured
    | Loaded
    | Failed
    | EncodedExecuted
    | Response
    | EncodedGroup
    | StartCall
    | CancelCall
    | CallFlow
    | Metric
    | Control
    | LogLine
    | Pong
    | Returned
    | DirectCalls
)
"""The same messages where the responses of a batch or of a step stay encoded."""


# Server to template, and back.


class Fork(Message, tag=60):
    """The template forks a worker. The descriptor of its channel is sent with this message."""

    worker: int
    title: str
    confinement: Confinement = Confinement()


class Forked(Message, tag=61):
    worker: int
    pid: int


class Exited(Message, tag=62):
    worker: int
    status: int
    """The status that waitpid returned."""


class TemplateReady(Message, tag=63):
    pass


class TemplateFailed(Message, tag=64):
    message: str


class Import(Message, tag=65):
    """The template imports what this model imports, before it forks the model's instances."""

    arguments: LoadArguments


class Imported(Message, tag=66):
    problem: str
    """Why workers must not be forked from this template; empty if they may."""


ToTemplate: TypeAlias = Fork | Import
FromTemplate: TypeAlias = Forked | Exited | TemplateReady | TemplateFailed | Imported
