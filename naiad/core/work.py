"""What crosses the process boundary to a worker and back: requests, responses, tensors, as msgpack
structs.

Small tensors travel inline; large ones as a `SlotRef` into shared memory (naiad.shm.arena), which
the receiving side replaces by a view before anyone else sees the struct. No pickle, no code, no
names of memory: only numbers.
"""

from __future__ import annotations

import msgspec

from naiad.core.request import ParameterValue
from naiad.core.tensor import SlotRef, Tensor
from naiad.errors import NaiadError

__all__ = ["SlotRef", "WorkTensor"]

SEQUENCE_START = 1
SEQUENCE_END = 2


WorkTensor = Tensor
"""The same struct on both sides; after receipt `data` is a bytearray or a writable memoryview."""


class WorkRequest(msgspec.Struct, array_like=True):
    handle: int
    """Names this request on its channel until its final response."""
    id: str
    inputs: list[WorkTensor]
    requested_outputs: list[str] = []
    parameters: dict[str, ParameterValue] = {}
    correlation_id: int | str = 0
    flags: int = 0
    timeout_us: int = 0
    priority: int = 0
    trace_context: str = ""
    """W3C's headers as JSON, for the model to hand on."""
    is_null: bool = False
    """Fills an empty slot of a sequence batch: no output of it is wanted, and no answer."""
    trace_id: int = 0
    """Of a traced request; in a BLS call, the one that it belongs to. 0: none."""


class WorkError(msgspec.Struct, array_like=True):
    code: str
    """A `naiad.errors.Code` by name, e.g. INVALID_ARG."""
    message: str
    retry_after_s: int | None = None
    """Set when the same request may succeed later, e.g. when an engine's own queue is full."""

    @classmethod
    def of(cls, error: NaiadError) -> WorkError:
        return cls(error.code.name, error.message, error.retry_after_s)


class WorkResponse(msgspec.Struct, array_like=True):
    outputs: list[WorkTensor] = []
    error: WorkError | None = None
    parameters: dict[str, ParameterValue] = {}
    is_rescheduled: bool = False
    """Not an answer: the request goes back to the scheduler (iterative sequences only)."""


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
    """Handles of the caller's own requests that this call serves, as far as they are known."""
    is_repeatable: bool = False
    """Made by the thread that executes, which waits for it, and of a form that the called model's
    worker could be given directly."""


class DirectAnswer(msgspec.Struct, array_like=True):
    """To a call that went from worker to worker."""

    response: WorkResponse
    input_end_ns: int
    output_start_ns: int


class DirectCall(msgspec.Struct, array_like=True):
    """What the server is told of it, afterwards, by the worker that made it."""

    lease: int
    start_ns: int
    input_end_ns: int
    output_start_ns: int
    end_ns: int
    error_code: str = ""
    """A `naiad.errors.Code` by name; empty for an answer."""


class MetricOperation(msgspec.Struct, array_like=True):
    """`kind` is one of create_family, create_metric, delete_family, delete_metric, increment, set,
    observe, merge, value."""

    kind: str
    handle: int = 0
    name: str = ""
    description: str = ""
    metric_kind: str = ""
    labels: dict[str, str] = {}
    buckets: list[float] | None = None
    value: float = 0.0
    counts: list[int] = []
    """merge: what a histogram's buckets gained, the last one +Inf; `value` is what its sum
    gained."""


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
    """What `--backend-config` says for this backend."""
    backend_dir: str = ""
    """For a backend that is a `model.py` of its own (`backends/<name>`)."""
    cpu_cores: list[int] = []
    """Where its host policy lets it run; empty means anywhere."""
    numa_node: int | None = None
    """Where its host policy takes memory from."""
