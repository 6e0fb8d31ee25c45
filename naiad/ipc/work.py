"""What a backend sees of the process boundary: requests, responses, calls and load arguments, as
msgpack structs.

Small tensors travel inline; large ones as a `SlotRef` into shared memory (naiad.shm.arena), which
the receiving side replaces by a view before anyone else sees the struct. Nothing is pickled, and no
code or name of memory crosses the boundary, only data and numbers.
"""

from __future__ import annotations

import msgspec

from naiad.core.request import ParameterValue
from naiad.core.tensor import Tensor
from naiad.errors import Code, NaiadError

SEQUENCE_START = 1
SEQUENCE_END = 2


WorkTensor = Tensor
"""Both sides use this struct; after receipt `data` is a bytearray or a writable memoryview."""


class WorkRequest(msgspec.Struct, array_like=True):
    handle: int
    """Identifies this request on its channel until its final response."""
    id: str
    inputs: list[WorkTensor]
    requested_outputs: list[str] = []
    parameters: dict[str, ParameterValue] = {}
    correlation_id: int | str = 0
    flags: int = 0
    timeout_us: int = 0
    priority: int = 0
    trace_context: str = ""
    """The W3C trace headers as JSON, for the model to pass on."""
    is_null: bool = False
    """The request fills an empty slot of a sequence batch and needs no response."""
    trace_id: int = 0
    """The trace of the request; in a BLS call, the trace that the call belongs to. 0 means none."""
    key_id: str = ""
    """The API key that the request came with. Language models serve keys in turn."""
    key_weight: int = 1


class WorkBundle(msgspec.Struct, array_like=True):
    """Requests that differ in id and data only."""

    handle: int
    """The handle of the first request; the others follow."""
    ids: list[str]
    """Empty if none of the requests has an id."""
    inputs: list[list[WorkTensor]]
    requested_outputs: list[str] = []

    def requests(self) -> list[WorkRequest]:
        ids = self.ids or [""] * len(self.inputs)
        return [
            WorkRequest(handle, id, inputs, self.requested_outputs)
            for handle, (id, inputs) in enumerate(zip(ids, self.inputs, strict=True), self.handle)
        ]


class WorkError(msgspec.Struct, array_like=True):
    code: str
    """The name of a `naiad.errors.Code`, e.g. INVALID_ARG."""
    message: str
    retry_after_s: int | None = None
    """Set when the same request may succeed later, e.g. when an engine's own queue is full."""
    is_leaving: bool = False
    """The server stops, or the model does not serve: there is no point in trying again soon."""
    is_refusal: bool = False
    """The request has not reached a model."""

    def __post_init__(self) -> None:
        _check_code(self.code)

    @classmethod
    def of(cls, error: NaiadError) -> WorkError:
        return cls(error.code.name, error.message, error.retry_after_s)


class WorkResponse(msgspec.Struct, array_like=True):
    outputs: list[WorkTensor] = []
    error: WorkError | None = None
    parameters: dict[str, ParameterValue] = {}
    is_rescheduled: bool = False
    """This is not a response: the request goes back to the scheduler (iterative sequences only)."""


class EncodedResponse(msgspec.Struct, array_like=True):
    """A WorkResponse whose outputs the server passes on to a frontend process without looking at
    them."""

    outputs: msgspec.Raw
    error: WorkError | None = None
    parameters: dict[str, ParameterValue] = {}
    is_rescheduled: bool = False


class CallRequest(msgspec.Struct, array_like=True):
    """A BLS call: a model asks the server to run another model."""

    model_name: str
    model_version: int
    """-1 means the latest."""
    request: WorkRequest
    """Its `handle` is the number of the call, chosen by the worker."""
    is_decoupled: bool = False
    """The caller iterates over responses; otherwise exactly one is expected."""
    callers: list[int] = []
    """The handles of the caller's own requests that this call serves, as far as they are known."""
    is_repeatable: bool = False
    """The thread that executes makes the call and waits for it, and the call could go directly to
    the worker of the called model."""


class DirectResponse(msgspec.Struct, array_like=True):
    """The response to a call that went from worker to worker."""

    response: WorkResponse
    input_end_ns: int
    output_start_ns: int


class DirectCall(msgspec.Struct, array_like=True):
    """What the worker that made a direct call reports to the server afterwards."""

    lease: int
    start_ns: int
    input_end_ns: int
    output_start_ns: int
    end_ns: int
    error_code: str = ""
    """The name of a `naiad.errors.Code`; empty when the call succeeded."""

    def __post_init__(self) -> None:
        if self.error_code:
            _check_code(self.error_code)


def _check_code(name: str) -> None:
    """Raises ValueError, which makes a message with another name a bad message."""
    if name not in Code.__members__:
        raise ValueError(f"unknown error code '{name}'")


class ControlOperation(msgspec.Struct, array_like=True):
    """`kind` is one of load_model, unload_model, is_model_ready."""

    kind: str
    model_name: str
    model_version: str = ""
    config: str = ""
    files: dict[str, bytes] = {}
    unload_dependents: bool = False


class LoadArguments(msgspec.Struct, array_like=True):
    """What a backend needs to load one instance of a model version."""

    model_name: str
    model_version: int
    model_dir: str
    instance_name: str
    instance_kind: str
    """CPU, GPU or MODEL."""
    device_id: int
    model_config: bytes
    """JSON, as `GET /v2/models/M/config` shows it."""
    model_filename: str = ""
    backend_config: dict[str, str] = {}
    """The options that `--backend-config` sets for this backend."""
    backend_dir: str = ""
    """The folder of a backend that is a `model.py` (`backends/<name>`)."""
    cpu_cores: list[int] = []
    """The cores that the host policy and the model's config allow; empty means all."""
    numa_node: int | None = None
    """The node from which the host policy allocates memory."""
    max_memory_bytes: int = 0
    """The limit of the model's own config on private memory; 0 means none."""


class Confinement(msgspec.Struct, array_like=True, frozen=True):
    """The user of a worker, and limits on what it may use. Processes that its model starts inherit
    them."""

    user: int | None = None
    """A user id; None means the server's user."""
    group: int = 0
    groups: list[int] = []
    """Supplementary groups."""
    name: str = ""
    """The name of the user, if it has one."""
    home: str = "/"
    max_memory_bytes: int = 0
    """Private, writable memory of one process; 0 means no limit."""
    max_processes: int = 0
    """Processes and threads of the user, in all workers together; 0 means no limit."""
