"""Every message between the server and a worker, and between the server and a template process.

Each is a tagged msgpack array: a length of 4 bytes, then the struct. Descriptors ride beside
`Slots`, `Started` and `Fork`.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from naiad.ipc.work import (
    CallRequest,
    ControlOperation,
    DirectCall,
    LoadArguments,
    WorkError,
    WorkRequest,
    WorkResponse,
)
from naiad.metrics.operation import MetricOperation


class Message(msgspec.Struct, array_like=True, tag_field="t"):
    pass


# Both ways.


class Slots(Message, tag=1):
    """New shared memory of the sender, one descriptor each, in this order; and slots that are no
    more."""

    ids: list[int]
    sizes: list[int]
    dropped: list[int] = []


class Released(Message, tag=2):
    """Leases of the receiver's slots that have ended."""

    slots: list[int]


# Server to worker.


class Configure(Message, tag=10):
    """Complete the config from the model itself; answered by `Configured` or `Failed`."""

    arguments: LoadArguments


class Load(Message, tag=11):
    """Answered by `Loaded` or `Failed`."""

    arguments: LoadArguments


class Execute(Message, tag=12):
    batch: int
    requests: list[WorkRequest]


class Cancel(Message, tag=13):
    handles: list[int]


class Flow(Message, tag=18):
    """Who reads the responses to a request cannot keep up, or can again: sending more waits
    meanwhile."""

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
    """Finalize the model and exit."""


class Lend(Message, tag=19):
    """Requests also come on the descriptor beside this, until its end; that is answered by
    `Returned`."""

    lease: int


class Borrow(Message, tag=20):
    """Calls of the same form as this one may go to the descriptor beside this."""

    lease: int
    call: int
    instance_name: str


# Worker to server.


class Started(Message, tag=30):
    """The first message of a worker, with its own pidfd: no other process can have taken the
    number."""

    pid: int


class Configured(Message, tag=31):
    config: bytes


class Loaded(Message, tag=32):
    is_async: bool
    """`execute` is a coroutine: further batches may be sent while earlier ones await."""
    has_ready_hook: bool


class Failed(Message, tag=33):
    error: WorkError
    details: str
    """The end of the traceback, for the log."""


class Executed(Message, tag=34):
    batch: int
    compute_input_end_ns: int
    compute_output_start_ns: int
    responses: list[WorkResponse | None]


class Response(Message, tag=35):
    handle: int
    response: WorkResponse | None
    is_final: bool


class ResponseGroup(Message, tag=43):
    """Responses to several requests: what one step of a language model made for each of them."""

    items: list[Response]


class StartCall(Message, tag=36):
    call: CallRequest


class CallFlow(Message, tag=42):
    """The same for the responses to a BLS call, which the worker reads."""

    call: int
    is_paused: bool


class CancelCall(Message, tag=37):
    call: int


class Metric(Message, tag=38):
    question: int
    """0 when no answer is wanted."""
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
    """The worker has read every request of this lease: the lease was recalled, or the borrower is
    gone."""

    lease: int


class DirectCalls(Message, tag=45):
    """That the worker has made since it told of them the last time."""

    calls: list[DirectCall]


class Pong(Message, tag=41):
    number: int
    is_ready: bool
    """What the model's own `is_ready` says."""


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


# Server to template, and back.


class Fork(Message, tag=60):
    """Comes with the descriptor of the new worker's channel."""

    worker: int
    title: str


class Forked(Message, tag=61):
    worker: int
    pid: int


class Exited(Message, tag=62):
    worker: int
    status: int
    """As waitpid gives it."""


class TemplateReady(Message, tag=63):
    pass


class TemplateFailed(Message, tag=64):
    message: str


ToTemplate: TypeAlias = Fork
FromTemplate: TypeAlias = Forked | Exited | TemplateReady | TemplateFailed
